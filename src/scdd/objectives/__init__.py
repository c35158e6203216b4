"""What is trained: the ELBO of every process, PRISM's head, and the autoregressive baseline."""

from scdd.objectives.ar import ArObjective
from scdd.objectives.base import Loss, Objective
from scdd.objectives.batch_slice import BatchSlice, stream
from scdd.objectives.diffusion import DiffusionObjective
from scdd.objectives.elbo import nelbo, reconstruction
from scdd.objectives.meter import Estimate, RatioMeter
from scdd.objectives.prism import PrismObjective
from scdd.objectives.times import Adaptive, Density, Power, Times, TimeSampler

__all__ = [
    "Adaptive",
    "ArObjective",
    "BatchSlice",
    "Density",
    "DiffusionObjective",
    "Estimate",
    "Loss",
    "Objective",
    "Power",
    "PrismObjective",
    "RatioMeter",
    "TimeSampler",
    "Times",
    "nelbo",
    "reconstruction",
    "stream",
]
