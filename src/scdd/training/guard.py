"""What a run does about losses and gradients that are not finite, and about a loss that leaps.

A bad step is left out on the device, as it happens (`Optimiser.update_and_average`). Here the host reads what the device
has noted, whenever something is reported or saved, tells of it, and rolls the run back where leaving out is no cure.
What is decided depends on the steps alone, not on when it is looked at, and is the same on every rank.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from scdd.core import UserError
from scdd.training.options import GuardOptions
from scdd.training.parallel import local

if TYPE_CHECKING:
    from scdd.training.trainer import Trainer

MOST = 1000  # steps that the device notes between two looks
LEAST = 1e-3  # of the median: losses that hardly vary are not all spikes


class Trouble(NamedTuple):
    """What calls for a roll-back: bad steps first … last, from 0 on, and what was wrong with them."""

    first: int
    last: int
    what: str
    kind: str  # in the name of the file that holds the first one's batch


class Guard:
    """What has gone wrong in a run so far. `skipped` batches of the data's order are left out before the next one."""

    def __init__(self, options: GuardOptions, device: torch.device, every: int) -> None:
        """`every` so many steps somebody looks, or more often."""
        self.options, self.every = options, min(every, MOST)
        # Written on the device: loss and gradient norm of step k, in column k mod `every`.
        self.noted = torch.zeros(2, self.every, dtype=torch.float64, device=device)
        self.seen = 0  # steps that have been looked at
        self.bad = self.high = 0  # steps at the end that were not finite; spikes
        self.skipped = self.rollbacks = 0
        self.losses: deque[float] = deque(maxlen=options.window)  # the last ones that were in order

    @property
    def in_doubt(self) -> bool:
        """Whether the last step was bad: no moment for a checkpoint to return to."""
        return bool(self.bad or self.high)

    def look(self, trainer: Trainer) -> bool:
        """Tell of what has happened since the last look, and roll back if that is called for; whether it was.

        Waits for the device. Every rank must call it.
        """
        if self.seen == trainer.step:
            return False
        columns = [step % self.every for step in range(self.seen, trainer.step)]
        losses, norms = self.noted[:, columns].unbind()
        trainer.world.reduce(losses)
        trouble = None
        for loss, norm in zip((losses / trainer.world.size).tolist(), norms.tolist(), strict=True):
            trouble = trouble or self._weigh(trainer, loss, norm)
        if self.bad and trainer.world.any(not _finite(trainer.module.parameters()))[0]:
            first = trouble.first if trouble is not None else self.seen - self.bad
            trouble = Trouble(first, first, "the weights were not finite", "not-finite")
        if trouble is None:
            return False
        self._roll_back(trainer, trouble)
        return True

    def _weigh(self, trainer: Trainer, loss: float, norm: float) -> Trouble | None:
        """Take in one step, in its order."""
        step, options = self.seen, self.options
        self.seen += 1
        if step + self.skipped == trainer.objective.changes_at:
            self.losses.clear()
            self.high = 0
        if not (math.isfinite(loss) and math.isfinite(norm)):
            which = "gradient" if math.isfinite(loss) else "loss"
            trainer.log.text(step + 1, "event", f"the {which} is not finite, step left out")
            self.bad += 1
            if self.bad < options.not_finite:
                return None
            first = step + 1 - self.bad
            return Trouble(first, step, f"the loss or its gradient was NaN or infinite {self.bad} times", "not-finite")
        self.bad = 0
        bound = self._bound()
        if loss <= bound:
            self.high = 0
            if options.spike is not None:
                self.losses.append(loss)
            return None
        self.high += 1
        trainer.log.text(step + 1, "event", f"the loss is {loss:.4g}, a spike above {bound:.4g}")
        if self.high < options.spike_steps:
            return None
        return Trouble(
            step + 1 - self.high, step, f"the loss was a spike {self.high} times (at last {loss:.4g})", "spike"
        )

    def _bound(self) -> float:
        """Above which a loss is a spike."""
        if self.options.spike is None or len(self.losses) < self.options.window / 2:
            return math.inf
        middle = median(self.losses)
        spread = median(abs(loss - middle) for loss in self.losses)
        return middle + self.options.spike * max(spread, LEAST * abs(middle))

    # -- going back -------------------------------------------------------------------------------------------------

    def _roll_back(self, trainer: Trainer, trouble: Trouble) -> None:
        """To the last checkpoint; what it led to from there up to the last bad step is skipped."""
        skipped, rollbacks, clock = self.skipped, self.rollbacks + 1, trainer.clock
        file = self._keep_batch(trainer, trouble)
        trainer.checkpoints.wait()  # the last good one may not be complete yet
        last = trainer.world.broadcast(str(trainer.checkpoints.latest() or ""))
        if not last or rollbacks > self.options.rollbacks:
            allowed = f"guard.rollbacks allows no more than {self.options.rollbacks}"
            why = allowed if last else "there is no checkpoint to go back to"
            raise UserError(
                f"{trouble.what} from step {trouble.first + 1} on, and {why} (that step's batch is in {file}; the last good "
                f"checkpoint is {last or 'none'}): lower learning_rate, or compute in float32.",
                "learning_rate",
            )
        trainer.resume()
        trainer.clock, trainer.logged = clock, (trainer.tokens, clock.seconds)  # time that was spent is spent
        step = trainer.step
        self.rollbacks, self.skipped = rollbacks, trouble.last + 1 - step + skipped
        trainer.loader.cursor = (step + self.skipped) * trainer.options.batch_size
        trainer.log.rewind(step)
        for notice in trainer.notices:
            trainer.log.text(step, "notice", notice)
        trainer.log.text(
            step,
            "event",
            f"rolled back to here, and batches up to that of step {trouble.last + 1} are skipped, {trouble.last + 1 - step} in all: "
            f"{trouble.what} from step {trouble.first + 1} on (roll-back {rollbacks} of {self.options.rollbacks}; see {file})",
        )

    def _keep_batch(self, trainer: Trainer, trouble: Trouble) -> Path:
        """The first bad step's batch, in a file to look at."""
        size, loader = trainer.options.batch_size, trainer.loader
        first = (trouble.first + self.skipped) * size
        blocks = loader.samples(first, first + size)
        file = trainer.checkpoints.run / f"{trouble.kind}-step-{trouble.first}.safetensors"
        if trainer.world.is_main:
            tokens, _ = loader.blocks.take(blocks)
            save_file({"tokens": torch.from_numpy(tokens), "blocks": torch.from_numpy(blocks)}, file)
        return file

    # -- going on later ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, so that a resumed run decides alike."""
        counts = {name: getattr(self, name) for name in COUNTS}
        return {**counts, "losses": list(self.losses)}

    def load(self, state: Any, step: int, checkpoint: Path) -> None:
        """Take over what `state` gave at `step`; a checkpoint of an older version has nothing to say."""
        state = {} if state is None else state
        counts = [state.get(name, 0) for name in COUNTS] if isinstance(state, dict) else []
        losses = state.get("losses", []) if isinstance(state, dict) else None
        sound = counts and all(type(count) is int and count >= 0 for count in counts)
        if not sound or not isinstance(losses, list) or not all(type(loss) is float for loss in losses):
            raise UserError(
                f"{checkpoint} is damaged (what it says of steps left out): delete it to use the one before."
            )
        self.skipped, self.rollbacks, self.bad, self.high = counts
        self.losses = deque(losses, maxlen=self.options.window)
        self.seen = step


COUNTS = ("skipped", "rollbacks", "bad", "high")


def _finite(weights: Iterable[Tensor]) -> bool:
    """Whether all of this rank's numbers are."""
    return bool(torch.stack([torch.isfinite(w).all() for w in local(weights)]).all())
