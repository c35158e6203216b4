"""What is trained: the ELBO of every process, PRISM's head, and the autoregressive baseline."""

from scdd.objectives.ar import ArObjective
from scdd.objectives.base import Loss, Objective
from scdd.objectives.diffusion import DiffusionObjective
from scdd.objectives.elbo import nelbo, reconstruction
from scdd.objectives.parts import Part, stream
from scdd.objectives.prism import PrismObjective
from scdd.objectives.tally import Estimate, Tally
from scdd.objectives.times import Adaptive, Density, Power, Times, TimeSampler

__all__ = [
    "Adaptive",
    "ArObjective",
    "Density",
    "DiffusionObjective",
    "Estimate",
    "Loss",
    "Objective",
    "Part",
    "Power",
    "PrismObjective",
    "Tally",
    "TimeSampler",
    "Times",
    "nelbo",
    "reconstruction",
    "stream",
]
