"""The loop. It sees batches, losses and weights; which process or network they belong to it never learns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from scdd.core import UserError
from scdd.core.rng import derive_seed
from scdd.data.loader import Batch, Loader
from scdd.models.ema import EMA
from scdd.objectives.batch_slice import BatchSlice
from scdd.objectives.meter import Estimate, RatioMeter
from scdd.training.log import Log
from scdd.training.optim import Optim, Optimiser
from scdd.training.parallel import Parallel, whole
from scdd.training.resume import Checkpoints, size_of
from scdd.training.stop import Clock, Signals


@dataclass(frozen=True)
class Settings:
    """How long, how much at a time, and how often; names as in a recipe's training section."""

    steps: int
    batch_size: int
    micro_batch_size: int | None = None
    ema: float = 0.9999
    save_every: int = 5000
    validate_every: int = 5000
    log_every: int = 50
    sample_every: int | None = None
    max_seconds: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """How a run ended: "finished", "out of time", or a signal's name; where its last checkpoint lies."""

    reason: str
    step: int
    checkpoint: Path | None


class Trainer:
    """Everything a run holds. `run` goes from the last checkpoint, if there is one, to the end."""

    def __init__(
        self,
        parallel: Parallel,
        optim: Optim,
        loader: Loader,
        checkpoints: Checkpoints,
        settings: Settings,
        validation: Callable[[], Estimate] | None = None,
        sampler: Callable[[int], list[str]] | None = None,
    ) -> None:
        self.parallel, self.loader, self.checkpoints, self.settings = parallel, loader, checkpoints, settings
        self.world, self.module = parallel.world, parallel.step
        self.objective = self.module.objective
        self.optimiser = Optimiser(self.module.named_parameters(), optim)
        self.ema = EMA(self.module, settings.ema) if settings.ema > 0 else None
        self.validation, self.sampler = validation, sampler
        self.log = Log()
        self.step, self.tokens = 0, 0
        self.clock = Clock()
        self.tally = RatioMeter(self.world.device)
        self.bad = torch.full(
            (), -1, dtype=torch.int64, device=self.world.device
        )  # first step that was not finite
        self.norm = torch.zeros((), device=self.world.device)
        self._logged = (0, 0.0)  # tokens and seconds at the last report

    # -- the loop ---------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Train to the last step, the last second, or a signal; always leaves a checkpoint of where it stopped."""
        reason = "finished"
        with Signals() as signals:
            self.clock.start()
            batches = iter(self.loader)
            while self.step < self.settings.steps:
                self.advance(next(batches))
                self._occasions()
                limit = self.settings.max_seconds
                late, told = self.world.any(
                    limit is not None and self.clock.seconds >= limit, signals.received is not None
                )
                if late or told:
                    reason = (
                        "out of time" if late else (signals.received.name if signals.received else "a signal")
                    )
                    break
            self.clock.stop()
            if reason == "out of time" and self.validation is not None:
                self._validate()  # where the budget ended is what people compare; a signal may leave no time for it
            self.save()
        return Outcome(reason, self.step, self.checkpoints.latest())

    def advance(self, batch: Batch) -> None:
        """One optimiser step on this rank's rows of the global batch."""
        rows = batch.tokens.shape[0]
        size = min(self.settings.micro_batch_size or rows, rows)
        whole_part = BatchSlice(
            derive_seed(self.settings.seed, "training"),
            self.step,
            self.world.rank * rows,
            rows,
            self.settings.batch_size,
        )
        finite = torch.ones((), dtype=torch.bool, device=self.world.device)
        for first in range(0, rows, size):
            cut = slice(first, min(first + size, rows))
            documents = None if batch.documents is None else batch.documents[cut]
            part = whole_part.cut(first, cut.stop - first)
            loss = self.parallel(batch.tokens[cut], documents, part, last=cut.stop == rows)
            self.tally.add(loss.nats, loss.tokens)
            finite = finite & torch.isfinite(loss.total.detach())
        self.norm = self.optimiser.step(self.step, self.ema)
        self.objective.end_step(self.world.reduce)
        # Kept on the device and read when something is read anyway: the step itself never waits.
        finite = finite & torch.isfinite(self.norm)
        self.bad = torch.where((self.bad < 0) & ~finite, self.step, self.bad)
        self.step += 1
        self.tokens += batch.tokens.shape[1] * self.settings.batch_size

    def _occasions(self) -> None:
        """What is due after this step."""
        due = self.settings
        if self.step % due.log_every == 0 or self.step == due.steps:
            self._report()
        if self.validation is not None and (self.step % due.validate_every == 0 or self.step == due.steps):
            self._paused(self._validate)
        if due.sample_every and self.sampler is not None and self.step % due.sample_every == 0:
            self._paused(self._sample)
        if self.step % due.save_every == 0 and self.step < due.steps:
            self._paused(self.save)

    def _paused(self, work: Callable[[], object]) -> None:
        """Time spent on `work` is not training time."""
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)
        self.clock.stop()
        work()
        self.clock.start()

    # -- reporting --------------------------------------------------------------------------------------------

    def _report(self) -> None:
        self.require_finite()
        self.world.reduce(self.tally.sums)
        seen, self.tally = self.tally.estimate(), RatioMeter(self.world.device)
        seconds, (tokens, before) = self.clock.seconds, self._logged
        self._logged = (self.tokens, seconds)
        rate = (self.tokens - tokens) / max(seconds - before, 1e-9)
        left = (self.settings.steps - self.step) * self.tokens / self.step / rate
        if self.settings.max_seconds is not None:
            left = min(left, max(0.0, self.settings.max_seconds - seconds))
        values = {
            "loss": seen.mean,
            "error": seen.error,
            "gradient_norm": float(self.norm),
            "learning_rate": self.optimiser.settings.learning_rate(self.step - 1),
            "tokens": self.tokens,
            "epoch": self.loader.epoch,
            "tokens_per_second": rate,
            "seconds": seconds,
            "eta": left,
        }
        if self.world.device.type == "cuda":
            values["memory"] = torch.cuda.max_memory_allocated(self.world.device)
        self.log.numbers(self.step, values)

    def _validate(self) -> None:
        assert self.validation is not None
        found = self._averaged(self.validation)
        values = {
            "valid_nelbo": found.mean,
            "valid_error": found.error,
            "valid_ppl": found.ppl,
            "valid_ppl_error": found.ppl_error,
            "seconds": self.clock.seconds,
        }
        self.log.numbers(self.step, values)

    def _sample(self) -> None:
        assert self.sampler is not None
        for text in self._averaged(lambda: self.sampler(self.step)):  # type: ignore[misc]
            self.log.text(self.step, "sample", text)

    def _averaged(self, work: Callable[[], Any]) -> Any:
        """`work` done with the averaged weights, the ones that are published."""
        if self.ema is None:
            return work()
        with self.ema.swap():
            return work()

    def require_finite(self) -> None:
        """Stop, and say where, if any loss or gradient so far was NaN or infinite. Waits for the device."""
        step = int(self.bad)
        if step < 0:
            return
        first = step * self.settings.batch_size
        blocks = self.loader.samples(first, first + self.settings.batch_size)
        file = self.checkpoints.folder.parent / f"not-finite-step-{step}.safetensors"
        if self.world.is_main:
            tokens, _ = self.loader.blocks.take(blocks)
            save_file({"tokens": torch.from_numpy(tokens), "blocks": torch.from_numpy(blocks)}, file)
        last = self.checkpoints.latest()
        raise UserError(
            f"the loss or its gradient was NaN or infinite at step {step + 1} (its batch is in {file}; the last good "
            f"checkpoint is {last or 'none'}): lower training.learning_rate, or set training.precision to float32."
        )

    # -- going on later ---------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a resumed run needs, by name; the live ones."""
        tensors = {f"model.{name}": t for name, t in self.module.state_dict().items()}
        tensors |= {f"optimiser.{name}": t for name, t in self.optimiser.state().items()}
        if self.ema is not None:
            tensors |= {f"ema.{name}": t for name, t in self.ema.shadow.items()}
        tensors |= {f"objective.{name}": t for name, t in self.objective.state_dict().items()}
        return {**tensors, "tally": self.tally.sums}

    def published(self) -> dict[str, Tensor]:
        """The whole averaged weights under the network's own names; `quality.…` beside them if there is a PRISM head."""
        raw = self.module.state_dict() if self.ema is None else self.ema.weights(self.module)
        return {name.removeprefix("network."): t for name, t in whole(raw).items()}

    def save(self) -> None:
        """A checkpoint of this step, unless it is there already; never one of weights that are not finite."""
        self.require_finite()
        latest = self.checkpoints.latest()
        if latest is not None and latest.name == f"step-{self.step:08d}":
            return
        # Saved as one sum that rank 0 takes up again; gathered here too, so that a run which was never interrupted
        # adds the same numbers in the same order.
        self.world.reduce(self.tally.sums)
        facts = {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.clock.seconds,
            "loader": {**self.loader.state_dict(), "cursor": self.step * self.settings.batch_size},
            "ema_updates": self.ema.updates if self.ema is not None else 0,
        }
        path = self.checkpoints.save(self.step, self.published(), self.state(), facts)
        if not self.world.is_main:
            self.tally = RatioMeter(self.world.device)
        self.log.text(self.step, "notice", f"saved {path}")

    def resume(self) -> Path | None:
        """Take up the newest checkpoint, written by whatever number of ranks; None if there is none."""
        self.checkpoints.clean()
        latest = self.checkpoints.latest()
        if latest is None:
            self.checkpoints.require_room(size_of(self.state()) + size_of(self.module.state_dict()))
            return None
        self.step = int(latest.name.removeprefix("step-"))
        tensors = self.state()
        facts = self.checkpoints.load(latest, tensors)
        self.objective.load_state_dict(
            {
                name.removeprefix("objective."): t
                for name, t in tensors.items()
                if name.startswith("objective.")
            }
        )
        if not self.world.is_main:
            self.tally = RatioMeter(self.world.device)
        if self.ema is not None:
            self.ema.updates = int(facts["ema_updates"])
        self.loader.load_state_dict(facts["loader"])
        self.tokens, self.clock = int(facts["tokens"]), Clock(float(facts["seconds"]))
        self._logged = (self.tokens, self.clock.seconds)
        return latest
