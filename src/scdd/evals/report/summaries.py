"""Tables from finished measurements, a function for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scdd.evals.measure.diversity import FIRST
from scdd.evals.measure.judge_client import ASPECTS
from scdd.evals.measure.specs import Repair, repair_name
from scdd.evals.measure.store import Measurement
from scdd.evals.report.names import SHORT, distinct_names, listed, own_tokens, text_of, vocab_of
from scdd.evals.report.paper import paper, paper_of, printed
from scdd.evals.report.tables import NONE, Entry, Table, any_paper, entries, number, stars, with_error

PAPERS_REPAIRS = (Repair().name, Repair(nucleus=True).name, Repair(convention="authors").name)


def correction_table(measurements: Sequence[Measurement]) -> Table:
    """`tab:correction_rate`, with the intrinsic rate and the excess that the paper leaves out."""
    scored = any("judge" in one.result for one in measurements)
    rows = []
    for one, name in _ordered(measurements, lambda one: one.settings["nfe"]):
        result, nfe = one.result, one.settings["nfe"]
        beside = printed("tab:correction_rate", paper_of(one), "OWT", nfe)
        rate = Entry(with_error(result["rate"], result["rate_error"]), paper=beside)
        others = [number(result[key], 3) for key in ("rate_per_step", "remasked")]
        entry = entries(name, nfe, rate, number(result["intrinsic"], 3), f"{result['excess']:+.3f}", *others)
        rows.append([*entry, *(_worth(result) if scored else [])])
    head = ["system", "evaluations", "corrections a token", "intrinsic", "excess", "per step", "remasked"]
    notes = [
        "Intrinsic: what a perfect denoiser would do, since the process draws noise and takes it back; the excess is the "
        f"model's. {listed(str(one.settings['num']) for one in measurements)} texts for each number."
    ]
    if any_paper(rows):
        notes.append("[ ] is the paper's measured rate on OWT.")
    if scored:
        head += ["PPL before", "PPL after", "gain, nats a token", "PPL without correction"]
        notes.append(
            "Before: every position as it first became visible. Without correction: visible tokens never change, masks are "
            "filled from x_θ alone. Gain by paired t-test, without correction by a test of two ratios: * p < 0.05, ** p < 0.01."
        )
    return Table("Self-correction", head, rows, notes)


def _ordered(measurements: Sequence[Measurement], place: Callable[[Measurement], Any]) -> list[tuple[Measurement, str]]:
    """Measurements with their names: systems in the order in which they came, each by its place."""
    systems = list(dict.fromkeys(one.label for one in measurements))
    named = list(zip(measurements, distinct_names(measurements, place), strict=True))
    return sorted(named, key=lambda pair: (systems.index(pair[0].label), pair[1], place(pair[0])))


def _worth(result: dict[str, Any]) -> list[Entry]:
    """What the reference LM said of the corrections."""
    if "judge" not in result:
        return [NONE] * 4
    gain, without = result["benefit"], result.get("ppl_uncorrected")
    return entries(
        _ppl(result["ppl_before"]),
        _ppl(result["ppl_after"]),
        with_error(gain["value"], gain["error"]) + stars(gain["p"]),
        NONE if without is None else _ppl(without) + stars(result["p_uncorrected"]),
    )


def _ppl(result: dict[str, Any]) -> str:
    return with_error(result["ppl"], result["error"])


def recovery_table(measurements: Sequence[Measurement], among: str = "") -> Table:
    """`tab:exact-recovery`, with the damage that the paper leaves out; typing errors have the same columns."""
    typing = bool(measurements) and measurements[0].kind == "typos"
    scored = any("judge" in one.result for one in measurements)
    rows = []
    for one, name in _ordered(measurements, _repair_order):
        result, settings = one.result, one.settings
        touch, recovery, corrupted, repaired = _papers_recovery(one)
        count = f"{result['errors']:.1f}" if typing else str(settings["count"])
        sides = {"touch": touch, "recovery": recovery, "damage": None}
        rates = [Entry(with_error(result[k]["value"], result[k]["error"]), paper=v) for k, v in sides.items()]
        sides = {"ppl_clean": None, "ppl_corrupted": corrupted, "ppl_repaired": repaired}
        ppl = [Entry(_ppl(result[k]), paper=v) if k in result else NONE for k, v in sides.items()]
        rows.append(entries(name, count, repair_name(settings), *rates, *(ppl if scored else [])))
    head = ["system", "errors a text" if typing else "K", "repair", "touched", "recovered", "damaged"]
    head += ["PPL clean", "PPL corrupted", "PPL repaired"] if scored else []
    sizes, texts = listed(str(one.result["rows"]) for one in measurements), listed(map(text_of, measurements))
    notes = [
        f"Touched and recovered: of the corrupted {'words' if typing else 'tokens'}. Damaged: of all others. Errors are over "
        f"texts, {sizes} rows of {texts}."
    ]
    if typing:
        notes.append("Errors are made as far as a text has words for them; a swapped pair counts as two.")
    if any_paper(rows):
        notes.append(
            "[ ] is the paper's value: SCDD (p_u=0.2) on OWT, judged by GPT-2 large, x_θ probably cut to its nucleus before the step."
        )
    if scored:
        notes.append(f"PPL under {listed(one.result['judge'] for one in measurements if 'judge' in one.result)}.")
    title = "Recovery from typing errors" if typing else "Recovery of random tokens"
    return Table(title + among, head, rows, notes)


def _papers_recovery(one: Measurement) -> list[str | None]:
    """The paper's touch, recovery, and perplexities of corrupted and repaired texts, for its own system and repair."""
    known = paper()["tab:exact-recovery"]["rows"].get(one.settings["count"])
    its_system = one.kind == "recovery" and paper_of(one) == "SCDD (p_u=0.2)"
    if known is None or not its_system or repair_name(one.settings) not in PAPERS_REPAIRS:
        return [None] * 4
    return [f"{value:g}" for value, _ in known]


def _repair_order(one: Measurement) -> tuple[Any, ...]:
    """By the way of repair, and the number of errors."""
    settings = one.settings
    return settings.get("threshold") or 0.0, settings["last"], settings["steps"], settings["count"]


def repair_table(measurements: Sequence[Measurement]) -> Table:
    """What repair does to sentences with references."""
    head = ["system", "sentences of", "mode", "strength", "distance", "change, %", "better, worse", "GLEU"]
    head += ["precision", "recall", "F0.5", "clean touched, %", "words harmed, %"]

    def place(one: Measurement) -> tuple[Any, ...]:
        return text_of(one), one.settings["mode"], one.settings["strength"]

    def between(value: dict[str, float], scale: float = 1.0, digits: int = 2) -> str:
        low, middle, high = (f"{scale * value[name]:.{digits}f}" for name in ("low", "value", "high"))
        return f"{middle} ({low} – {high})"

    rows = []
    for one, name in _ordered(measurements, place):
        result, (text, mode, strength) = one.result, place(one)
        touched, harm = result["clean_touched"], result["harmed"]
        row = [name, f"{text}, {result['sentences']}", mode, f"{strength:g}", f"{result['before']} → {result['after']}"]
        row += [between(result["change"], 100, 1), f"{result['better']}, {result['worse']}"]
        row.append(f"{result['gleu_before']['value']:.3f} → {with_error(**result['gleu'])}")
        row += [between(result[key]) for key in ("precision", "recall", "f05")]
        row.append("–" if touched is None else with_error(100 * touched["value"], 100 * touched["error"]))
        row.append(with_error(100 * harm["value"], 100 * harm["error"]))
        rows.append(entries(*row))
    notes = [
        "Distance: words to insert, delete or substitute until the nearest reference is reached, over all sentences. Precision and "
        "recall: of edits, against the reference kindest to the repair; on made errors recall is the share restored exactly. Clean "
        "touched: of the sentences that needed nothing. Words harmed: of those that the nearest reference leaves alone. In brackets: "
        "95 % bootstrap intervals over sentences."
    ]
    return Table("Repair", head, rows, notes)


def repair_kinds_table(measurements: Sequence[Measurement]) -> Table:
    """Right, wrong and missed edits by the kind of mistake."""
    head = ["system", "sentences of", "mode", "strength", "mistake", "right", "wrong", "missed", "precision", "recall"]

    def place(one: Measurement) -> tuple[Any, ...]:
        return text_of(one), one.settings["mode"], one.settings["strength"]

    def share(part: int, rest: int) -> str:
        return f"{part / (part + rest):.2f}" if part + rest else "–"

    rows = []
    for one, name in _ordered(measurements, place):
        text, mode, strength = place(one)
        for kind, n in one.result["kinds"].items():
            right, wrong, missed = (n[each] for each in ("right", "wrong", "missed"))
            row = [name, f"{text}, {one.result['sentences']}", mode, f"{strength:g}", kind, right, wrong, missed]
            rows.append(entries(*map(str, row), share(right, wrong), share(right, missed)))
    notes = [
        "The same edits as above. What kind of mistake one mends is told from its words, of the references' as of ours: a misspelt word "
        "is in no list of words, or two letters away from what was meant; small words are articles, prepositions, forms of be and have."
    ]
    return Table("Repair by kind of mistake", head, rows, notes)


def zero_shot_table(measurements: Sequence[Measurement]) -> Table:
    """`tab:benchmark_accuracy`: accuracies in percent with their errors over questions."""
    known = paper()["tab:benchmark_accuracy"]
    *papers_tasks, papers_mean = known["columns"]
    measured = {task for one in measurements for task in one.result["tasks"]}
    columns = [task for task in papers_tasks if task in measured]
    more = sorted(measured - set(columns))
    rows = []
    for name, one, tasks in _by_questions(measurements):
        values = known["rows"].get(paper_of(one) or "")
        beside = dict(zip(known["columns"], (f"{v:.2f}" for v in values or []), strict=False))
        percent = {k: with_error(100 * task["acc"], 100 * task["error"]) for k, task in tasks.items()}
        row = [Entry(percent.get(k, "–"), paper=beside.get(k)) for k in (*columns, *more)]
        mean, whole = NONE, beside.get(papers_mean) if columns == papers_tasks else None
        if len(tasks) == len(measured):  # means of other tasks are of other things
            mean = Entry(f"{100 * sum(task['acc'] for task in tasks.values()) / len(tasks):.2f}", paper=whole)
        rows.append(entries(name, *row, mean))
    notes = ["Percent of questions whose best-scored answer is right; [ ] is the paper's. ± is over the questions."]
    return Table("Zero-shot accuracy", ["system", *columns, *more, "mean"], rows, notes)


def _by_questions(measurements: Sequence[Measurement]) -> list[tuple[str, Measurement, dict[str, Any]]]:
    """(Name, measurement, answers by task), in a row what one system said of different tasks; apart, and named by the questions,
    where it has answered one task several times."""
    found = []
    for label in dict.fromkeys(one.label for one in measurements):
        own = [one for one in measurements if one.label == label]
        tasks = {name: task for one in own for name, task in one.result["tasks"].items()}
        asked = [{**one.settings, "tasks": None, "text": None} for one in own]
        if len(tasks) == sum(len(one.result["tasks"]) for one in own) and all(each == asked[0] for each in asked):
            found.append((label, own[0], tasks))
            continue
        several = len({one.settings.get("text", "") for one in own}) > 1
        for one in own:
            name = f"{label}, {text_of(one)} #{one.settings['text'][:SHORT]}" if "text" in one.settings else label
            found.append((name if several else label, one, one.result["tasks"]))
    return found


def judge_table(measurements: Sequence[Measurement]) -> Table:
    """`tab:matched_compact` and `tab:crossratio_compact`: first (second), with the paper's marks."""
    ordered = sorted(measurements, key=lambda one: one.settings["nfe"])

    def score(aspect: dict[str, Any]) -> Entry:
        better = aspect["p"] < 0.05 and aspect["first"] > aspect["second"]
        return Entry(f"{aspect['first']:.2f} ({aspect['second']:.2f}){stars(aspect['p'])}", better)

    def rate(wins: dict[str, Any]) -> Entry:
        if wins["rate"] is None:
            return NONE
        return Entry(f"{100 * wins['rate']:.1f} %{stars(wins['p'])}", wins["p"] < 0.05 and wins["rate"] > 0.5)

    rows = [entries(aspect, *(score(one.result["aspects"][aspect]) for one in ordered)) for aspect in ASPECTS]
    wins = [one.result["wins"] for one in ordered]
    rows.append(entries("win rate", *map(rate, wins)))
    rows.append(entries("wins, losses, ties", *(f"{w['first']}, {w['second']}, {w['ties']}" for w in wins)))
    head = ordered[0]
    first, second = head.result["systems"]
    notes = [
        f"{first} ({second}), mean scores from 1 to 10 by {head.result['model']} on {head.result['texts']} texts of "
        f"{text_of(head)} noised to t = {head.settings['t']:g}, the same for both; columns are network evaluations.",
        f"Paired t-tests; binomial test of the wins of {first}, ties apart: * p < 0.05, ** p < 0.01. Bold: significantly "
        f"better than {second}.",
    ]
    columns = [str(one.settings["nfe"]) for one in ordered]
    return Table(f"LLM as judge: {first} against {second}", ["", *columns], rows, notes)


def mauve_table(measurements: Sequence[Measurement]) -> Table:
    """MAUVE by system and budget; the error is over the seeds of its clustering."""

    def place(one: Measurement) -> tuple[Any, ...]:
        return one.settings["nfe"], text_of(one), one.result["features"]

    rows = []
    for one, name in _ordered(measurements, place):
        (nfe, text, features), value = place(one), with_error(one.result["value"], one.result["error"])
        rows.append(entries(name, nfe, value, one.settings["num"], text, features))
    notes = [
        "1 is as human as the human texts; only numbers of equal texts and features can be compared. ± is over the seeds of "
        "the clustering alone. There is a cluster for ten texts: below some hundreds the number is coarse."
    ]
    return Table("MAUVE", ["system", "evaluations", "MAUVE", "texts", "against", "features"], rows, notes)


class Point(NamedTuple):
    """One way of sampling: perplexity (lower is better) and entropy (higher is more diverse)."""

    label: str
    nfe: int
    temperature: float
    top_p: float
    ppl: float
    entropy: float
    vocab: str = ""

    @classmethod
    def of(cls, one: Measurement) -> Point:
        """A generation measurement as a point."""
        result, filters = one.result, one.result["filters"]
        sampling = round(result["nfe"]["value"]), filters["temperature"], filters["top_p"]
        return cls(one.label, *sampling, result["ppl"], result["diversity"]["entropy"]["value"], vocab_of(one))

    def beats(self, other: Point) -> bool:
        """Whether it is better in one respect and no worse in the other, at as many evaluations and in the same tokens."""
        as_good = self.ppl <= other.ppl and self.entropy >= other.entropy
        alike = self.nfe == other.nfe and self.vocab == other.vocab
        return alike and as_good and (self.ppl, self.entropy) != (other.ppl, other.entropy)


def pareto(points: Sequence[Point]) -> set[Point]:
    """Points that no other of the same number of evaluations beats."""
    return {point for point in points if not any(other.beats(point) for other in points)}


def frontier_table(measurements: Sequence[Measurement], among: str = "") -> Table:
    """Every point; bold is on the frontier of its number of evaluations."""
    pairs = [(Point.of(one), one.result) for one in measurements]
    best, in_words = pareto([point for point, _ in pairs]), any("in_words" in result for _, result in pairs)
    rows = []
    for p, result in sorted(pairs, key=lambda pair: (pair[0].nfe, pair[0].ppl)):
        on, diversity = p in best, result["diversity"]
        ppl, interval = Entry(with_error(p.ppl, result["error"]), on), f"{result['low']:.4g} – {result['high']:.4g}"
        entropy = Entry(with_error(p.entropy, diversity["entropy"]["error"]), on)
        others: list[str | Entry] = [f"{diversity[name]['value']:.3f}" for name in ("distinct_2", "repetition")]
        if in_words:
            others.append(_word_entropy(result))
        filters = f"{p.temperature:g}", f"{p.top_p:g}"
        rows.append(entries(p.label, p.nfe, *filters, ppl, interval, entropy, *others))
    head = ["system", "evaluations", "temperature", "top-p"]
    head += ["Gen PPL", "95 % interval", "entropy", "distinct-2", "repetition"]
    notes = ["Bold: no other way of the same number of evaluations is both better judged and more diverse."]
    if in_words:
        head.append("word entropy")
        notes.append(f"Word entropy: in nats, of the first {FIRST} words of each text that has as many.")
    return Table(f"Quality and diversity{among}", head, rows, notes + own_tokens(measurements))


def _word_entropy(result: Mapping[str, Any]) -> str | Entry:
    """As `in_words` counts it, where that was asked and a text was long enough."""
    found = result.get("in_words", {}).get("entropy")
    return NONE if found is None else with_error(found["value"], found["error"])
