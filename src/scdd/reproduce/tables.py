"""Tables over seeds: each number is a mean over training runs, ± its standard error; unlike things have tables of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scdd.evals.measure.stats import mean
from scdd.evals.report.names import listed
from scdd.evals.report.tables import NONE, Entry, Table, entries, number, with_error
from scdd.reproduce.claims import value_of
from scdd.reproduce.records import Record
from scdd.reproduce.sides import place_of
from scdd.reproduce.verdicts import FAR

UNVARIED = "‡"
ROUNDING = 1e-12  # relative spread of what is equal
Group = Sequence[Record]


def over_seeds(values: Iterable[float | None]) -> str:
    """Mean ± standard error over seeds; a single one stands alone. Runs that came to no number are counted beside it."""
    given = [value for value in values if value is not None]
    known = [value for value in given if math.isfinite(value)]
    lost = f" ({len(given) - len(known)} of {len(given)} not finite)" if len(known) < len(given) else ""
    if not known:
        return NONE.text + lost
    found = mean(known)
    if found.units < 2:
        return number(found.value) + lost
    return with_error(found.value, found.error if found.error > ROUNDING * abs(found.value) else 0.0) + lost


def by_system(records: Group) -> dict[str, list[Record]]:
    """Records of each system, in the order in which systems come."""
    found: dict[str, list[Record]] = {}
    for one in records:
        found.setdefault(one.system, []).append(one)
    return found


def way_name(convention: str, tuned: bool) -> str:
    """What a table's numbers have in common."""
    return f"convention {convention}" + (", tuned" if tuned else "")


def seeds_note(records: Group) -> str:
    """How many seeds the numbers of a table are over."""
    counts = sorted({len({one.seed for one in group}) for group in by_system(records).values()})
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Mean over {seeds} training runs ± its standard error; a number without ± is of one run."


NO_BOUND = (
    "These are no bounds: the step to clean text is never drawn, and constants are left out. SCDD's are more than 0 for a perfect model, "
    "MDLM's have none, so the two are no like numbers (docs/evaluation.md)."
)


def likelihood_tables(records: Group, way: str) -> list[Table]:
    """Bounds in one table, exact numbers in another; what the authors report is neither."""
    tables = []
    for exact in (False, True):
        group = [one for one in records if bool(one.result.get("exact")) is exact]
        rows = []
        for system, own in by_system(group).items():
            nats = [value_of("nelbo", one.result) for one in own]
            ppl, bits = ([one.result.get(name) for one in own] for name in ("ppl", "bits_per_byte"))
            rows.append(entries(system, over_seeds(nats), over_seeds(ppl), over_seeds(bits), len(own)))
        if rows:
            texts = listed(str(one.result.get("text")) for one in group)
            theirs = group[0].convention == "authors"
            what = "exact, autoregressive" if exact else f"as reported, {way}" if theirs else f"bounds, {way}"
            notes = [f"{seeds_note(group)} Text: {texts}.", *([NO_BOUND] if theirs and not exact else [])]
            head = ["system", "nats per token", "PPL", "bits per byte", "runs"]
            tables.append(Table(f"Likelihood: {what}", head, rows, notes))
    return tables


def budget_table(records: Group, title: str, value: str, notes: Sequence[str] = (), marked: bool = False) -> Table:
    """A value by system and network evaluations; with marks where texts repeat themselves."""
    budgets = sorted({place_of(one) for one in records})
    rows, poor = [], False
    for system, own in by_system(records).items():
        row = []
        for n in budgets:
            here = [one for one in own if place_of(one) == n]
            mark = UNVARIED if marked and here and _unvaried(here, [o for o in records if place_of(o) == n]) else ""
            poor = poor or bool(mark)
            row.append(Entry(over_seeds(value_of(value, one.result) for one in here) + mark))
        rows.append(entries(system, *row))
    told = [seeds_note(records), *notes]
    if poor:
        told.append(
            f"{UNVARIED} unigram entropy more than {FAR:g} nats below the column's median: repetition lowers perplexity, so "
            "these are no better texts."
        )
    return Table(title, ["system", *map(str, budgets)], rows, told)


def _unvaried(own: Group, column: Group) -> bool:
    means = []
    for group in by_system(column).values():
        values = [value for one in group if (value := value_of("entropy", one.result)) is not None]
        means += [sum(values) / len(values)] if values else []
    mine = [value for one in own if (value := value_of("entropy", one.result)) is not None]
    if not mine or not means:
        return False
    return sum(mine) / len(mine) < sorted(means)[len(means) // 2] - FAR


def generation_tables(records: Group, way: str) -> list[Table]:
    """Perplexity and entropy by evaluations; what takes other numbers of evaluations than asked for stands apart."""
    equal = [one for one in records if one.result["nfe"]["value"] == place_of(one)]
    other = [one for one in records if one not in equal]
    tables = []
    if equal:
        judges = listed(str(one.result.get("judge")) for one in equal)
        sizes = listed(str(one.settings["num"]) for one in equal)
        notes = [f"Lower is better; {sizes} texts for each run, judged by {judges}."]
        title = f"Generative perplexity by network evaluations: {way}"
        tables.append(budget_table(equal, title, "gen_ppl", notes, marked=True))
        tables.append(budget_table(equal, f"Unigram entropy by network evaluations: {way}", "entropy", ["Nats."]))
    rows = []
    for system, group in by_system(other).items():
        for n in sorted({place_of(one) for one in group}):
            own = [one for one in group if place_of(one) == n]
            took = over_seeds(one.result["nfe"]["value"] for one in own)
            values = [over_seeds(value_of(name, one.result) for one in own) for name in ("gen_ppl", "entropy")]
            rows.append(entries(system, took, *values))
    if rows:
        head = ["system", "evaluations a text", "Gen PPL", "entropy"]
        tables.append(Table(f"Generation at other numbers of evaluations: {way}", head, rows, [seeds_note(other)]))
    return tables


def correction_tables(records: Group, way: str) -> list[Table]:
    """Rates beside the intrinsic ones, what they are worth, and when they happen."""
    rows, moments = [], []
    for system, group in by_system(records).items():
        for n in sorted({place_of(one) for one in group}):
            own = [one.result for one in group if place_of(one) == n]
            rates = [over_seeds(_at(r, name) for r in own) for name in ("rate", "intrinsic", "excess", "rate_per_step")]
            worth = [
                over_seeds(_at(r, name, "ppl") for r in own) for name in ("ppl_before", "ppl_after", "ppl_uncorrected")
            ]
            rows.append(entries(system, n, *rates, over_seeds(_at(r, "remasked") for r in own), *worth))
            for name, curve in (("measured", "cumulative"), ("intrinsic", "intrinsic_cumulative")):
                shares = [over_seeds(_point(r.get(curve), k) for r in own) for k in (1, 2, 3)]
                moments.append(entries(system, n, name, *shares))
    head = ["system", "evaluations", "corrections a token", "intrinsic", "excess", "per step", "remasked"]
    notes = [
        f"{seeds_note(records)} Intrinsic: what a perfect denoiser would do, since the process draws noise and takes it back; "
        "the excess is the model's. PPL before: as each position first became visible; uncorrected: visible tokens never change."
    ]
    parts = ["system", "evaluations", "corrections", "after a quarter", "after half", "after three quarters"]
    about = ["Share of all corrections that is done by then."]
    return [
        Table(f"Self-correction: {way}", [*head, "PPL before", "PPL after", "PPL uncorrected"], rows, notes),
        Table(f"Dynamics of self-correction: {way}", parts, moments, about),
    ]


def _at(result: Mapping[str, Any], *names: str) -> float | None:
    node: Any = result
    for name in names:
        node = node.get(name) if isinstance(node, Mapping) else None
    return node if isinstance(node, int | float) else None


def _point(curve: Any, quarter: int) -> float | None:
    return float(curve[quarter * (len(curve) - 1) // 4]) if isinstance(curve, list) and len(curve) > 4 else None


def recovery_table(records: Group, way: str) -> Table:
    """Touched, restored, damaged, and what is gained in tokens."""
    rows = []
    for system, group in by_system(records).items():
        ways = dict.fromkeys((str(one.result["repair"]), place_of(one)) for one in group)
        for repair, count in sorted(ways):
            own = [one.result for one in group if (one.result["repair"], place_of(one)) == (repair, count)]
            rates = [over_seeds(_at(r, name, "value") for r in own) for name in ("touch", "recovery", "damage")]
            net = over_seeds(value_of("mended", r) for r in own)
            ppl = [
                over_seeds(_at(r, name, "ppl") for r in own) for name in ("ppl_clean", "ppl_corrupted", "ppl_repaired")
            ]
            rows.append(entries(system, count, repair, *rates, net, *ppl))
    head = ["system", "K", "repair", "touched", "recovered", "damaged", "mended", "PPL clean", "corrupted", "repaired"]
    texts = listed(str(one.result.get("text")) for one in records)
    notes = [
        f"{seeds_note(records)} Touched and recovered: of the corrupted tokens; damaged: of all others; mended: tokens restored "
        f"less tokens damaged, of a row. Text: {texts}."
    ]
    return Table(f"Recovery with damage: {way}", head, rows, notes)


def zero_shot_table(records: Group) -> Table:
    """Accuracies in percent."""
    tasks = list(dict.fromkeys(task for one in records for task in one.result["tasks"]))
    rows = []
    for system, own in by_system(records).items():
        each = [over_seeds(_percent(_at(one.result, "tasks", task, "acc")) for one in own) for task in tasks]
        rows.append(entries(system, *each, over_seeds(_percent(value_of("accuracy", one.result)) for one in own)))
    questions = listed(str(task["questions"]) for one in records for task in one.result["tasks"].values())
    notes = [f"Percent of questions, {questions} a task, whose best-scored answer is right. {seeds_note(records)}"]
    return Table("Zero-shot accuracy", ["system", *tasks, "mean"], rows, notes)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def judge_table(records: Group, way: str) -> Table:
    """Wins of the first system over the second, by each judge."""
    rows = []
    keys = dict.fromkeys(
        (one.system, str(one.result["against"]), place_of(one), str(one.result["model"])) for one in records
    )
    for system, against, n, model in keys:
        paired = [one.result for one in records if (one.system, place_of(one)) == (system, n)]
        own = [r for r in paired if (r["against"], r["model"]) == (against, model)]
        wins = over_seeds(_percent(_at(r, "wins", "rate")) for r in own)
        rows.append(entries(system, against, n, model, wins, over_seeds(_at(r, "wins", "ties") for r in own)))
    head = ["system", "against", "evaluations", "judge", "wins, %", "ties"]
    return Table(f"LLM as judge: {way}", head, rows, [f"Of the pairs that are no ties. {seeds_note(records)}"])


def tuning_table(records: Group) -> Table:
    """What was chosen, and of how many."""
    rows = []
    for one in records:
        chosen, before = one.result["chosen"], one.result["untuned"]
        words = ", ".join(f"{name} {value}" for name, value in chosen.items()) or "as it was"
        best = next((t for t in one.result["tried"].values() if t["values"] == chosen), before)
        ppl, entropy = (f"{number(before[name])} → {number(best[name])}" for name in ("ppl", "entropy"))
        rows.append(entries(one.system, words, one.result["count"], ppl, entropy))
    asked = records[0].settings
    notes = [
        f"The lowest generative perplexity at {asked['nfe']} evaluations among combinations that lose at most "
        f"{asked['entropy_loss']:g} nats of entropy, on {asked['num']} texts of the first seed's weights that no other number is "
        "about; the same rule and the same temperatures and grids for every system."
    ]
    return Table("Tuning", ["system", "chosen", "tried", "PPL", "entropy"], rows, notes)


def training_table(records: Group) -> Table:
    """Every run behind the numbers."""
    rows = []
    for one in records:
        weights, seconds = str(one.made.get("weights"))[:12], f"{one.made['seconds']:.0f} s"
        valid = number(one.result.get("valid_nelbo"))
        rows.append(
            entries(one.training, one.seed, one.settings["recipe"], one.result["steps"], valid, weights, seconds)
        )
    head = ["training", "seed", "recipe", "steps", "valid NELBO", "weights, SHA-256", "last process"]
    return Table("Trainings", head, rows, ["The time is that of the process that finished the run."])


Builder = Callable[[Group, str], list[Table]]
BY_KIND: dict[str, Builder] = {
    "likelihood": likelihood_tables,
    "generation": generation_tables,
    "correction": correction_tables,
    "recovery": lambda records, way: [recovery_table(records, way)],
    "zero-shot": lambda records, way: [zero_shot_table(records)],
    "judge": lambda records, way: [judge_table(records, way)],
}
HEADINGS = {
    "likelihood": "Likelihood",
    "generation": "Generation by steps",
    "correction": "Self-correction",
    "recovery": "Recovery with damage",
    "zero-shot": "Zero-shot",
    "judge": "LLM as judge",
}
