"""Figures as SVG that read well on white paper and on a dark page: axes and words take the page's own colour.

Lines differ by mark and dash as well as by colour, for print; colours are mid-tones that stand out on both grounds.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from scdd.core.errors import UserError
from scdd.evals.cells import Measurement
from scdd.evals.frontier import pareto, points
from scdd.evals.names import told_apart
from scdd.evals.recovery import way_of

INK = "#123456"  # a stand-in that becomes the page's colour
# As many marks as colours but one: a colour that comes again has another mark.
COLOURS = (
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
)
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", "*", ">", "p")
KEYS = ("solid: ", "dashed: ", "dotted: ")
DASHES: tuple[Any, ...] = ("-", (0, (6, 1.5)), (0, (4, 1.5, 1, 1.5)), (0, (2, 1.2)))
STYLE: dict[str, Any] = {
    "figure.figsize": (6.4, 3.8),
    "font.size": 10.5,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "svg.hashsalt": "scdd",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.7,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}


def svg(paint: Callable[[Any], None], title: str) -> str:
    """An inline SVG of what `paint` draws on one pair of axes."""
    try:
        matplotlib: Any = import_module("matplotlib")
    except ImportError as error:
        raise UserError("Figures need matplotlib: pip install 'scdd[eval]'.") from error
    matplotlib.use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    with matplotlib.rc_context(STYLE):
        figure, axes = pyplot.subplots(layout="constrained")
        paint(axes)
        figure.set_figheight(STYLE["figure.figsize"][1] + _legend(axes))
        axes.set_title(title, loc="left", fontsize=11)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": "scdd"})
        pyplot.close(figure)
    drawn = out.getvalue()
    drawn = drawn[drawn.index("<svg") :].replace(INK, "currentColor")
    # the page decides the size; identifiers of two figures on one page must not meet
    drawn = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", drawn, count=1)
    drawn = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawn, count=1)
    mark = re.sub(r"\W+", "-", title)
    drawn = re.sub(r'id="([^"]+)"', rf'id="{mark}-\1"', drawn)
    drawn = re.sub(r"url\(#([^)]+)\)", rf"url(#{mark}-\1)", drawn)
    return re.sub(r'href="#([^"]+)"', rf'href="#{mark}-\1"', drawn)


def style(index: int) -> dict[str, Any]:
    """How the index-th series looks."""
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKS[index % len(MARKS)]}


def lines(index: int) -> dict[str, Any]:
    """The same where dashes mean nothing else, and so may tell series apart."""
    return {**style(index), "linestyle": DASHES[index % len(DASHES)]}


def _named(cells: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """Series by name, in the order in which their systems came, each by its evaluations."""
    found: dict[str, list[Measurement]] = {}
    for cell, name in zip(cells, told_apart(cells, lambda cell: cell.settings["nfe"]), strict=True):
        found.setdefault(name, []).append(cell)
    return {name: sorted(row, key=lambda cell: cell.settings["nfe"]) for name, row in found.items()}


def generation_plot(ways: dict[str, dict[int, Measurement]], among: str = "") -> str:
    """Gen PPL against network evaluations, with 95 % intervals."""

    def paint(axes: Any) -> None:
        for i, (label, row) in enumerate(ways.items()):
            found = [cell.result for _, cell in sorted(row.items())]
            y = [r["ppl"] for r in found]
            reach = [
                [max(r["ppl"] - r["low"], 0.0) for r in found],
                [max(r["high"] - r["ppl"], 0.0) for r in found],
            ]
            axes.errorbar(sorted(row), y, yerr=reach, label=label, capsize=2.5, **lines(i))
        _log(axes, sorted({nfe for row in ways.values() for nfe in row}))
        axes.set_yscale("log")
        _plain_ticks(axes)
        axes.set_xlabel("network evaluations")
        axes.set_ylabel("Gen PPL")

    return svg(paint, f"Generative perplexity{among}")


def frontier_plot(cells: Sequence[Measurement], among: str = "") -> str:
    """Entropy against perplexity; filled marks are on their frontier, which is drawn."""

    def paint(axes: Any) -> None:
        some = points(cells)
        best = pareto(some)
        groups = sorted({(p.label, p.nfe) for p in some})
        for i, (label, nfe) in enumerate(groups):
            mine = sorted((p for p in some if (p.label, p.nfe) == (label, nfe)), key=lambda p: p.entropy)
            look = style(i)
            on = [p for p in mine if p in best]
            off = [p for p in mine if p not in best]
            name = f"{label}, {nfe} evaluations"
            axes.plot([p.entropy for p in on], [p.ppl for p in on], label=name, **look)
            axes.plot(
                [p.entropy for p in off], [p.ppl for p in off], linestyle="none", fillstyle="none", **look
            )
        axes.set_yscale("log")
        _plain_ticks(axes)
        axes.set_xlabel("unigram entropy, nats (more diverse →)")
        axes.set_ylabel("Gen PPL (better ↓)")

    return svg(paint, f"Quality and diversity{among}")


def correction_plot(cells: Sequence[Measurement]) -> str:
    """Corrections per token and step against steps, Figure `fig:ablation1-1`; dashes are intrinsic."""

    def paint(axes: Any) -> None:
        ticks = sorted({cell.settings["nfe"] for cell in cells})
        for i, (label, row) in enumerate(_named(cells).items()):
            x = [c.settings["nfe"] for c in row]
            y, error = (
                [c.result["rate_per_step"] for c in row],
                [c.result["rate_per_step_error"] for c in row],
            )
            axes.errorbar(x, y, yerr=error, label=label, capsize=2.5, **style(i))
            own = [c.result["intrinsic_per_step"] for c in row]
            axes.plot(x, own, linestyle="--", color=COLOURS[i % len(COLOURS)])
        axes.plot([], [], linestyle="--", color=INK, label="dashed: intrinsic")
        _log(axes, ticks)
        if any(c.result["rate_per_step"] > 0 for c in cells):
            axes.set_yscale("log")
            _plain_ticks(axes)
        axes.set_xlabel("network evaluations")
        axes.set_ylabel("corrections per token and step")

    return svg(paint, "Correction rate per step")


def cumulative_plot(cells: Sequence[Measurement]) -> str:
    """How much of the correcting is done by each step, Figure `fig:ablation1-2`; the longest walk of each system."""

    def paint(axes: Any) -> None:
        for i, (label, row) in enumerate(_named(cells).items()):
            found = row[-1].result
            own, ideal = ([0.0, *found[name]] for name in ("cumulative", "intrinsic_cumulative"))
            x = [k / (len(own) - 1) for k in range(len(own))]
            every = max(1, len(x) // 8)
            said = f"{label}, {row[-1].settings['nfe']} steps"
            axes.plot(x, own, label=said, markevery=(i % every, every), **style(i))
            axes.plot(x, ideal, linestyle="--", color=COLOURS[i % len(COLOURS)])
        axes.plot([], [], linestyle="--", color=INK, label="dashed: intrinsic")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("share of the walk")
        axes.set_ylabel("share of all corrections")

    return svg(paint, "Cumulative corrections")


def recovery_plot(cells: Sequence[Measurement], among: str = "") -> str:
    """Recovered and damaged against K."""

    def paint(axes: Any) -> None:
        groups: dict[str, list[Measurement]] = {}
        for cell in sorted(cells, key=lambda cell: cell.settings["count"]):
            groups.setdefault(f"{cell.label}, {way_of(cell.settings)}", []).append(cell)
        for i, (label, row) in enumerate(groups.items()):
            x = [c.settings["count"] for c in row]
            for name, dash in (("recovery", "-"), ("damage", ":")):
                y, error = [c.result[name]["value"] for c in row], [c.result[name]["error"] for c in row]
                said = label if name == "recovery" else None
                axes.errorbar(x, y, yerr=error, linestyle=dash, label=said, capsize=2.5, **style(i))
        axes.plot([], [], linestyle="-", color=INK, label="solid: recovered")
        axes.plot([], [], linestyle=":", color=INK, label="dotted: damaged")
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("corrupted tokens in a text (K)")
        axes.set_ylabel("share of tokens")

    return svg(paint, f"Recovery and damage{among}")


def training_plot(curves: dict[str, list[tuple[int, float, float]]]) -> str:
    """Validation NELBO against training steps, from metrics.jsonl."""

    def paint(axes: Any) -> None:
        for i, (label, curve) in enumerate(curves.items()):
            x, y, error = zip(*curve, strict=True)
            axes.errorbar(x, y, yerr=error, label=label, capsize=2.5, **lines(i))
        axes.set_xlabel("training step")
        axes.set_ylabel("validation NELBO, nats per token")

    return svg(paint, "Validation during training")


def _legend(axes: Any) -> float:
    """Below the axes, where it hides nothing. Returns the inches that the figure must grow by to hold it."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return 0.0
    order = sorted(
        range(len(labels)), key=lambda i: labels[i].startswith(KEYS)
    )  # what dashes mean comes last
    longest = max(map(len, labels))
    columns = min(len(labels), 1 if longest > 36 else 2 if longest > 22 else 3)
    axes.figure.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="outside lower center",
        ncols=columns,
        handlelength=3.2,
    )
    return max(0.0, 0.21 * (-(-len(labels) // columns) - 1))


def _log(axes: Any, ticks: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()


def _plain_ticks(axes: Any) -> None:
    """Numbers as people write them, also between powers of ten."""
    ticker: Any = import_module("matplotlib.ticker")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
