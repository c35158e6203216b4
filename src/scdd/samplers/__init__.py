"""Samplers, and the loop that drives them. Each decides which tokens move; one executor moves them."""

from scdd.samplers.ancestral import Ancestral
from scdd.samplers.ar import Ar
from scdd.samplers.base import Context, Sampler, Tokens
from scdd.samplers.drive import CORRECTED, KEPT, KINDS, REMASKED, UNMASKED, Frame, drive
from scdd.samplers.execute import FINALS
from scdd.samplers.gidd_correct import GiddCorrect
from scdd.samplers.grids import Grid, grid
from scdd.samplers.informed import Informed
from scdd.samplers.intrinsic import Intrinsic, intrinsic
from scdd.samplers.p2 import P2
from scdd.samplers.prism import Prism
from scdd.samplers.remdm import Remdm
from scdd.samplers.threshold import Threshold

__all__ = [
    "CORRECTED",
    "FINALS",
    "KEPT",
    "KINDS",
    "P2",
    "REMASKED",
    "UNMASKED",
    "Ancestral",
    "Ar",
    "Context",
    "Frame",
    "GiddCorrect",
    "Grid",
    "Informed",
    "Intrinsic",
    "Prism",
    "Remdm",
    "Sampler",
    "Threshold",
    "Tokens",
    "drive",
    "grid",
    "intrinsic",
]
