"""`scdd eval`: measure models. Several devices: `torchrun --nproc-per-node N -m scdd eval …`."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from scdd.cli import eval_rank as rank
from scdd.cli import eval_session as s

if TYPE_CHECKING:
    from scdd.evals.cells import Measurement

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Measure a model. Finished measurements are kept, and not measured again.",
)


@app.command()
def likelihood(
    model: s.Models = None,
    text: s.Texts = None,
    field: s.Field = "text",
    limit: s.Limit = None,
    length: s.Length = None,
    steps: Annotated[int | None, typer.Option(help="T of a discrete grid; default: continuous time.")] = None,
    looks: Annotated[int, typer.Option(help="Times at which each row is looked at; even.")] = 8,
    convention: Annotated[
        str,
        typer.Option(help="exact: the whole bound. reference: as public code reports it (needs --steps)."),
    ] = "exact",
    seed: s.Seed = 0,
    batch_size: s.BatchSize = 16,
    out: s.Out = None,
    device: s.Device = None,
    corpus: s.Corpus = "OWT",
    quiet: s.Quiet = False,
    json: s.Json = False,
) -> None:
    """NELBO of a text per token and per byte, with its errors (tab:valppl)."""
    from scdd.evals.compare import likelihood_table
    from scdd.evals.likelihood import NelboEstimator
    from scdd.evals.measure import measure_likelihood

    how = NelboEstimator(steps, looks, convention, seed)  # type: ignore[arg-type]
    s.check_corpus(corpus)
    with s.session(out, model or [], device, quiet, json) as here:
        cells: dict[str, Measurement] = {}
        for system in s.systems_of(model):
            subject = s.opened(system, here)
            rows = s.rows_of(subject, text, field, limit, length)
            with here.bar(f"likelihood of {system.label}", len(rows)) as watch:
                cells[system.label] = measure_likelihood(here.store, subject, rows, how, batch_size, watch)
        s.show(here.world, list(cells.values()), [likelihood_table(cells, corpus)], json)


@app.command()
def generation(
    model: s.Models = None,
    judge: s.Judged = "gpt2-large",
    steps: s.Budgets = "128",
    num: s.Num = None,
    temperature: Annotated[
        str | None, typer.Option(metavar="X,X…", help="One or several, for a frontier.")
    ] = None,
    top_p: Annotated[str | None, typer.Option(metavar="X,X…", help="One or several, for a frontier.")] = None,
    seed: s.Seed = 0,
    batch_size: s.BatchSize = 16,
    judge_batch_size: s.BatchSize = 8,
    mauve: Annotated[
        str | None, typer.Option(metavar="[NAME=]PATH", help="Also MAUVE against these human texts.")
    ] = None,
    out: s.Out = None,
    device: s.Device = None,
    changes: s.Changes = None,
    corpus: s.Corpus = "OWT",
    quiet: s.Quiet = False,
    json: s.Json = False,
) -> None:
    """Generative perplexity, entropy, distinct-n and repetition of samples; frontiers over temperature and top-p."""
    from scdd.evals.compare import entropy_table, generation_table
    from scdd.evals.frontier import frontier_table
    from scdd.evals.generation import SamplingSpec
    from scdd.evals.mauve import mauve_judge, measure_mauve
    from scdd.evals.measure import measure_generation
    from scdd.evals.summaries import mauve_table

    ways = list(
        product(s.budgets(steps), s.numbers(temperature, "--temperature"), s.numbers(top_p, "--top-p"))
    )
    s.check_corpus(corpus)
    with s.session(out, model or [], device, quiet, json) as here:
        opened = here.judge(s.required(judge), judge_batch_size)
        assert opened is not None
        if mauve is not None:
            mauve_judge(opened)
        cells: list[Measurement] = []
        for system in s.systems_of(model):
            subject = s.opened(system, here, changes)
            for nfe, heat, mass in ways:
                way = system.ways(
                    SamplingSpec(s.default_num(num, here.world), nfe, seed, temperature=heat, top_p=mass)
                )
                with here.bar(f"{system.label}, {nfe} evaluations", 2 * way.num) as watch:
                    cells.append(measure_generation(here.store, subject, way, opened, batch_size, watch))
                    if mauve is not None:
                        cells.append(
                            measure_mauve(here.store, subject, way, opened, mauve, batch_size, watch)
                        )
        judged = [cell for cell in cells if cell.kind == "generation"]
        tables = [frontier_table(judged)]
        if len({(cell.label, cell.settings["nfe"]) for cell in judged}) == len(judged):
            grid: dict[str, dict[int, Measurement]] = {}
            for cell in judged:
                grid.setdefault(cell.label, {})[cell.settings["nfe"]] = cell
            tables = [generation_table(grid, corpus), entropy_table(grid, corpus), *tables]
        human = [cell for cell in cells if cell.kind == "mauve"]
        s.show(here.world, cells, [*tables, *([mauve_table(human)] if human else [])], json)


@app.command()
def correction(
    model: s.Models = None,
    judge: s.Judged = None,
    steps: s.Budgets = "64,128",
    num: Annotated[int, typer.Option(*s.NUM, help="Samples of each way; the paper's are 128.")] = 128,
    seed: s.Seed = 0,
    batch_size: s.BatchSize = 16,
    judge_batch_size: s.BatchSize = 8,
    out: s.Out = None,
    device: s.Device = None,
    changes: s.Changes = None,
    quiet: s.Quiet = False,
    json: s.Json = False,
) -> None:
    """Correction rates beside the intrinsic ones; with --judge, what the corrections are worth (tab:correction_rate)."""
    from scdd.evals.generation import SamplingSpec
    from scdd.evals.measure import measure_correction
    from scdd.evals.summaries import correction_table

    with s.session(out, model or [], device, quiet, json) as here:
        opened = here.judge(judge, judge_batch_size)
        cells = []
        for system in s.systems_of(model):
            subject = s.opened(system, here, changes)
            for nfe in s.budgets(steps):
                way = system.ways(SamplingSpec(num, nfe, seed))
                with here.bar(
                    f"{system.label}, {nfe} evaluations", num * (1 if opened is None else 5)
                ) as watch:
                    cells.append(measure_correction(here.store, subject, way, opened, batch_size, watch))
        s.show(here.world, cells, [correction_table(cells)], json)


@app.command()
def recovery(
    model: s.Models = None,
    text: s.Texts = None,
    field: s.Field = "text",
    judge: s.Judged = None,
    count: Annotated[
        str, typer.Option("--k", metavar="K,K…", help="Corrupted tokens in each text.")
    ] = "5,10,20,50",
    num: Annotated[int, typer.Option(*s.NUM, min=1, help="Texts.")] = 128,
    steps: Annotated[int, typer.Option(help="Steps of the whole walk, of which the last are taken.")] = 128,
    last: Annotated[
        str, typer.Option(metavar="N,N…", help="How many of the last steps: 1 is the paper's.")
    ] = "1,16",
    top_p: Annotated[float, typer.Option(help="Replacements come from this nucleus.")] = 0.9,
    nucleus: Annotated[
        bool, typer.Option("--nucleus", help="Doubts come from that nucleus, too: likely the paper's way.")
    ] = False,
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="T,T…", help="Also the one pass of `scdd correct --mode pass`, at these thresholds."
        ),
    ] = None,
    typos: Annotated[bool, typer.Option(help="Also real typing errors, counted by words.")] = True,
    seed: s.Seed = 0,
    length: s.Length = None,
    batch_size: s.BatchSize = 16,
    judge_batch_size: s.BatchSize = 8,
    out: s.Out = None,
    device: s.Device = None,
    quiet: s.Quiet = False,
    json: s.Json = False,
) -> None:
    """Touch, recovery and damage after corruption by random tokens and by typing errors (tab:exact-recovery)."""
    from scdd.evals.measure import measure_recovery, measure_typos, typing_texts
    from scdd.evals.recovery import Repair
    from scdd.evals.summaries import recovery_table

    counts = s.budgets(count, "--k")
    ways = [Repair(steps, n, top_p, nucleus=nucleus) for n in s.budgets(last, "--last")]
    ways += [Repair(1, 1, threshold=t) for t in s.numbers(threshold, "threshold") if t is not None]
    with s.session(out, model or [], device, quiet, json) as here:
        opened = here.judge(judge, judge_batch_size)
        random, typing = [], []
        for system in s.systems_of(model):
            s.no_way(system, "recovery starts from given texts: use --steps, --last and --top-p")
            subject = s.opened(system, here)
            rows = s.rows_of(subject, text, field, num, length, whole=True)
            for k, repair in product(counts, ways):
                with here.bar(
                    f"{system.label}, K = {k}, {repair.name}", len(rows) * (4 if opened else 1)
                ) as watch:
                    random.append(
                        measure_recovery(
                            here.store, subject, rows, k, repair, opened, seed, batch_size, watch
                        )
                    )
                    if typos:
                        texts = typing_texts(subject, rows)
                        typing.append(
                            measure_typos(
                                here.store, subject, texts, k, repair, opened, seed, watch, rows.name
                            )
                        )
        tables = [recovery_table(random), *([recovery_table(typing)] if typing else [])]
        s.show(here.world, [*random, *typing], tables, json)


app.command("zero-shot")(rank.zero_shot)
app.command("judge")(rank.judge)
app.command("compare")(rank.compare)
