"""The sampling part of `build`: from a recipe's sampling section, or a name, to a sampler, a grid and filters."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import Any

from torch import Tensor

from scdd.core.errors import UserError
from scdd.ops import Filters
from scdd.samplers.ancestral import Ancestral
from scdd.samplers.ar import Ar
from scdd.samplers.base import Sampler
from scdd.samplers.gidd_correct import GiddCorrect
from scdd.samplers.grids import Grid
from scdd.samplers.grids import grid as make_grid
from scdd.samplers.informed import Informed
from scdd.samplers.options import (
    AncestralOptions,
    ArOptions,
    GiddCorrectOptions,
    GridOptions,
    InformedOptions,
    P2Options,
    PrismOptions,
    RemdmOptions,
    SamplerOptions,
    SamplingOptions,
    ThresholdOptions,
)
from scdd.samplers.p2 import P2
from scdd.samplers.prism import Prism
from scdd.samplers.remdm import VARIANTS, Remdm
from scdd.samplers.threshold import Threshold

Quality = Callable[[Tensor], Tensor]

SAMPLERS: dict[str, Callable[[Any, Quality | None, int | None], Sampler]] = {
    "ancestral": lambda spec, quality, eos: Ancestral(),
    "remdm": lambda spec, quality, eos: Remdm(spec.variant, spec.eta, spec.t_on, spec.t_off, spec.alpha_on),
    "informed": lambda spec, quality, eos: Informed(spec.corrections),
    "prism": lambda spec, quality, eos: Prism(quality, spec.remask),
    "p2": lambda spec, quality, eos: P2(spec.eta),
    "gidd-correct": lambda spec, quality, eos: GiddCorrect(spec.corrections, spec.temperature),
    "threshold": lambda spec, quality, eos: Threshold(spec.threshold),
    "ar": lambda spec, quality, eos: Ar(eos),
}

SECTIONS: dict[str, Callable[[], SamplerOptions]] = {
    "ancestral": AncestralOptions,
    "remdm": RemdmOptions,
    "informed": InformedOptions,
    "prism": PrismOptions,
    "p2": P2Options,
    "gidd-correct": GiddCorrectOptions,
    "threshold": ThresholdOptions,
    "ar": ArOptions,
    **{f"remdm-{variant}": partial(RemdmOptions, variant=variant) for variant in VARIANTS},
}
"""Samplers by name, with their default settings; remdm-conf and the like name a variant of remdm."""


def section(name: str) -> SamplerOptions:
    """The default settings of the sampler called `name`."""
    if not isinstance(name, str) or name not in SECTIONS:
        near = get_close_matches(str(name), SECTIONS, n=1)
        cure = f"did you mean {near[0]}" if near else f"choose one of {', '.join(SECTIONS)}"
        raise UserError(f"There is no sampler {name!r}: {cure}.")
    return SECTIONS[name]()


def name(spec: SamplerOptions) -> str:
    """The name that gives this sampler, its other settings aside: remdm-conf, not remdm."""
    return f"remdm-{spec.variant}" if isinstance(spec, RemdmOptions) else spec.kind


def sampler(spec: SamplerOptions, quality: Quality | None = None, eos_id: int | None = None) -> Sampler:
    """The sampler; `quality` is PRISM's head where the model has one, `eos_id` ends autoregressive rows."""
    return SAMPLERS[spec.kind](spec, quality, eos_id)


def grid(spec: GridOptions, steps: int, start: float | None = None) -> Grid:
    """The times visited."""
    return make_grid(spec.kind, steps, spec.start if start is None else start)


def filters(spec: SamplingOptions) -> Filters:
    """Top-p, top-k and temperature."""
    return Filters(spec.top_p, spec.top_k, spec.temperature)
