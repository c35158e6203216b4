"""The paper's claims as data: what is compared with what, in which direction, and over which budgets. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scdd.core.options import NotNegative, Options, Text

Value = Literal[
    "nelbo",
    "gen_ppl",
    "entropy",
    "correction_rate",
    "excess",
    "rate_per_step",
    "early_share",
    "ppl_after",
    "ppl_uncorrected",
    "touch",
    "recovery",
    "damage",
    "mended",
    "ppl_corrupted",
    "ppl_repaired",
    "accuracy",
    "win_rate",
]
"""What is compared; `VALUES` says where a result has it."""
KINDS: dict[str, str] = {
    "nelbo": "likelihood",
    **dict.fromkeys(("gen_ppl", "entropy"), "generation"),
    **dict.fromkeys(("correction_rate", "excess", "rate_per_step", "early_share"), "correction"),
    **dict.fromkeys(("ppl_after", "ppl_uncorrected"), "correction"),
    **dict.fromkeys(("touch", "recovery", "damage", "mended", "ppl_corrupted", "ppl_repaired"), "recovery"),
    "accuracy": "zero-shot",
    "win_rate": "judge",
}
"""The measurement that each is of."""
ENTROPIES: dict[str, tuple[str, ...]] = {
    "gen_ppl": ("diversity", "entropy"),
    **{f"ppl_{texts}": (f"entropy_{texts}",) for texts in ("after", "uncorrected", "corrupted", "repaired")},
}
"""Where a result has the entropy of the texts that a perplexity is of."""
LOGARITHMIC = frozenset(("gen_ppl", "ppl_after", "ppl_uncorrected", "ppl_corrupted", "ppl_repaired", "rate_per_step"))
"""Compared by their logarithms, so that differences are ratios."""


@dataclass(frozen=True, kw_only=True)
class Arm(Options):
    """One side of a comparison."""

    system: Text | None = None
    """A system of the paper; each comparison of a scale says which of ours stands for it."""
    value: Value
    """What is looked at."""


@dataclass(frozen=True, kw_only=True)
class Claim(Options):
    """A sentence of the paper, and what would show it."""

    name: Text
    """For references."""
    says: Text
    """What the paper says."""
    where: Text
    """The table, figure or section."""
    printed: Text | None = None
    """The paper's own numbers."""
    first: Arm
    """Whose value is expected to be lower or higher."""
    second: Arm | None = None
    """Than whose; null: than `than`."""
    than: float | None = None
    """A number that the first is compared with."""
    expect: Literal["lower", "higher", "close"]
    """close: nearer than `margin`."""
    margin: NotNegative = 0.0
    """How near is close: nats, shares, or for perplexities their logarithm."""
    over: Literal["each", "few-many", "any"] = "each"
    """each: at every budget or count; few-many: the value at the fewest less that at the most; any: all together, once."""
    note: str = ""
    """What a reader should know of the test."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.second is None) == (self.than is None):
            raise ValueError(f"claim {self.name} needs second or than, one of the two")
        if self.expect == "close" and not self.margin:
            raise ValueError(f"claim {self.name} expects something close and has no margin")
        if self.second is not None and KINDS[self.first.value] != KINDS[self.second.value]:
            raise ValueError(f"claim {self.name} compares values of two kinds of measurement")

    @property
    def kind(self) -> str:
        """The measurement that it is about."""
        return KINDS[self.first.value]

    @property
    def same_weights(self) -> bool:
        """Whether both sides are numbers of one system, which are paired by seeds."""
        return self.second is not None and self.first.system == self.second.system


@dataclass(frozen=True, kw_only=True)
class Claims(Options):
    """All of them."""

    claims: tuple[Claim, ...]


def value_of(name: str, result: Mapping[str, Any]) -> float | None:
    """A value out of a record's result; None where it has none."""
    try:
        return float(_VALUES[name](result))
    except (KeyError, TypeError):
        return None


def entropy_of(name: str, result: Mapping[str, Any]) -> float | None:
    """The unigram entropy of the texts that a perplexity is of; None where it was not recorded."""
    node: Any = result
    for key in (*ENTROPIES[name], "value"):
        node = node.get(key) if isinstance(node, Mapping) else None
    return float(node) if isinstance(node, int | float) and math.isfinite(node) else None


def _early(result: Mapping[str, Any]) -> float:
    curve = result["cumulative"]
    return float(curve[len(curve) // 2])


def _mended(result: Mapping[str, Any]) -> float:
    """Corrupted tokens restored less clean ones changed, of a row."""
    clean = result["length"] - result["count"]
    return float(result["recovery"]["value"] * result["count"] - result["damage"]["value"] * clean)


def _accuracy(result: Mapping[str, Any]) -> float:
    tasks = result["tasks"]
    return float(sum(task["acc"] for task in tasks.values()) / len(tasks))


_VALUES: dict[str, Any] = {
    "nelbo": lambda r: r["nats"],
    "gen_ppl": lambda r: r["ppl"],
    "entropy": lambda r: r["diversity"]["entropy"]["value"],
    "correction_rate": lambda r: r["rate"],
    "excess": lambda r: r["excess"],
    "rate_per_step": lambda r: r["rate_per_step"],
    "early_share": _early,
    "ppl_after": lambda r: r["ppl_after"]["ppl"],
    "ppl_uncorrected": lambda r: r["ppl_uncorrected"]["ppl"],
    "touch": lambda r: r["touch"]["value"],
    "recovery": lambda r: r["recovery"]["value"],
    "damage": lambda r: r["damage"]["value"],
    "mended": _mended,
    "ppl_corrupted": lambda r: r["ppl_corrupted"]["ppl"],
    "ppl_repaired": lambda r: r["ppl_repaired"]["ppl"],
    "accuracy": _accuracy,
    "win_rate": lambda r: r["wins"]["rate"],
}
