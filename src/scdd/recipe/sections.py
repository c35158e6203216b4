"""The recipe: its sections are the components' own options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

from scdd.core.options import Options, Text
from scdd.data.options import DataOptions
from scdd.models.options import DiTOptions, ModelOptions
from scdd.objectives.options import ElboOptions, ObjectiveOptions
from scdd.processes.options import ProcessOptions
from scdd.samplers.options import SamplingOptions
from scdd.training.options import TrainingOptions


@dataclass(frozen=True, kw_only=True)
class Recipe(Options):
    """Every choice of a run."""

    name: Text
    """Name of the run."""
    seed: Annotated[int, Interval(ge=0, lt=2**63)] = 0
    """Seed of everything random."""
    data: DataOptions
    """What to train on."""
    model: ModelOptions = DiTOptions()
    """The network."""
    process: ProcessOptions
    """The forward process."""
    objective: ObjectiveOptions = ElboOptions()
    """What training minimises."""
    training: TrainingOptions
    """The optimiser and the run."""
    sampling: SamplingOptions = SamplingOptions()
    """How text is drawn from the trained model unless something else is asked for."""

    def __post_init__(self) -> None:
        process, objective = self.process.kind, self.objective.kind
        if (process == "ar") != (objective == "ar"):
            raise ValueError(
                f"objective.kind {objective} does not fit process.kind {process}: "
                "ar needs ar in both, and the other objectives need a diffusion process"
            )
        if self.model.kind == "pretrained" and self.training.start_from is None:
            raise ValueError("model.kind pretrained takes the network of training.start_from: name a model there")
        context = getattr(self.model, "context", None)
        if context is not None and context < self.data.length:
            raise ValueError(
                f"model.context {context} is shorter than the rows of training, data.length {self.data.length}: raise it, or leave it out"
            )
        if objective == "prism" and self.data.kind == "pairs":
            raise ValueError("objective.kind prism does not learn from pairs: choose data of another kind")
        if objective == "prism" and process != "mdlm":
            raise ValueError(f"objective.kind prism needs process.kind mdlm, not {process}")
        if (process == "ar") != (self.sampling.sampler.kind == "ar"):
            raise ValueError(
                f"sampling.sampler.kind {self.sampling.sampler.kind} does not fit process.kind {process}: "
                "the sampler ar and the process ar go together"
            )
