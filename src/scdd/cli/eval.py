"""`scdd eval`: measure models. Several devices: `torchrun --nproc-per-node N -m scdd eval …`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from typing import Annotated

import typer

from scdd.cli import eval_repair
from scdd.cli import eval_session as s
from scdd.cli.cluster import RayCommand
from scdd.cli.eval_systems import parse_systems
from scdd.core.errors import UserError
from scdd.samplers.options import SamplingChanges

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Measure a model. Finished measurements are kept, and not measured again.",
)


@app.command(cls=RayCommand)
@s.with_session()
def likelihood(
    here: s.Session,
    model: s.Models = None,
    text: s.Texts = None,
    field: s.Field = "text",
    limit: s.Limit = None,
    length: s.Length = None,
    steps: Annotated[int | None, typer.Option(help="T of a discrete grid; default: continuous time.")] = None,
    looks: s.Looks = 8,
    convention: s.ConventionFlag = "ours",
    corpus: s.Corpus = None,
) -> None:
    """NELBO of a text per token and per byte, with its errors (tab:valppl)."""
    from scdd.evals.measure.likelihood import NelboEstimator, measure_likelihood
    from scdd.evals.measure.texts import text_rows

    estimator = NelboEstimator(steps, looks, s.convention_of(convention) or "ours", here.seed)
    for _, loaded in here.opened(model):
        rows = text_rows(loaded, text, field, limit, length)
        here.ask(f"likelihood of {loaded.label}", len(rows), measure_likelihood, loaded, rows, estimator)
    here.show(corpus)


@app.command(cls=RayCommand)
@s.with_session()
def generation(
    here: s.Session,
    model: s.Models = None,
    judge: s.NeededJudge = "gpt2-large",
    steps: s.Budgets = "128",
    num: s.Num = None,
    temperature: Annotated[str | None, typer.Option(metavar="X,X…", help="One or several, for a frontier.")] = None,
    top_p: Annotated[str | None, typer.Option(metavar="X,X…", help="One or several, for a frontier.")] = None,
    mauve: Annotated[
        str | None, typer.Option(metavar="[NAME=]PATH", help="Also MAUVE against these human texts.")
    ] = None,
    changes: s.Changes = None,
    convention: s.SamplingConvention = None,
    judge_batch_size: s.JudgeBatchSize = 8,
    corpus: s.Corpus = None,
) -> None:
    """Generative perplexity, entropy, distinct-n and repetition of samples; frontiers over temperature and top-p."""
    from scdd.evals.measure.generation import measure_generation
    from scdd.evals.measure.mauve import mauve_reference, measure_mauve
    from scdd.evals.measure.specs import SamplingSpec
    from scdd.evals.report.summaries import frontier_table

    heats: Sequence[float | None] = s.parse_numbers(temperature, "--temperature", float) or (None,)
    masses: Sequence[float | None] = s.parse_numbers(top_p, "--top-p", float) or (None,)
    bases = [
        SamplingSpec(
            here.default_num(num),
            nfe,
            here.seed,
            {"temperature": heat, "top_p": mass, "convention": s.convention_of(convention)},
        )
        for nfe, heat, mass in product(s.parse_numbers(steps, "--steps", int), heats, masses)
    ]
    reference = here.reference(judge, judge_batch_size)
    if mauve is not None:
        mauve_reference(reference)
    for system, loaded in here.opened(model, changes):
        for spec in map(system.spec, bases):
            what = f"{system.label}, {spec.nfe} evaluations"
            here.ask(what, 2 * spec.num, measure_generation, loaded, spec, reference)
            if mauve is not None:
                here.ask(f"{what}, MAUVE", None, measure_mauve, loaded, spec, reference, mauve)
    several = len(heats) * len(masses) > 1  # then the frontier is among the tables
    here.show(corpus, *([] if several else [frontier_table(here.of_kind("generation"))]))


@app.command(cls=RayCommand)
@s.with_session()
def correction(
    here: s.Session,
    model: s.Models = None,
    judge: s.Judge = None,
    steps: s.Budgets = "64,128",
    num: Annotated[int, typer.Option(*s.NUM, help="Samples of each way; the paper's are 128.")] = 128,
    changes: s.Changes = None,
    convention: s.SamplingConvention = None,
    judge_batch_size: s.JudgeBatchSize = 8,
) -> None:
    """Correction rates beside the intrinsic ones; with --judge, what the corrections are worth (tab:correction_rate)."""
    from scdd.evals.measure.generation import measure_correction
    from scdd.evals.measure.specs import SamplingSpec

    way: SamplingChanges = {"convention": s.convention_of(convention)}
    bases = [SamplingSpec(num, nfe, here.seed, way) for nfe in s.parse_numbers(steps, "--steps", int)]
    reference = here.reference(judge, judge_batch_size)
    for system, loaded in here.opened(model, changes):
        for spec in map(system.spec, bases):
            what, total = f"{system.label}, {spec.nfe} evaluations", num * (1 if reference is None else 5)
            here.ask(what, total, measure_correction, loaded, spec, reference)
    here.show()


@app.command(cls=RayCommand)
@s.with_session()
def recovery(
    here: s.Session,
    model: s.Models = None,
    text: s.Texts = None,
    field: s.Field = "text",
    length: s.Length = None,
    judge: s.Judge = None,
    count: Annotated[str, typer.Option("--k", metavar="K,K…", help="Corrupted tokens in each text.")] = "5,10,20,50",
    num: Annotated[int, typer.Option(*s.NUM, min=1, help="Texts.")] = 128,
    steps: Annotated[int, typer.Option(help="Steps of the whole walk, of which the last are taken.")] = 128,
    last: Annotated[str, typer.Option(metavar="N,N…", help="How many of the last steps: 1 is the paper's.")] = "1,16",
    top_p: Annotated[float, typer.Option(help="Replacements come from this nucleus.")] = 0.9,
    cut_doubts: Annotated[bool, typer.Option("--cut-doubts", help="Doubts come from that nucleus, too.")] = False,
    convention: s.RecoveryConvention = "ours",
    threshold: Annotated[
        str | None,
        typer.Option(metavar="T,T…", help="Also the one pass of `scdd correct --mode pass`, at these thresholds."),
    ] = None,
    strength: Annotated[float, typer.Option(help="Noise level that the one pass assumes.")] = 0.1,
    typos: Annotated[bool, typer.Option(help="Also real typing errors, counted by words.")] = True,
    judge_batch_size: s.JudgeBatchSize = 8,
) -> None:
    """Touch, recovery and damage after corruption by random tokens and by typing errors (tab:exact-recovery)."""
    from scdd.evals.measure.recovery import measure_recovery, measure_typos
    from scdd.evals.measure.specs import RecoverySpec, Repair
    from scdd.evals.measure.texts import text_rows

    way = s.convention_of(convention) or "ours"
    repairs = [
        Repair(steps, n, top_p, nucleus=cut_doubts, convention=way) for n in s.parse_numbers(last, "--last", int)
    ]
    thresholds = s.parse_numbers(threshold, "--threshold", float)
    repairs += [Repair(1, 1, threshold=value, strength=strength) for value in thresholds]
    counts = s.parse_numbers(count, "--k", int)
    for system in parse_systems(model):
        if system.sampling:
            raise UserError(
                f"{', '.join(system.sampling)} of {system.label} would have no effect, recovery starts from given texts: "
                "use --steps, --last and --top-p."
            )
    reference = here.reference(judge, judge_batch_size)
    kinds = [measure_recovery, *([measure_typos] if typos else [])]
    for _, loaded in here.opened(model):
        rows = text_rows(loaded, text, field, num, length, whole=True)
        for k, repair, function in product(counts, repairs, kinds):
            what, total = f"{loaded.label}, K = {k}, {repair.name}", len(rows) * (4 if reference else 1)
            here.ask(what, total, function, loaded, rows, RecoverySpec(k, repair, here.seed), reference)
    here.show()


app.command("repair", cls=RayCommand)(eval_repair.repair)


@app.command("zero-shot", cls=RayCommand)
@s.with_session()
def zero_shot(
    here: s.Session,
    model: s.Models = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME…",
            help="Some of the paper's seven, from --benchmarks, or without it tasks of lm-eval; default: all seven.",
        ),
    ] = None,
    benchmarks: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Folder of the seven tasks' files; default: SCDD_BENCHMARKS.")
    ] = None,
    looks: Annotated[int, typer.Option(help="Times at which each answer is looked at, even; the paper's are 10.")] = 10,
    limit: Annotated[int | None, typer.Option(help="Questions of each task.")] = None,
) -> None:
    """Accuracy on multiple-choice tasks, answers ranked by the ELBO of question and answer (tab:benchmark_accuracy)."""
    from scdd.evals.measure.zero_shot import check_looks, measure_zero_shot

    check_looks(looks)
    arguments = (tasks.split(",") if tasks else None, benchmarks, looks, limit, here.seed)
    for _, loaded in here.opened(model):
        here.ask(f"answers of {loaded.label}", None, measure_zero_shot, loaded, *arguments)
    here.show()


@app.command()
@s.with_session(on_ray=False)
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
    convention: s.SamplingConvention = None,
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
    way = s.convention_of(convention) or "ours"
    for matched in (Matched(t, nfe, top_p, here.seed, way) for nfe in budgets):
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


@app.command(cls=RayCommand)
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
    convention: s.SamplingConvention = None,
    judge_batch_size: s.JudgeBatchSize = 8,
    corpus: s.Corpus = None,
) -> None:
    """Several systems at equal network evaluations, in the paper's tables (tab:valppl, tab:genppl-comparison, tab:entropy-comparison)."""
    from scdd.evals.measure.generation import measure_generation
    from scdd.evals.measure.likelihood import NelboEstimator, measure_likelihood
    from scdd.evals.measure.specs import SamplingSpec
    from scdd.evals.measure.texts import text_rows
    from scdd.evals.measure.walk import sampling_plan, text_length

    estimator, count = NelboEstimator(None, looks, "ours", here.seed), here.default_num(num)
    way: SamplingChanges = {"top_p": top_p, "convention": s.convention_of(convention)}
    bases = [SamplingSpec(count, nfe, here.seed, way) for nfe in s.parse_numbers(steps, "--steps", int)]
    # a mistake in the last one is better heard before the first one's hours of work
    for system, loaded in here.opened(systems):
        for spec in map(system.spec, bases):
            sampling_plan(loaded, spec, 1)
            text_length(loaded.lm, spec)
    reference = here.reference(judge, judge_batch_size)
    for system, loaded in here.opened(systems):
        if text is not None:
            rows = text_rows(loaded, text, field, limit)
            here.ask(f"likelihood of {system.label}", len(rows), measure_likelihood, loaded, rows, estimator)
        for spec in map(system.spec, bases):
            what = f"{system.label}, {spec.nfe} evaluations"
            here.ask(what, 2 * spec.num, measure_generation, loaded, spec, reference)
    here.show(corpus)
