"""The sampling part of `build`: from a recipe's sampling section, or a name, to a sampler, a grid and filters."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import Any

from torch import Tensor

from scdd import recipe, samplers
from scdd.core.errors import UserError
from scdd.ops import Filters
from scdd.samplers import Grid, Sampler
from scdd.samplers import grid as make_grid
from scdd.samplers.remdm import VARIANTS

Quality = Callable[[Tensor], Tensor]

SAMPLERS: dict[str, Callable[[Any, Quality | None, int | None], Sampler]] = {
    "ancestral": lambda spec, quality, eos: samplers.Ancestral(),
    "remdm": lambda spec, quality, eos: samplers.Remdm(
        spec.variant, spec.eta, spec.t_on, spec.t_off, spec.alpha_on
    ),
    "informed": lambda spec, quality, eos: samplers.Informed(spec.corrections),
    "prism": lambda spec, quality, eos: samplers.Prism(quality, spec.remask),
    "p2": lambda spec, quality, eos: samplers.P2(spec.eta),
    "gidd-correct": lambda spec, quality, eos: samplers.GiddCorrect(spec.corrections, spec.temperature),
    "threshold": lambda spec, quality, eos: samplers.Threshold(spec.threshold),
    "ar": lambda spec, quality, eos: samplers.Ar(eos),
}

SECTIONS: dict[str, Callable[[], recipe.Sampler]] = {
    "ancestral": recipe.AncestralSampler,
    "remdm": recipe.RemdmSampler,
    "informed": recipe.InformedSampler,
    "prism": recipe.PrismSampler,
    "p2": recipe.P2Sampler,
    "gidd-correct": recipe.GiddCorrectSampler,
    "threshold": recipe.ThresholdSampler,
    "ar": recipe.ArSampler,
    **{f"remdm-{variant}": partial(recipe.RemdmSampler, variant=variant) for variant in VARIANTS},
}
"""Samplers by name, with their default settings; remdm-conf and the like name a variant of remdm."""


def section(name: str) -> recipe.Sampler:
    """The default settings of the sampler called `name`."""
    if not isinstance(name, str) or name not in SECTIONS:
        near = get_close_matches(str(name), SECTIONS, n=1)
        cure = f"did you mean {near[0]}" if near else f"choose one of {', '.join(SECTIONS)}"
        raise UserError(f"There is no sampler {name!r}: {cure}.")
    return SECTIONS[name]()


def name(spec: recipe.Sampler) -> str:
    """The name that gives this sampler, its other settings aside: remdm-conf, not remdm."""
    return f"remdm-{spec.variant}" if isinstance(spec, recipe.RemdmSampler) else spec.kind


def sampler(spec: recipe.Sampler, quality: Quality | None = None, eos_id: int | None = None) -> Sampler:
    """The sampler; `quality` is PRISM's head where the model has one, `eos_id` ends autoregressive rows."""
    return SAMPLERS[spec.kind](spec, quality, eos_id)


def grid(spec: recipe.Grid, steps: int, start: float | None = None) -> Grid:
    """The times visited."""
    return make_grid(spec.kind, steps, spec.start if start is None else start)


def filters(spec: recipe.Sampling) -> Filters:
    """Top-p, top-k and temperature."""
    return Filters(spec.top_p, spec.top_k, spec.temperature)
