"""One system beside each of the others at equal budgets: how much lower its generative perplexity is, and whether by chance."""

from __future__ import annotations

from collections.abc import Sequence

from scdd.core.errors import UserError
from scdd.evals import stats
from scdd.evals.cells import Measurement
from scdd.evals.compare import Grid, fair
from scdd.evals.tables import Entry, Table, plain


def check_names(names: Sequence[str], cells: Sequence[Measurement]) -> None:
    """Refuse a name that no generation cell has."""
    known = list(dict.fromkeys(cell.label for cell in cells if cell.kind == "generation"))
    for name in names:
        if name not in known:
            heard = f"choose one of {', '.join(known)}" if known else "no system has generated anything here"
            raise UserError(f"--against {name} is none of the systems: {heard}.")


def against_table(cells: Grid, name: str, among: str = "") -> Table:
    """Relative differences of `name` to every other system; bold where it is significantly better."""
    columns = [n for n in sorted(cells[name]) if fair(cells, name, n)]
    rows = [
        [plain(label), *(_entry(cells, name, label, n) for n in columns)]
        for label in cells
        if label != name and any(fair(cells, label, n) for n in columns)
    ]
    notes = [
        f"{name}: by how much its perplexity is above (+) or below (−) the other's at equal network evaluations. Two-sided test "
        "of two ratios over independent texts: * p < 0.05, ** p < 0.01; bold: significantly lower. How much results vary "
        "from one training run to the next is not in it."
    ]
    title = f"Generative perplexity of {name} against the others{among}"
    return Table(title, ["against", *map(str, columns)], rows, notes)


def _entry(cells: Grid, name: str, label: str, nfe: int) -> Entry:
    if not fair(cells, label, nfe):
        return plain("–")
    mine, its = cells[name][nfe].result, cells[label][nfe].result
    p = stats.difference((mine["nats"], mine["tokens"]), (its["nats"], its["tokens"]))
    change = f"{100 * (mine['ppl'] / its['ppl'] - 1):+.1f} %".replace("-", "−")
    return Entry(change + stats.stars(p), p < 0.05 and mine["ppl"] < its["ppl"])
