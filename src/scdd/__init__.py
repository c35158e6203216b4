"""Self-Correcting Discrete Diffusion language models.

    lm = scdd.load()                                  # the bundled model; or a run folder, a checkpoint, a Hub id
    lm.generate(4, steps=64), lm.infill(…), lm.correct(…), lm.score(…)
    scdd.train("nano", "run")                         # as `scdd train nano --out run`
    scdd.evaluate("run", …)                           # as `scdd eval …`

Everything here is imported on first use: `import scdd` must not pay for torch.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scdd.core.denoiser import Denoiser
    from scdd.core.errors import UserError
    from scdd.core.types import Levels, Transition, Vocab
    from scdd.evals.measure.evaluate import evaluate
    from scdd.lm.loading import load
    from scdd.lm.model import LM
    from scdd.lm.results import Correction, Sample, Score
    from scdd.lm.training import train
    from scdd.objectives.base import Objective
    from scdd.processes.base import Process
    from scdd.samplers.base import Sampler
    from scdd.samplers.plan import SamplingPlan
    from scdd.schedules.base import Schedule

__version__ = "0.1.0"
_HOMES = {
    **{"load": "lm.loading", "LM": "lm.model", "train": "lm.training", "evaluate": "evals.measure.evaluate"},
    **{"Sample": "lm.results", "Correction": "lm.results", "Score": "lm.results", "UserError": "core.errors"},
    **{"Denoiser": "core.denoiser", "Vocab": "core.types", "Levels": "core.types", "Transition": "core.types"},
    **{"Objective": "objectives.base", "Process": "processes.base", "Schedule": "schedules.base"},
    **{"Sampler": "samplers.base", "SamplingPlan": "samplers.plan"},
}
__all__ = [
    "LM",
    "Correction",
    "Denoiser",
    "Levels",
    "Objective",
    "Process",
    "Sample",
    "Sampler",
    "SamplingPlan",
    "Schedule",
    "Score",
    "Transition",
    "UserError",
    "Vocab",
    "__version__",
    "evaluate",
    "load",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _calm_threads()
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def _calm_threads() -> None:
    """Waiting OpenMP threads give up their core soon: beside other work, spinning makes a text take many times as long.

    OpenMP reads this as it is loaded, so it comes too late where torch was imported first; who has set it keeps it.
    """
    if "torch" not in sys.modules and {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}.isdisjoint(os.environ):
        os.environ["GOMP_SPINCOUNT"] = "10000"


def __dir__() -> list[str]:
    return __all__
