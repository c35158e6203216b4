"""`scdd eval`: measure models. Several devices: `torchrun --nproc-per-node N -m scdd eval …`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Annotated

import typer

from scdd.cli import eval_rank as rank
from scdd.cli import eval_session as s
from scdd.cli.eval_systems import parse_systems
from scdd.core.errors import UserError

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Measure a model. Finished measurements are kept, and not measured again.",
)


@app.command()
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
    convention: Annotated[
        str, typer.Option(help="exact: the whole bound. reference: as public code reports it (needs --steps).")
    ] = "exact",
    corpus: s.Corpus = "OWT",
) -> None:
    """NELBO of a text per token and per byte, with its errors (tab:valppl)."""
    from scdd.evals.measure.likelihood import NelboEstimator, measure_likelihood
    from scdd.evals.measure.texts import text_rows

    estimator = NelboEstimator(steps, looks, convention, here.seed)  # type: ignore[arg-type]
    for _, loaded in here.opened(model):
        rows = text_rows(loaded, text, field, limit, length)
        here.measure(f"likelihood of {loaded.label}", len(rows), measure_likelihood, loaded, rows, estimator)
    here.show(corpus)


@app.command()
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
    judge_batch_size: s.JudgeBatchSize = 8,
    corpus: s.Corpus = "OWT",
) -> None:
    """Generative perplexity, entropy, distinct-n and repetition of samples; frontiers over temperature and top-p."""
    from scdd.evals.measure.generation import measure_generation
    from scdd.evals.measure.mauve import mauve_reference, measure_mauve
    from scdd.evals.measure.specs import SamplingSpec
    from scdd.evals.report.summaries import frontier_table

    heats: Sequence[float | None] = s.parse_numbers(temperature, "--temperature", float) or (None,)
    masses: Sequence[float | None] = s.parse_numbers(top_p, "--top-p", float) or (None,)
    bases = [
        SamplingSpec(here.default_num(num), nfe, here.seed, temperature=heat, top_p=mass)
        for nfe, heat, mass in product(s.parse_numbers(steps, "--steps", int), heats, masses)
    ]
    reference = here.reference(judge, judge_batch_size)
    if mauve is not None:
        mauve_reference(reference)
    for system, loaded in here.opened(model, changes):
        for spec in map(system.spec, bases):
            what, total = f"{system.label}, {spec.nfe} evaluations", 2 * spec.num
            here.measure(what, total, measure_generation, loaded, spec, reference)
            if mauve is not None:
                here.measure(f"{what}, MAUVE", None, measure_mauve, loaded, spec, reference, mauve)
    several = len(heats) * len(masses) > 1  # then the frontier is among the tables
    here.show(corpus, *([] if several else [frontier_table(here.of_kind("generation"))]))


@app.command()
@s.with_session()
def correction(
    here: s.Session,
    model: s.Models = None,
    judge: s.Judge = None,
    steps: s.Budgets = "64,128",
    num: Annotated[int, typer.Option(*s.NUM, help="Samples of each way; the paper's are 128.")] = 128,
    changes: s.Changes = None,
    judge_batch_size: s.JudgeBatchSize = 8,
) -> None:
    """Correction rates beside the intrinsic ones; with --judge, what the corrections are worth (tab:correction_rate)."""
    from scdd.evals.measure.generation import measure_correction
    from scdd.evals.measure.specs import SamplingSpec

    bases = [SamplingSpec(num, nfe, here.seed) for nfe in s.parse_numbers(steps, "--steps", int)]
    reference = here.reference(judge, judge_batch_size)
    for system, loaded in here.opened(model, changes):
        for spec in map(system.spec, bases):
            what, total = f"{system.label}, {spec.nfe} evaluations", num * (1 if reference is None else 5)
            here.measure(what, total, measure_correction, loaded, spec, reference)
    here.show()


@app.command()
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
    nucleus: Annotated[
        bool, typer.Option("--nucleus", help="Doubts come from that nucleus, too: likely the paper's way.")
    ] = False,
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

    repairs = [Repair(steps, n, top_p, nucleus=nucleus) for n in s.parse_numbers(last, "--last", int)]
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
            here.measure(what, total, function, loaded, rows, RecoverySpec(k, repair, here.seed), reference)
    here.show()


app.command("zero-shot")(rank.zero_shot)
app.command("judge")(rank.judge)
app.command("compare")(rank.compare)
