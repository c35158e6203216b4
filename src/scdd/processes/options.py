"""Which process: its kernel, and its schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Discriminator

from scdd.core.options import Options, Text
from scdd.schedules.options import MaskedOptions, PeakedOptions, ScheduleOptions


@dataclass(frozen=True)
class NoisyOptions(Options):
    """A process with masks and uniform noise."""

    kind: Literal["scdd", "gidd"]
    """scdd: noise never remasks, so the reverse process corrects tokens in place; gidd: GIDD's kernel."""
    schedule: ScheduleOptions = PeakedOptions()
    """γ_t and ρ_t over time."""
    noise: Text = "uniform"
    """Which tokens noise consists of: uniform, the paper's; unigram, as often as in the training data; or a file with a number
    for each ordinary token (.npy, or lines of text)."""


@dataclass(frozen=True)
class MdlmOptions(Options):
    """Masked diffusion: visible tokens are always right."""

    kind: Literal["mdlm"] = field(default="mdlm", kw_only=True, repr=False)
    schedule: MaskedOptions = MaskedOptions()
    """γ_t over time."""


@dataclass(frozen=True)
class AutoregressiveOptions(Options):
    """No diffusion: the autoregressive baseline on the same backbone."""

    kind: Literal["ar"] = field(default="ar", kw_only=True, repr=False)


ProcessOptions = Annotated[NoisyOptions | MdlmOptions | AutoregressiveOptions, Discriminator("kind")]

PROCESSES = {"scdd": "scdd.processes.scdd:SCDD", "gidd": "scdd.processes.gidd:GIDD", "mdlm": "scdd.processes.mdlm:MDLM"}
