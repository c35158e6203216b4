"""The rule by which every system is tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any


def candidates(shared: Mapping[str, Sequence[Any]], own: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of what all systems try and of a system's own options."""
    names = [*shared, *own]
    return [dict(zip(names, values, strict=True)) for values in product(*shared.values(), *own.values())]


def choose(tried: Sequence[Mapping[str, Any]], entropy: float, loss: float) -> Mapping[str, Any] | None:
    """The combination of lowest perplexity among those that lose at most `loss` nats of `entropy`; the first of equals.

    Without the bound on entropy the lowest perplexity is that of mere repetition. None where no combination keeps it: the
    system stays as it is.
    """
    varied = [one for one in tried if one["entropy"] >= entropy - loss]
    return min(varied, key=lambda one: float(one["ppl"]), default=None)
