"""The verbs of `scdd eval` that rank: answers to questions, systems, and texts before a judge."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from scdd.cli import eval_session as s
from scdd.core.errors import UserError

if TYPE_CHECKING:
    from scdd.evals.cells import Measurement


def zero_shot(
    model: s.Models = None,
    tasks: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME…", help="Tasks of lm-eval; default: the paper's seven, from --data."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Folder of the seven tasks' files; default: SCDD_BENCHMARKS."),
    ] = None,
    passes: Annotated[int, typer.Option(help="Monte-Carlo passes for each answer; the paper's are 10.")] = 10,
    limit: Annotated[int | None, typer.Option(help="Questions of each task.")] = None,
    seed: s.Seed = 0,
    batch_size: s.BatchSize = 32,
    out: s.Out = None,
    device: s.Device = None,
    quiet: s.Quiet = False,
    json: s.Json = False,
) -> None:
    """Accuracy on multiple-choice tasks, answers ranked by the ELBO of question and answer (tab:benchmark_accuracy)."""
    from scdd.evals.summaries import zero_shot_table
    from scdd.evals.zero_shot import measure_zero_shot

    with s.session(out, model or [], device, quiet, json) as here:
        cells = []
        for system in s.systems_of(model):
            subject = s.opened(system, here)
            wanted = tasks.split(",") if tasks else None
            with here.bar(f"answers of {system.label}", None) as watch:
                cells.append(
                    measure_zero_shot(
                        here.store, subject, wanted, data, passes, limit, seed, batch_size, watch
                    )
                )
        s.show(here.world, cells, [zero_shot_table(cells)], json)


def compare(
    systems: Annotated[
        list[str],
        typer.Argument(
            metavar=f"{s.SYSTEM}…", help="Systems, such as a=runs/scdd b=runs/mdlm,sampler=remdm-cap."
        ),
    ],
    judge: s.Judged = "gpt2-large",
    steps: s.Budgets = "32,64,128",
    num: s.Num = None,
    text: s.Texts = None,
    field: s.Field = "text",
    limit: s.Limit = None,
    looks: Annotated[int, typer.Option(help="Times at which each row is looked at; even.")] = 8,
    top_p: Annotated[float | None, typer.Option(help="Nucleus of every system; the paper's is 0.9.")] = None,
    seed: s.Seed = 0,
    batch_size: s.BatchSize = 16,
    judge_batch_size: s.BatchSize = 8,
    out: s.Out = None,
    device: s.Device = None,
    corpus: s.Corpus = "OWT",
    quiet: s.Quiet = False,
    json: s.Json = False,
) -> None:
    """Several systems at equal network evaluations, in the paper's tables (tab:valppl, tab:genppl-comparison, tab:entropy-comparison)."""
    from scdd.evals.compare import entropy_table, generation_table, likelihood_table
    from scdd.evals.generation import SamplingSpec, room_of, settings_of
    from scdd.evals.likelihood import NelboEstimator
    from scdd.evals.measure import measure_generation, measure_likelihood

    chosen, wanted = s.systems_of(systems), s.budgets(steps)
    s.check_corpus(corpus)
    s.required(judge)
    with s.session(out, [], device, quiet, json) as here:
        ways = {
            system.label: [
                system.ways(SamplingSpec(s.default_num(num, here.world), nfe, seed, top_p=top_p))
                for nfe in wanted
            ]
            for system in chosen
        }
        # a mistake in the last one is better heard before the first one's hours of work
        for system in chosen:
            subject = s.opened(system, here)
            for way in ways[system.label]:
                settings_of(subject, way, batch_size)
                room_of(subject, way)
        opened = here.judge(judge, judge_batch_size)
        assert opened is not None
        bounds: dict[str, Measurement] = {}
        grid: dict[str, dict[int, Measurement]] = {}
        for system in chosen:
            subject = s.opened(system, here)
            if text is not None:
                rows = s.rows_of(subject, text, field, limit, None)
                with here.bar(f"likelihood of {system.label}", len(rows)) as watch:
                    bounds[system.label] = measure_likelihood(
                        here.store,
                        subject,
                        rows,
                        NelboEstimator(None, looks, "exact", seed),
                        batch_size,
                        watch,
                    )
            for way in ways[system.label]:
                with here.bar(f"{system.label}, {way.nfe} evaluations", 2 * way.num) as watch:
                    cell = measure_generation(here.store, subject, way, opened, batch_size, watch)
                grid.setdefault(system.label, {})[way.nfe] = cell
        tables = [*([likelihood_table(bounds, corpus)] if bounds else []), generation_table(grid, corpus)]
        cells = [*bounds.values(), *(cell for row in grid.values() for cell in row.values())]
        s.show(here.world, cells, [*tables, entropy_table(grid, corpus)], json)


def judge(
    systems: Annotated[
        list[str],
        typer.Argument(
            metavar=f"{s.SYSTEM} {s.SYSTEM}", help="The two systems; the first one's process noises."
        ),
    ],
    llm: Annotated[str, typer.Option("--llm", help="Name of the judging model at the server.")],
    base_url: Annotated[
        str | None,
        typer.Option(help="Address of any server that speaks OpenAI's API; the key is OPENAI_API_KEY."),
    ] = None,
    text: s.Texts = None,
    field: s.Field = "text",
    num: Annotated[int, typer.Option(*s.NUM, help="Sequences; the paper's are 256.")] = 256,
    length: s.Length = None,
    steps: s.Budgets = "128",
    t: Annotated[float, typer.Option(help="How far the texts are noised.")] = 0.8,
    top_p: Annotated[float, typer.Option(help="Nucleus of both systems.")] = 0.9,
    prices: Annotated[
        str | None,
        typer.Option(
            metavar="IN,OUT", help="Prices of a million prompt and answer tokens, for the estimate."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask the judge without asking you first.")] = False,
    estimate_only: Annotated[
        bool, typer.Option("--estimate", help="Make the texts, tell the cost, and stop.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Questions asked at a time.")] = 8,
    seed: s.Seed = 0,
    batch_size: s.BatchSize = 16,
    out: s.Out = None,
    device: s.Device = None,
    quiet: s.Quiet = False,
    json: s.Json = False,
) -> None:
    """Two systems mend the same noised texts, and a language model says which is better (tab:matched_compact)."""
    from scdd.evals.answers import Asker, Server
    from scdd.evals.judge import Matched, denoised, measure_judge, prompts
    from scdd.evals.judge import estimate as estimated
    from scdd.evals.summaries import judge_table

    chosen, budgets = s.systems_of(systems), s.budgets(steps)
    if len(chosen) != 2:
        raise UserError(f"The judge compares two systems, and {len(chosen)} are named: give two.")
    cost = s.numbers(prices, "--prices")
    if prices is not None and len(cost) != 2:
        raise UserError(f"--prices {prices} should be two numbers: prompt and answer tokens, as in 1.25,10.")
    pair = (float(cost[0] or 0), float(cost[1] or 0)) if prices is not None else None
    with s.session(out, [], device, quiet, json) as here:
        first, second = (s.opened(system, here) for system in chosen)
        rows = s.rows_of(first, text, field, num, length, whole=True)
        asker = Asker(Server(llm, base_url, workers=workers), here.store.folder / "answers.jsonl")
        made = []
        for nfe in budgets:
            how = Matched(t, nfe, top_p, seed)
            with here.bar(f"texts at {nfe} evaluations", 2 * len(rows)) as watch:
                both = [
                    denoised(here.store, one, first, rows, how, batch_size, watch, system.way)
                    for one, system in zip((first, second), chosen, strict=True)
                ]
            made.append((how, (both[0], both[1])))
        asked = [prompts(a.result["texts"], b.result["texts"], how.seed)[:2] for how, (a, b) in made]
        total = estimated(asker, [p for g, _ in asked for p in g], [p for _, w in asked for p in w], pair)
        if here.world.is_main:
            typer.echo(f"{llm} will be asked {total}.", err=True)
        if estimate_only or not _agreed(here, yes or total.calls == 0):
            return
        cells = []
        for how, texts in made:
            with here.bar(f"{llm} on {how.nfe} evaluations", 3 * len(rows) * here.world.size) as watch:
                cells.append(measure_judge(here.store, first, second, texts, asker, how, watch))
        s.show(here.world, cells, [judge_table(cells)], json)


def _agreed(here: s.Session, yes: bool) -> bool:
    """Whether the user wants to pay; asked on rank 0's terminal."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UserError("The judge costs money: look at the estimate above, and say --yes to go on.")
    return (
        here.world.broadcast("yes" if here.world.is_main and typer.confirm("Go on?", err=True) else "")
        == "yes"
    )
