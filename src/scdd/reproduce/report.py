"""The report: verdicts first, then every table, what is missing, and what made the numbers. Made of records alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from scdd import __version__
from scdd.data.files import write_atomically
from scdd.evals.measure.seeds import Difference
from scdd.evals.report.page import document, folded, quoted
from scdd.evals.report.tables import Entry, Table, entries, escaped, number
from scdd.reproduce import tables
from scdd.reproduce.claims import LOGARITHMIC, Claim
from scdd.reproduce.options import Scale
from scdd.reproduce.parts import Part
from scdd.reproduce.records import Record, Records, of_parts
from scdd.reproduce.sides import Fault, place_of, plan_of
from scdd.reproduce.verdicts import FAILS, HOLDS, LEVEL, UNDECIDED, UNMEASURED, Finding, Trial, findings, told

KINDS = tuple(tables.BY_KIND)
SHOWN_MISSING = 40


def write_report(
    out: Path, scale: Scale, parts: Sequence[Part], claims: Sequence[Claim], by_name: bool = False
) -> list[Path]:
    """report.md, report.html and records.jsonl in the output folder; `by_name` as for `of_parts`."""
    records = Records(out)
    text = markdown(scale, parts, of_parts(parts, records.read(), by_name), claims)
    page = document(
        f"The paper again: {scale.name}", f"Made by scdd reproduce, scdd {__version__}.", text.split("\n", 2)[2]
    )
    files = {out / "report.md": text, out / "report.html": page}
    for path, content in files.items():
        write_atomically(path, content.encode())
    return [*files, records.publish()]


def markdown(scale: Scale, parts: Sequence[Part], found: Mapping[str, Record], claims: Sequence[Claim]) -> str:
    """The report as Markdown, of the records by their names."""
    records = list(found.values())
    lines = [f"# The paper again: {escaped(scale.name)}\n", f"{escaped(scale.about.strip())}\n"]
    lines.append(_done(parts, records))
    tested = findings(records, claims, scale.comparisons, plan_of(parts))
    lines += ["## What holds, and what does not\n", *_glance(tested), *_claims(tested), _how(tested)]
    for kind in KINDS:
        group = [one for one in records if one.kind == kind]
        if group:
            lines += [f"## {tables.HEADINGS[kind]}\n"]
            for convention, tuned in dict.fromkeys((one.convention, one.tuned) for one in group):
                same = [one for one in group if (one.convention, one.tuned) == (convention, tuned)]
                lines += [t.markdown() for t in tables.BY_KIND[kind](same, tables.way_name(convention, tuned))]
    tuned = [one for one in records if one.kind == "tune"]
    lines += ["## Tuning\n", tables.tuning_table(tuned).markdown()] if tuned else []
    lines += _missing(scale, parts, found, tested)
    lines += [*_samples(records), *_provenance(records)]
    return "\n".join(lines)


def _done(parts: Sequence[Part], records: Sequence[Record]) -> str:
    planned, done = (Counter(one.kind for one in group) for group in (parts, records))
    told = [
        f"{done[kind]} of {planned[kind]} {'trainings' if kind == 'train' else kind}"
        for kind in planned
        if kind != "data"
    ]
    return f"Finished: {', '.join(told)}.\n"


# -- claims -------------------------------------------------------------------------------------------------------------


def _glance(tested: Sequence[Finding]) -> list[str]:
    """Every verdict in one table: claims down, comparisons across, and in a cell the ways of measuring."""
    measured = [one for one in tested if not one.missing]
    comparisons = dict.fromkeys(one.family.comparison for one in measured)
    ways = dict.fromkeys((one.family.convention, one.family.tuned) for one in measured)
    if not measured:
        return []
    found = {(one.claim.says, *one.family): one.verdict for one in measured}
    rows = []
    for says in dict.fromkeys(one.claim.says for one in measured):
        cells = [[found.get((says, comparison, *way), "–") for way in ways] for comparison in comparisons]
        # in bold where something was decided: the rest is what so few runs cannot tell
        rows.append([*entries(says), *(Entry(" / ".join(each), {HOLDS, FAILS} & {*each} != set()) for each in cells)])
    told = " / ".join(f"convention {who}{', tuned' if tuned else ''}" for who, tuned in ways)
    notes = [f"In each cell: {told}. – is what was not measured. The tests are in the tables below."]
    return [Table("All verdicts", ["the paper says", *comparisons], rows, notes).markdown()]


def _claims(tested: Sequence[Finding]) -> list[str]:
    """A table for each family, and a count of verdicts."""
    parts = []
    for family in dict.fromkeys(one.family for one in tested):
        group = [one for one in tested if one.family == family]
        if all(one.missing for one in group):
            continue
        counts = Counter(one.verdict for one in group)
        rows = [_row(one) for one in group if not one.missing]
        head = ["the paper says", "where", "compared", "difference", "runs", "p", "p, Holm", "verdict"]
        counted = ", ".join(f"{counts[v]} {v}" for v in (HOLDS, FAILS, UNDECIDED, UNMEASURED) if counts[v])
        notes = [f"{one.claim.says}: {one.claim.note}." for one in group if one.claim.note and not one.missing]
        notes += [f"{says}: no entropy of these texts is recorded, so whether they repeat themselves is not checked."
                  for says in dict.fromkeys(one.claim.says for one in group if not all(t.checked for t in one.trials))]  # fmt: skip
        parts.append(Table(family.name, head, rows, [f"{counted}.", *notes]).markdown())
    return parts or ["No claim can be tested with what is measured.\n"]


def _row(one: Finding) -> list[Entry]:
    claim = one.claim
    said = claim.says + (f" ({claim.printed})" if claim.printed else "")
    against = one.systems[1] or number(claim.than)
    compared = f"{claim.first.value} of {one.systems[0]} {_relation(claim)} {against}"
    if claim.same_weights and claim.second is not None:
        compared = f"{claim.first.value} {_relation(claim)} {claim.second.value} of {one.systems[0]}"
    verdict = Entry(one.verdict + _why(one), one.verdict in (HOLDS, FAILS))
    # where it could only have been refuted, and was not, the p of that would read as one of the claim
    known = not math.isnan(one.p_for) or one.verdict == FAILS
    p = [_p(value if known else math.nan) for value in (one.p, one.adjusted)]
    return entries(said, claim.where, compared, _effects(one), _runs(one), *p, verdict)


def _relation(claim: Claim) -> str:
    return {"lower": "below", "higher": "above", "close": f"within {claim.margin:g} of"}[claim.expect]


def _p(value: float) -> str:
    return "–" if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _effects(one: Finding) -> str:
    """The difference at each place: in percent where logarithms are compared."""
    shown = [_effect(one, trial) for trial in one.trials]
    if len(shown) > 4:
        shown = [shown[0], "…", *shown[len(shown) // 2 : len(shown) // 2 + 1], "…", shown[-1]]
    return "; ".join(shown)


def _effect(one: Finding, trial: Trial) -> str:
    at = f" ({trial.place})" if trial.place else ""
    return f"{_amount(one.claim, trial.difference.value)}{'' if trial.fair or not trial.checked else ' ‡'}{at}"


def _amount(claim: Claim, value: float) -> str:
    if math.isnan(value):
        return "–"
    if claim.first.value in LOGARITHMIC:
        return f"{100 * math.expm1(value):+.1f} %".replace("-", "−")
    return f"{value:+.3g}".replace("-", "−")


def _runs(one: Finding) -> str:
    tested = [t for t in one.trials if not math.isnan(t.difference.value)]
    return ", ".join(sorted({_sizes(trial) for trial in tested}))


def _sizes(trial: Trial) -> str:
    if trial.second is None:
        return str(len(trial.first))
    if trial.paired:
        return f"{len({*trial.first} & {*trial.second})}, paired"
    return f"{len(trial.first)} and {len(trial.second)}"


def _why(one: Finding) -> str:
    """What an undecided claim lacks, and what is missing of one that does not hold."""
    reasons = _faults(one)
    if one.verdict == UNDECIDED:
        if any(not trial.fair and trial.checked for trial in one.trials):
            reasons.append("the texts of lower perplexity repeat themselves (‡)")
        elif any(not trial.fair for trial in one.trials):
            reasons.append("no entropy is recorded that would tell whether the texts repeat themselves")
        reasons += _spreadless(one)
    return ": " + "; ".join(reasons) if reasons else ""


def _spreadless(one: Finding) -> list[str]:
    """Where runs have no spread to test by: they do not differ, or there is one alone."""
    equal = [trial.place for trial in one.trials if trial.difference.error == 0]
    sizes = [len(side) for t in one.trials for side in (t.first, t.second) if side is not None]
    at = f" at {', '.join(equal)}" if any(equal) else ""
    told = [f"the runs do not differ{at}, which is no spread to test by"] if equal else []
    return [*told, *(["one run has no spread"] if 1 in sizes else [])]


def _faults(one: Finding) -> list[str]:
    """What keeps tests from showing that a claim holds; budgets where the same is missing stand together."""
    together: dict[Fault, list[int]] = {}
    for fault in dict.fromkeys(fault for trial in one.trials for fault in trial.faults):
        together.setdefault(fault._replace(places=()), []).extend(fault.places)
    return [told(fault._replace(places=tuple(places))) for fault, places in together.items()]


def _how(tested: Sequence[Finding]) -> str:
    """The tests, and what they could have found at all."""
    sizes = [len(family) for family in _families(tested)]
    m = max(sizes, default=1)
    runs = sorted({len(t.first) for one in tested for t in one.trials if len(t.first) > 1})
    rows = []
    for n in runs:
        two, one = Difference(0.0, math.sqrt(2 / n), 2 * n - 2), Difference(0.0, math.sqrt(1 / n), n - 1)
        split, flip = 2 / math.comb(2 * n, n), 2 / 2**n
        powers = [f"{d.detectable(alpha):.1f}" for d in (two, one) for alpha in (LEVEL, LEVEL / m)]
        rows.append(entries(n, *powers, f"{min(1.0, split):.3g}", f"{min(1.0, flip):.3g}"))
    head = ["runs a side"]
    head += [f"{what}: {which}" for what in ("two systems", "same weights") for which in ("alone", f"first of {m}")]
    head += ["exact p at least, two systems", "exact p at least, same weights"]
    notes = [
        "Differences between systems that would be found four times in five, in standard deviations over runs: at 5 % for one claim "
        f"alone, and for the first of {m} after Holm's correction; and the smallest two-sided p that an exact permutation test can "
        "have. Where that is above 0.05, the exact test cannot decide, and the verdict rests on the t-test's assumption that runs "
        "vary about normally.",
        "Tests: Welch's t of the runs' values for systems of different weights, paired t by seed for numbers of the same weights; "
        "perplexities by their logarithms. A claim about every budget holds if it is shown at each (the largest p); it does not hold if "
        "the contrary is shown at one (the smallest p times their number). p is twice the smaller of the two, corrected by Holm for "
        f"all claims that the plan has for its table, measured or not; verdicts at {LEVEL:g}. Each table is corrected by itself, and nothing across tables. Without a budget or run that is planned a claim cannot hold. Texts, rows and questions are the same for all runs: how numbers would vary with "
        "another text is not in it.",
    ]
    exact = [_exact_row(one, t) for one in tested for t in one.trials if not math.isnan(t.exact)]
    every = Table("Every test", ["claim", "family", "at", "difference", "95 %", "df", "exact p"], exact)
    power = Table("What so many runs can decide", head, rows, notes).markdown()
    return power + "\n" + (folded("Every test by itself", every.markdown()) if exact else "")


def _families(tested: Sequence[Finding]) -> list[list[Finding]]:
    names = dict.fromkeys(one.family for one in tested)
    return [[one for one in tested if one.family == name and not math.isnan(one.p)] for name in names]


def _exact_row(one: Finding, trial: Trial) -> list[Entry]:
    d = trial.difference
    width = d.half_width()
    span = (
        "–" if math.isnan(width) else f"{_amount(one.claim, d.value - width)} to {_amount(one.claim, d.value + width)}"
    )
    df = "–" if math.isnan(d.df) else f"{d.df:.1f}"
    place = trial.place or "–"
    return entries(one.claim.name, one.family.name, place, _amount(one.claim, d.value), span, df, f"{trial.exact:.3f}")


# -- what is missing, samples, provenance -------------------------------------------------------------------------------


def _missing(scale: Scale, parts: Sequence[Part], found: Mapping[str, Record], tested: Sequence[Finding]) -> list[str]:
    undone = [part.name for part in parts if part.name not in found]
    lines = [
        f"- {escaped(one.claim.says)} ({escaped(one.family.name)}): {escaped(one.missing)}."
        for one in tested
        if one.missing
    ]
    planned = {part.kind for part in parts}
    lines += [
        f"- {kind}: not in this scale{' (no endpoint was given)' if kind == 'judge' else ''}."
        for kind in KINDS
        if kind not in planned
    ]
    shown = (
        undone
        if len(undone) <= SHOWN_MISSING
        else [*undone[:SHOWN_MISSING], f"… and {len(undone) - SHOWN_MISSING} more"]
    )
    lines += [f"- not done yet: {escaped(name)}" for name in shown]
    return ["## What is missing\n", "\n".join(lines or ["Nothing that was planned."]) + "\n"]


def _samples(records: Sequence[Record]) -> list[str]:
    """One text of each system's first run, at its most evaluations, in our own convention."""
    parts = []
    drawn = [one for one in records if one.kind == "generation" and one.result.get("sample")]
    for system, group in tables.by_system(drawn).items():
        best = max(group, key=lambda one: (not one.tuned, one.convention == "ours", place_of(one), -one.seed))
        took = number(best.result["nfe"]["value"])  # an autoregressive one's, whatever it was asked for
        parts.append(f"### {escaped(system)}, {took} evaluations\n")
        parts.append(quoted("", str(best.result["sample"])))
    return [folded("A text of each system", "\n".join(parts))] if parts else []


def _provenance(records: Sequence[Record]) -> list[str]:
    trained = [one for one in records if one.kind == "train"]
    places = Counter(_made_by(one) for one in records)
    lines = ["## Provenance\n", *([tables.training_table(trained).markdown()] if trained else [])]
    lines += ["\n".join(f"- {count} parts on {escaped(name)}" for name, count in places.items()) + "\n"]
    return lines


def _made_by(one: Record) -> str:
    """Device, versions, and the commit where it was recorded."""
    versions = [f"{name} {version}" for name, version in one.made["versions"].items()]
    return f"{one.made['device']}; " + ", ".join(
        [*versions, *([f"commit {one.made['commit']}"] if "commit" in one.made else [])]
    )
