"""Self-Correcting Discrete Diffusion language models.

    lm = scdd.load()                                  # the bundled model; or a run folder, a checkpoint, a Hub id
    lm.generate(4, steps=64), lm.infill(…), lm.correct(…), lm.score(…)
    scdd.train("nano", "run")                         # as `scdd train nano --out run`
    scdd.evaluate("run", …)                           # as `scdd eval …`

Everything here is imported on first use: `import scdd` must not pay for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scdd.core import machine

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
machine.calm_threads()  # at once: it comes too late when torch has been loaded
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
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
