"""The verbs of `scdd eval` that rank: answers to questions, systems, and texts before a judge."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from scdd.cli import eval_session as s
from scdd.cli.eval_systems import parse_systems
from scdd.core.errors import UserError


@s.with_session(batch_size=32)
def zero_shot(
    here: s.Session,
    model: s.Models = None,
    tasks: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME…", help="Tasks of lm-eval; default: the paper's seven, from --data."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Folder of the seven tasks' files; default: SCDD_BENCHMARKS.")
    ] = None,
    passes: Annotated[int, typer.Option(help="Monte-Carlo passes for each answer; the paper's are 10.")] = 10,
    limit: Annotated[int | None, typer.Option(help="Questions of each task.")] = None,
) -> None:
    """Accuracy on multiple-choice tasks, answers ranked by the ELBO of question and answer (tab:benchmark_accuracy)."""
    from scdd.evals.measure.zero_shot import measure_zero_shot

    arguments = (tasks.split(",") if tasks else None, data, passes, limit, here.seed)
    for _, loaded in here.opened(model):
        here.measure(f"answers of {loaded.label}", None, measure_zero_shot, loaded, *arguments)
    here.show()


@s.with_session()
def compare(
    here: s.Session,
    systems: Annotated[
        list[str],
        typer.Argument(metavar=f"{s.SYSTEM}…", help="Systems, such as a=runs/scdd b=runs/mdlm,sampler=remdm-cap."),
    ],
    judge: s.NeededJudge = "gpt2-large",
    steps: s.Budgets = "32,64,128",
    num: s.Num = None,
    text: s.Texts = None,
    field: s.Field = "text",
    limit: s.Limit = None,
    looks: s.Looks = 8,
    top_p: Annotated[float | None, typer.Option(help="Nucleus of every system; the paper's is 0.9.")] = None,
    judge_batch_size: s.JudgeBatchSize = 8,
    corpus: s.Corpus = "OWT",
) -> None:
    """Several systems at equal network evaluations, in the paper's tables (tab:valppl, tab:genppl-comparison, tab:entropy-comparison)."""
    from scdd.evals.measure.generation import measure_generation
    from scdd.evals.measure.likelihood import NelboEstimator, measure_likelihood
    from scdd.evals.measure.specs import SamplingSpec
    from scdd.evals.measure.texts import text_rows
    from scdd.evals.measure.walk import sampling_plan, text_length

    estimator, count = NelboEstimator(None, looks, "exact", here.seed), here.default_num(num)
    bases = [SamplingSpec(count, nfe, here.seed, top_p=top_p) for nfe in s.parse_numbers(steps, "--steps", int)]
    # a mistake in the last one is better heard before the first one's hours of work
    for system, loaded in here.opened(systems):
        for spec in map(system.spec, bases):
            sampling_plan(loaded, spec, here.batch_size)
            text_length(loaded.lm, spec)
    reference = here.reference(judge, judge_batch_size)
    for system, loaded in here.opened(systems):
        if text is not None:
            rows = text_rows(loaded, text, field, limit)
            what = f"likelihood of {system.label}"
            here.measure(what, len(rows), measure_likelihood, loaded, rows, estimator)
        for spec in map(system.spec, bases):
            what = f"{system.label}, {spec.nfe} evaluations"
            here.measure(what, 2 * spec.num, measure_generation, loaded, spec, reference)
    here.show(corpus)


@s.with_session()
def judge(
    here: s.Session,
    systems: Annotated[
        list[str],
        typer.Argument(metavar=f"{s.SYSTEM} {s.SYSTEM}", help="The two systems; the first one's process noises."),
    ],
    llm: Annotated[str, typer.Option("--llm", help="Name of the judging model at the server.")],
    base_url: Annotated[
        str | None, typer.Option(help="Address of any server that speaks OpenAI's API; the key is OPENAI_API_KEY.")
    ] = None,
    text: s.Texts = None,
    field: s.Field = "text",
    length: s.Length = None,
    num: Annotated[int, typer.Option(*s.NUM, help="Sequences; the paper's are 256.")] = 256,
    steps: s.Budgets = "128",
    t: Annotated[float, typer.Option(help="How far the texts are noised.")] = 0.8,
    top_p: Annotated[float, typer.Option(help="Nucleus of both systems.")] = 0.9,
    prices: Annotated[
        str | None,
        typer.Option(metavar="IN,OUT", help="Prices of a million prompt and answer tokens, for the estimate."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask the judge without asking you first.")] = False,
    estimate_only: Annotated[bool, typer.Option("--estimate", help="Make the texts, tell the cost, and stop.")] = False,
    workers: Annotated[int, typer.Option(help="Questions asked at a time.")] = 8,
) -> None:
    """Two systems mend the same noised texts, and a language model says which is better (tab:matched_compact)."""
    from scdd.evals.measure.judge import Matched, estimate_cost, measure_denoised, measure_judge, prompts
    from scdd.evals.measure.judge_client import JudgeClient, JudgeServer
    from scdd.evals.measure.texts import text_rows

    chosen, budgets = parse_systems(systems), s.parse_numbers(steps, "--steps", int)
    if len(chosen) != 2:
        raise UserError(f"The judge compares two systems, and {len(chosen)} are named: give two.")
    cost = s.parse_numbers(prices, "--prices", float)
    if len(cost) not in (0, 2):
        raise UserError(f"--prices {prices} should be two numbers: prompt and answer tokens, as in 1.25,10.")
    first, second = (loaded for _, loaded in here.opened(systems))
    rows = text_rows(first, text, field, num, length, whole=True)
    client = JudgeClient(JudgeServer(llm, base_url, workers=workers), here.store.folder / "answers.jsonl")
    todo = []
    for matched in (Matched(t, nfe, top_p, here.seed) for nfe in budgets):
        what = f"texts at {matched.nfe} evaluations"
        a, b = (
            here.measure(what, len(rows), measure_denoised, model, first, rows, matched, system.sampling)
            for model, system in zip((first, second), chosen, strict=True)
        )
        todo.append((matched, (a, b), prompts(a.result["texts"], b.result["texts"], matched.seed)))
    grading = [prompt for *_, (grades, _, _) in todo for prompt in grades]
    pairing = [prompt for *_, (_, pairs, _) in todo for prompt in pairs]
    total = estimate_cost(client, grading, pairing, (cost[0], cost[1]) if cost else None)
    if here.store.world.is_main:
        typer.echo(f"{llm} will be asked {total}.", err=True)
    if estimate_only or not _agreed(here, yes or total.calls == 0):
        return
    here.measured.clear()  # the texts have been shown to the judge alone
    for matched, texts, _ in todo:
        what, calls = f"{llm} on {matched.nfe} evaluations", 3 * len(rows) * here.store.world.size
        here.measure(what, calls, measure_judge, (first, second), texts, client, matched)
    here.show()


def _agreed(here: s.Session, yes: bool) -> bool:
    """Whether the user wants to pay; asked on rank 0's terminal."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UserError("The judge costs money: look at the estimate above, and say --yes to go on.")
    world = here.store.world
    return world.broadcast("yes" if world.is_main and typer.confirm("Go on?", err=True) else "") == "yes"
