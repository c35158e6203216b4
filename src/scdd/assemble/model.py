"""From a recipe to a model: its process and its network. Sampling needs this and nothing of `training`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import torch

from scdd.core.options import component
from scdd.core.rng import derive_seed
from scdd.core.types import Vocab
from scdd.models.dit import DiT
from scdd.models.options import DiTConfig
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.base import Process
from scdd.processes.options import PROCESSES, AutoregressiveOptions, ProcessOptions
from scdd.schedules.base import Schedule
from scdd.schedules.options import SCHEDULES, ScheduleOptions

if TYPE_CHECKING:
    from scdd.recipe.sections import Recipe

FOREIGN = "process"  # where a checkpoint notes a process that is not its recipe's


def schedule(options: ScheduleOptions) -> Schedule:
    """γ_t and ρ_t."""
    kind, values = component(options, SCHEDULES)
    made: Schedule = kind(**values)
    return made


def process_of_kind(kind: str, vocab: Vocab, given: Schedule) -> Process:
    """The process of that name over a schedule at hand."""
    module, _, name = PROCESSES[kind].partition(":")
    made: Process = getattr(import_module(module), name)(vocab, given)
    return made


def process(options: ProcessOptions, vocab: Vocab) -> Process | Autoregressive:
    """The forward process, or what stands for it in the autoregressive baseline."""
    if isinstance(options, AutoregressiveOptions):
        return Autoregressive(vocab)
    return process_of_kind(options.kind, vocab, schedule(options.schedule))


def network_config(spec: Recipe, input_bias: bool = False) -> DiTConfig:
    """The network's shape; `input_bias` if weights from elsewhere have one, whatever the recipe says."""
    return spec.model.config(spec.process.kind == "ar", input_bias)


def network(spec: Recipe, vocab: Vocab, input_bias: bool = False) -> DiT:
    """The denoiser with the recipe's seed's weights, drawn on the CPU: the same on every device."""
    generator = torch.Generator().manual_seed(derive_seed(spec.seed, "weights") >> 1)
    return DiT(network_config(spec, input_bias), vocab, generator)
