"""Figures as SVG that read well on white paper and on a dark page: axes and words take the page's own colour.

Lines differ by mark and dash as well as by colour, for print; colours are mid-tones that stand out on both grounds.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

from scdd.core.errors import UserError, missing_extra
from scdd.evals.measure.specs import repair_name
from scdd.evals.measure.store import Measurement
from scdd.evals.report.compare import Grid, by_budget
from scdd.evals.report.names import grouped
from scdd.evals.report.summaries import Point, pareto

INK = "#123456"  # a stand-in that becomes the page's colour
# As many marks as colours but one: a colour that comes again has another mark.
COLOURS = ["#1f8ac0", "#d9662b", "#2a9d6f", "#b5589a", "#b58900", "#7a77d1", "#c04a4a", "#6d8b1f", "#8a7462", "#d65f8f"]
MARKS = "os^DvPX<*>p"
KEYS = ("solid: ", "dashed: ", "dotted: ")
DASHES: tuple[Any, ...] = ("-", (0, (6, 1.5)), (0, (4, 1.5, 1, 1.5)), (0, (2, 1.2)))
SIZE = (6.4, 3.8)
STYLE: dict[str, Any] = {
    **dict.fromkeys(("text.color", "xtick.color", "ytick.color", "grid.color"), INK),
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK),
    **{"figure.figsize": SIZE, "svg.fonttype": "none", "svg.hashsalt": "scdd"},
    **{"font.size": 10.5, "font.family": "sans-serif", "legend.frameon": False, "legend.fontsize": 9.5},
    **{"axes.grid": True, "grid.alpha": 0.15, "axes.spines.top": False, "axes.spines.right": False},
    **{"lines.linewidth": 1.7, "lines.markersize": 5.5},
}


class Series(NamedTuple):
    """Points with a name in the legend, and how they look; `error` is a standard error each, or [below, above]."""

    label: str | None
    x: Sequence[float]
    y: Sequence[float]
    look: dict[str, Any]
    error: Any = None


@dataclass(frozen=True)
class Figure:
    """Series on one pair of axes."""

    title: str
    labels: tuple[str, str]
    series: list[Series]
    powers_of_two: bool = False
    """x is logarithmic and has its ticks at the points."""
    log_y: bool = False
    limits: dict[str, tuple[float, float]] = field(default_factory=dict)


def svg(figure: Figure) -> str:
    """An inline SVG. Needs matplotlib."""
    try:
        matplotlib: Any = import_module("matplotlib")
    except ImportError as error:
        raise UserError(missing_extra("Figures need matplotlib", "eval")) from error
    matplotlib.use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    with matplotlib.rc_context(STYLE):
        canvas, axes = pyplot.subplots(layout="constrained")
        _paint(figure, axes)
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
    return re.sub(r'(id="|url\(#|href="#)', rf"\1{mark}-", drawn)


def style(index: int) -> dict[str, Any]:
    """How the index-th series looks."""
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKS[index % len(MARKS)]}


def lines(index: int) -> dict[str, Any]:
    """The same where dashes mean nothing else, and so may tell series apart."""
    return {**style(index), "linestyle": DASHES[index % len(DASHES)]}


def intrinsic(index: int) -> dict[str, Any]:
    """What a perfect denoiser would do, beside the index-th series."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": "--"}


def key(name: str, dash: str) -> Series:
    """An entry of the legend that says what a dash means."""
    return Series(name, [], [], {"linestyle": dash, "color": INK})


def generation_plot(grid: Grid, among: str = "") -> Figure:
    """Gen PPL against network evaluations, with 95 % intervals."""
    series = []
    for i, (label, row) in enumerate(grid.items()):
        results = [row[n].result for n in sorted(row)]
        below = [max(r["ppl"] - r["low"], 0.0) for r in results]
        above = [max(r["high"] - r["ppl"], 0.0) for r in results]
        series.append(Series(label, sorted(row), _column(results, "ppl"), lines(i), [below, above]))
    title, labels = f"Generative perplexity{among}", ("network evaluations", "Gen PPL")
    return Figure(title, labels, series, powers_of_two=True, log_y=True)


def frontier_plot(measurements: Sequence[Measurement], among: str = "") -> Figure:
    """Entropy against perplexity; filled marks are on their frontier, which is drawn."""
    points = sorted(map(Point.of, measurements), key=lambda p: p.entropy)
    best, series = pareto(points), []
    for i, (label, nfe) in enumerate(sorted({(p.label, p.nfe) for p in points})):
        mine = [p for p in points if (p.label, p.nfe) == (label, nfe)]
        unfilled = {"linestyle": "none", "fillstyle": "none"}
        for name, on, look in ((f"{label}, {nfe} evaluations", True, {}), (None, False, unfilled)):
            group = [p for p in mine if (p in best) is on]
            series.append(Series(name, [p.entropy for p in group], [p.ppl for p in group], {**look, **style(i)}))
    labels = ("unigram entropy, nats (more diverse →)", "Gen PPL (better ↓)")
    return Figure(f"Quality and diversity{among}", labels, series, log_y=True)


def correction_plot(measurements: Sequence[Measurement]) -> Figure:
    """Corrections per token and step against steps, Figure `fig:ablation1-1`; dashes are intrinsic."""
    series = []
    for i, (label, row) in enumerate(by_budget(measurements).items()):
        x, results = sorted(row), [row[n].result for n in sorted(row)]
        rate, error = _column(results, "rate_per_step"), _column(results, "rate_per_step_error")
        series.append(Series(label, x, rate, style(i), error))
        series.append(Series(None, x, _column(results, "intrinsic_per_step"), intrinsic(i)))
    series.append(key("dashed: intrinsic", "--"))
    positive = any(one.result["rate_per_step"] > 0 for one in measurements)
    labels = ("network evaluations", "corrections per token and step")
    return Figure("Correction rate per step", labels, series, powers_of_two=True, log_y=positive)


def cumulative_plot(measurements: Sequence[Measurement]) -> Figure:
    """How much of the correcting is done by each step, Figure `fig:ablation1-2`; the longest walk of each system."""
    series = []
    for i, (label, row) in enumerate(by_budget(measurements).items()):
        longest = max(row)
        own, ideal = ([0.0, *row[longest].result[k]] for k in ("cumulative", "intrinsic_cumulative"))
        x = [k / (len(own) - 1) for k in range(len(own))]
        every = max(1, len(x) // 8)
        look = {"markevery": (i % every, every), **style(i)}
        series += [Series(f"{label}, {longest} steps", x, own, look), Series(None, x, ideal, intrinsic(i))]
    labels, limits = (("share of the walk", "share of all corrections"), {"xlim": (0.0, 1.0), "ylim": (0.0, 1.02)})
    return Figure("Cumulative corrections", labels, [*series, key("dashed: intrinsic", "--")], limits=limits)


def recovery_plot(measurements: Sequence[Measurement], among: str = "") -> Figure:
    """Recovered and damaged against K."""
    ordered = sorted(measurements, key=lambda one: int(one.settings["count"]))
    series = []
    groups = grouped(ordered, lambda one: f"{one.label}, {repair_name(one.settings)}")
    for i, (label, group) in enumerate(groups.items()):
        x = [one.settings["count"] for one in group]
        for name, rate, dash in ((label, "recovery", "-"), (None, "damage", ":")):
            rates, look = [one.result[rate] for one in group], {"linestyle": dash, **style(i)}
            series.append(Series(name, x, _column(rates, "value"), look, _column(rates, "error")))
    series += [key("solid: recovered", "-"), key("dotted: damaged", ":")]
    labels = ("corrupted tokens in a text (K)", "share of tokens")
    return Figure(f"Recovery and damage{among}", labels, series, limits={"ylim": (-0.02, 1.02)})


def training_plot(curves: dict[str, list[tuple[int, float, float]]]) -> Figure:
    """Validation NELBO against training steps, from metrics.jsonl."""
    columns = {label: list(zip(*curve, strict=True)) for label, curve in curves.items()}
    series = [Series(label, x, y, lines(i), error) for i, (label, (x, y, error)) in enumerate(columns.items())]
    return Figure("Validation during training", ("training step", "validation NELBO, nats per token"), series)


def _column(results: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [result[name] for result in results]


def _paint(figure: Figure, axes: Any) -> None:
    for label, x, y, look, error in figure.series:
        if error is None:
            axes.plot(x, y, label=label, **look)
        else:
            axes.errorbar(x, y, yerr=error, label=label, capsize=2.5, **look)
    if figure.powers_of_two:
        ticks = sorted({x for series in figure.series for x in series.x})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
    if figure.log_y:  # numbers as people write them, also between powers of ten
        ticker: Any = import_module("matplotlib.ticker")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set(xlabel=figure.labels[0], ylabel=figure.labels[1], **figure.limits)


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
