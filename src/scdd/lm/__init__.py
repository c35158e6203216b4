"""The front door: `scdd.load(path).generate(…)`, `.infill(…)`, `.correct(…)`, `.score(…)`."""

from scdd.lm.loading import load
from scdd.lm.model import LM
from scdd.lm.results import Change, Correction, Moment, Sample, Score, TokenScore, Trajectory
from scdd.lm.run import Progress, Run

__all__ = [
    "LM",
    "Change",
    "Correction",
    "Moment",
    "Progress",
    "Run",
    "Sample",
    "Score",
    "TokenScore",
    "Trajectory",
    "load",
]
