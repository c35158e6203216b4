"""Training: the loop, the optimiser, several devices, checkpoints to go on from, and the log."""

from scdd.training.exact import same_bits
from scdd.training.log import Lines, Log, Sink, TensorBoard, Terminal, Wandb
from scdd.training.optim import Optim, Optimiser
from scdd.training.parallel import Parallel, Step, World, world
from scdd.training.resume import Checkpoints, Identity
from scdd.training.trainer import Outcome, Settings, Trainer
from scdd.training.validate import validate

__all__ = [
    "Checkpoints",
    "Identity",
    "Lines",
    "Log",
    "Optim",
    "Optimiser",
    "Outcome",
    "Parallel",
    "Settings",
    "Sink",
    "Step",
    "TensorBoard",
    "Terminal",
    "Trainer",
    "Wandb",
    "World",
    "same_bits",
    "validate",
    "world",
]
