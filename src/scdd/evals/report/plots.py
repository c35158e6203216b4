"""Figures as SVG that read well on white paper and on a dark page: axes and words take the page's own colour.

Lines differ by mark and dash as well as by colour, for print; colours are mid-tones that stand out on both grounds.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from scdd.core.errors import UserError
from scdd.evals.measure.specs import repair_name
from scdd.evals.measure.store import Measurement
from scdd.evals.report.compare import Grid, by_budget
from scdd.evals.report.frontier import Point, pareto
from scdd.evals.report.names import grouped

INK = "#123456"  # a stand-in that becomes the page's colour
# As many marks as colours but one: a colour that comes again has another mark.
COLOURS = [
    "#1f8ac0",
    "#d9662b",
    "#2a9d6f",
    "#b5589a",
    "#b58900",
    "#7a77d1",
    "#c04a4a",
    "#6d8b1f",
    "#8a7462",
    "#d65f8f",
]
MARKS = "os^DvPX<*>p"
KEYS = ("solid: ", "dashed: ", "dotted: ")
DASHES: tuple[Any, ...] = ("-", (0, (6, 1.5)), (0, (4, 1.5, 1, 1.5)), (0, (2, 1.2)))
SIZE = (6.4, 3.8)
INKED = (
    "text.color",
    "axes.edgecolor",
    "axes.labelcolor",
    "axes.titlecolor",
    "xtick.color",
    "ytick.color",
    "grid.color",
)
STYLE: dict[str, Any] = {
    **dict.fromkeys(INKED, INK),
    "figure.figsize": SIZE,
    "font.size": 10.5,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "svg.hashsalt": "scdd",
    "grid.alpha": 0.15,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.7,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}


class Figure(NamedTuple):
    """A title, and what draws the figure on a pair of axes."""

    title: str
    paint: Callable[[Any], None]


def svg(figure: Figure) -> str:
    """An inline SVG. Needs matplotlib."""
    try:
        matplotlib: Any = import_module("matplotlib")
    except ImportError as error:
        raise UserError("Figures need matplotlib: pip install 'scdd[eval]'.") from error
    matplotlib.use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    with matplotlib.rc_context(STYLE):
        canvas, axes = pyplot.subplots(layout="constrained")
        figure.paint(axes)
        canvas.set_figheight(SIZE[1] + _legend(axes))
        axes.set_title(figure.title, loc="left", fontsize=11)
        out = io.StringIO()
        canvas.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": "scdd"})
        pyplot.close(canvas)
    drawn = out.getvalue()
    drawn = drawn[drawn.index("<svg") :].replace(INK, "currentColor")
    # the page decides the size; identifiers of two figures on one page must not meet
    for size in ("width", "height"):
        drawn = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", drawn, count=1)
    mark = re.sub(r"\W+", "-", figure.title)
    drawn = re.sub(r'id="([^"]+)"', rf'id="{mark}-\1"', drawn)
    drawn = re.sub(r"url\(#([^)]+)\)", rf"url(#{mark}-\1)", drawn)
    return re.sub(r'href="#([^"]+)"', rf'href="#{mark}-\1"', drawn)


def style(index: int) -> dict[str, Any]:
    """How the index-th series looks."""
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKS[index % len(MARKS)]}


def lines(index: int) -> dict[str, Any]:
    """The same where dashes mean nothing else, and so may tell series apart."""
    return {**style(index), "linestyle": DASHES[index % len(DASHES)]}


def generation_plot(grid: Grid, among: str = "") -> Figure:
    """Gen PPL against network evaluations, with 95 % intervals."""

    def paint(axes: Any) -> None:
        for i, (label, row) in enumerate(grid.items()):
            results = [one.result for _, one in sorted(row.items())]
            y = [r["ppl"] for r in results]
            below = [max(r["ppl"] - r["low"], 0.0) for r in results]
            above = [max(r["high"] - r["ppl"], 0.0) for r in results]
            axes.errorbar(sorted(row), y, yerr=[below, above], label=label, capsize=2.5, **lines(i))
        _log_steps(axes, {nfe for row in grid.values() for nfe in row})
        _log_values(axes)
        axes.set_xlabel("network evaluations")
        axes.set_ylabel("Gen PPL")

    return Figure(f"Generative perplexity{among}", paint)


def frontier_plot(measurements: Sequence[Measurement], among: str = "") -> Figure:
    """Entropy against perplexity; filled marks are on their frontier, which is drawn."""

    def paint(axes: Any) -> None:
        points = sorted(map(Point.of, measurements), key=lambda p: p.entropy)
        best = pareto(points)
        for i, (label, nfe) in enumerate(sorted({(p.label, p.nfe) for p in points})):
            mine = [p for p in points if (p.label, p.nfe) == (label, nfe)]
            on, off = ([p for p in mine if (p in best) is wanted] for wanted in (True, False))
            name = f"{label}, {nfe} evaluations"
            axes.plot([p.entropy for p in on], [p.ppl for p in on], label=name, **style(i))
            unfilled = {"linestyle": "none", "fillstyle": "none", **style(i)}
            axes.plot([p.entropy for p in off], [p.ppl for p in off], **unfilled)
        _log_values(axes)
        axes.set_xlabel("unigram entropy, nats (more diverse →)")
        axes.set_ylabel("Gen PPL (better ↓)")

    return Figure(f"Quality and diversity{among}", paint)


def correction_plot(measurements: Sequence[Measurement]) -> Figure:
    """Corrections per token and step against steps, Figure `fig:ablation1-1`; dashes are intrinsic."""

    def paint(axes: Any) -> None:
        for i, (label, x, results) in enumerate(_series(measurements)):
            y, error = _column(results, "rate_per_step"), _column(results, "rate_per_step_error")
            axes.errorbar(x, y, yerr=error, label=label, capsize=2.5, **style(i))
            own = _column(results, "intrinsic_per_step")
            axes.plot(x, own, linestyle="--", color=COLOURS[i % len(COLOURS)])
        axes.plot([], [], linestyle="--", color=INK, label="dashed: intrinsic")
        _log_steps(axes, {one.settings["nfe"] for one in measurements})
        if any(one.result["rate_per_step"] > 0 for one in measurements):
            _log_values(axes)
        axes.set_xlabel("network evaluations")
        axes.set_ylabel("corrections per token and step")

    return Figure("Correction rate per step", paint)


def cumulative_plot(measurements: Sequence[Measurement]) -> Figure:
    """How much of the correcting is done by each step, Figure `fig:ablation1-2`; the longest walk of each system."""

    def paint(axes: Any) -> None:
        for i, (label, budgets, results) in enumerate(_series(measurements)):
            own, ideal = ([0.0, *results[-1][name]] for name in ("cumulative", "intrinsic_cumulative"))
            x = [k / (len(own) - 1) for k in range(len(own))]
            every = max(1, len(x) // 8)
            look = {"label": f"{label}, {budgets[-1]} steps", "markevery": (i % every, every), **style(i)}
            axes.plot(x, own, **look)
            axes.plot(x, ideal, linestyle="--", color=COLOURS[i % len(COLOURS)])
        axes.plot([], [], linestyle="--", color=INK, label="dashed: intrinsic")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("share of the walk")
        axes.set_ylabel("share of all corrections")

    return Figure("Cumulative corrections", paint)


def recovery_plot(measurements: Sequence[Measurement], among: str = "") -> Figure:
    """Recovered and damaged against K."""

    def paint(axes: Any) -> None:
        ordered = sorted(measurements, key=lambda one: int(one.settings["count"]))
        series = grouped(ordered, lambda one: f"{one.label}, {repair_name(one.settings)}")
        for i, (label, row) in enumerate(series.items()):
            x = [one.settings["count"] for one in row]
            for name, dash in (("recovery", "-"), ("damage", ":")):
                rates = [one.result[name] for one in row]
                look = {
                    "linestyle": dash,
                    "label": label if dash == "-" else None,
                    "capsize": 2.5,
                    **style(i),
                }
                axes.errorbar(x, _column(rates, "value"), yerr=_column(rates, "error"), **look)
        axes.plot([], [], linestyle="-", color=INK, label="solid: recovered")
        axes.plot([], [], linestyle=":", color=INK, label="dotted: damaged")
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("corrupted tokens in a text (K)")
        axes.set_ylabel("share of tokens")

    return Figure(f"Recovery and damage{among}", paint)


def training_plot(curves: dict[str, list[tuple[int, float, float]]]) -> Figure:
    """Validation NELBO against training steps, from metrics.jsonl."""

    def paint(axes: Any) -> None:
        for i, (label, curve) in enumerate(curves.items()):
            x, y, error = zip(*curve, strict=True)
            axes.errorbar(x, y, yerr=error, label=label, capsize=2.5, **lines(i))
        axes.set_xlabel("training step")
        axes.set_ylabel("validation NELBO, nats per token")

    return Figure("Validation during training", paint)


def _series(measurements: Sequence[Measurement]) -> list[tuple[str, list[int], list[dict[str, Any]]]]:
    """(Name, budgets, results) of each system, in the order in which they came, each by its budgets."""
    rows = ((name, sorted(row.items())) for name, row in by_budget(measurements).items())
    return [(name, [nfe for nfe, _ in row], [one.result for _, one in row]) for name, row in rows]


def _column(results: Sequence[dict[str, Any]], key: str) -> list[float]:
    return [result[key] for result in results]


def _legend(axes: Any) -> float:
    """Below the axes, where it hides nothing. Returns the inches that the figure must grow by to hold it."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return 0.0
    # what dashes mean comes last
    order = sorted(range(len(labels)), key=lambda i: labels[i].startswith(KEYS))
    longest = max(map(len, labels))
    columns = min(len(labels), 1 if longest > 36 else 2 if longest > 22 else 3)
    handles, labels = [handles[i] for i in order], [labels[i] for i in order]
    axes.figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3.2)
    return max(0.0, 0.21 * (-(-len(labels) // columns) - 1))


def _log_steps(axes: Any, budgets: set[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(budgets), [str(budget) for budget in sorted(budgets)])
    axes.minorticks_off()


def _log_values(axes: Any) -> None:
    """Numbers as people write them, also between powers of ten."""
    ticker: Any = import_module("matplotlib.ticker")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
