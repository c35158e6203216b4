"""The loop. It sees batches, losses and weights; which process or network they belong to it never learns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scdd.core.rng import derive_seed
from scdd.data.files import make_folder
from scdd.data.loader import Batch, Loader
from scdd.objectives.base import BatchSlice, Estimate, RatioMeter
from scdd.training.guard import Guard
from scdd.training.log import Lines, Log
from scdd.training.optim import MovingAverage, Optimiser
from scdd.training.options import TrainingOptions
from scdd.training.parallel import Parallel
from scdd.training.resume import Checkpoints, Published, published, size_of
from scdd.training.signals import Signals
from scdd.training.verify import sound_checkpoint
from scdd.training.watchdog import Watchdog


@dataclass(frozen=True)
class Outcome:
    """How a run ended: "finished", "out of time", or a signal's name; where its last checkpoint lies."""

    reason: str
    step: int
    checkpoint: Path | None


class Clock:
    """Seconds spent training: it stands still while validating and saving, and goes on where a resumed run left off."""

    def __init__(self, spent: float = 0.0) -> None:
        self.spent = spent
        self._since: float | None = None

    def start(self) -> None:
        """Run from now on."""
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Stand still."""
        self.spent, self._since = self.seconds, None

    @property
    def seconds(self) -> float:
        """So far."""
        return self.spent + (time.perf_counter() - self._since if self._since is not None else 0.0)


class Trainer:
    """Everything a run holds. `run` goes from the last checkpoint, if there is one, to the end."""

    def __init__(
        self,
        parallel: Parallel,
        loader: Loader,
        checkpoints: Checkpoints,
        options: TrainingOptions,
        seed: int = 0,
        validation: Callable[[], Estimate] | None = None,
    ) -> None:
        self.parallel, self.loader, self.checkpoints, self.options = parallel, loader, checkpoints, options
        self.world, self.module, self.objective = parallel.world, parallel.module, parallel.module.objective
        parameters = self.module.named_parameters()
        matrices = self.module.hidden_matrices()
        self.optimiser = Optimiser(parameters, options, matrices, keep_gradients=parallel.replayed, world=self.world)
        self.average = MovingAverage(self.module, options.ema) if options.ema > 0 else None
        # Shards must all run the network as often, so they all cut their rows where other rows begin.
        self.border = self.objective.border(options.batch_size) if self.world.is_sharded else 0
        self.validation = validation
        self.sampler: Callable[[], list[str]] | None = None  # texts to be logged now and then
        self.log = Log()  # none of yours: `run` writes metrics.jsonl
        self.notices: list[str] = []  # what resuming found
        self.seed, self.step, self.tokens = derive_seed(seed, "training"), 0, 0
        self.clock = Clock()
        device = self.world.device
        self.meter = RatioMeter(device)  # of the losses since the last report
        self.norm = torch.zeros((), device=device)  # of the last gradient
        self.guard = Guard(options.guard, device, options.log_every)
        self.at = (0, "data")  # step and phase, for the watchdog
        self.logged = (0, 0.0)  # tokens and seconds at the last report
        self.saved = -1  # the step of the last checkpoint

    # -- the loop ---------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Train to the last step, the last second, or a signal; always leaves a checkpoint of where it stopped."""
        reason = "finished"
        self.at = (self.step, "data")
        watchdog = Watchdog(self.world, self.options.watchdog, lambda: self.at)
        with Signals() as signals, self._logging(), watchdog:
            self.clock.start()
            batches = iter(self.loader)
            while self.step < self.options.steps and reason == "finished":
                self.at = (self.step, "data")
                self.advance(next(batches))
                if self._occasions():
                    batches = iter(self.loader)  # rolled back: other data
                self.at = (self.step, "agree")
                limit = self.options.max_seconds
                late, told = self.world.any(
                    limit is not None and self.clock.seconds >= limit,
                    signals.received is not None or self.checkpoints.failed,  # `save` says what failed
                )
                if late:
                    reason = "out of time"
                elif told:
                    reason = signals.received.name if signals.received else "a signal"
            self.clock.stop()
            self.at = (self.step, "checkpoint")
            if reason == "out of time" and self.validation is not None:
                self._validate()  # where the budget ended is what people compare; a signal may leave no time for it
            self.save()
            self.checkpoints.wait()
            self._tell_written()
        return Outcome(reason, self.step, self.checkpoints.latest())

    @contextmanager
    def _logging(self) -> Iterator[None]:
        """Whoever has attached no log gets metrics.jsonl all the same."""
        if self.log.sinks or not self.world.is_main:
            yield
            return
        make_folder(self.checkpoints.run)
        self.log = Log(Lines(self.checkpoints.run, self.step))
        try:
            yield
        finally:
            self.log.close()
            self.log = Log()

    def advance(self, batch: Batch) -> None:
        """One step on this rank's rows of the global batch: forward, backward, update, average."""
        count, total = batch.tokens.shape[0], self.options.batch_size
        number = self.step + self.guard.skipped
        whole_slice = BatchSlice(self.seed, number, self.world.rank * count, count, total)
        sums, mean = self.meter.sums.clone(), torch.zeros((), dtype=torch.float64, device=self.world.device)
        for rows, part in whole_slice.micro_batches(self.options.micro_batch_size, self.border):
            documents = None if batch.documents is None else batch.documents[rows]
            learnt = None if batch.learnt is None else batch.learnt.rows(rows)
            with self.parallel.sending_gradients(last=rows.stop == count):
                self.at = (self.step, "forward")
                loss = self.parallel.forward(batch.tokens[rows], documents, learnt, part)
                self.at = (self.step, "backward")
                # A loss that is not finite makes every gradient so, on all ranks, and the optimiser leaves the step out.
                value = loss.total.detach()
                upstream = torch.where(torch.isfinite(value), torch.ones_like(value), torch.nan)
                self.optimiser.take_gradients(loss.total, upstream, alone=rows == slice(0, count))
            self.meter.add(loss.nats, loss.tokens)
            mean += value
        self.at = (self.step, "reduce")
        self.norm = self.optimiser.update_and_average(self.step, self.average)
        self.objective.end_step(self.world.reduce)
        # Kept on the device and read when something is read anyway: the step itself never waits.
        self.meter.sums = torch.where(torch.isfinite(self.norm), self.meter.sums, sums)
        self.guard.noted[:, self.step % self.guard.every] = torch.stack((mean, self.norm.double()))
        self.step += 1
        self.tokens += batch.tokens.shape[1] * total

    def _occasions(self) -> bool:
        """What is due after this step; whether the run was rolled back instead."""
        due, last = self.options, self.step == self.options.steps
        saves = self.step % due.save_every == 0 and not last
        reports = self.step % due.log_every == 0 or last
        self.at = (self.step, "report")
        if (reports or saves or self.step % self.guard.every == 0) and self.guard.look(self):
            return True
        if reports:
            self._report()
        if self.validation is not None and (self.step % due.validate_every == 0 or last):
            self._paused(self._validate, "validate")
        if due.sample_every and self.sampler is not None and self.step % due.sample_every == 0:
            self._paused(self._sample, "sample")
        if saves and not self.guard.in_doubt:
            self._paused(self.save, "checkpoint")
        self._tell_written()
        return False

    def _tell_written(self) -> None:
        while self.checkpoints.written:
            self.log.text(self.step, "notice", f"saved {self.checkpoints.written.pop(0)}")

    def _paused(self, work: Callable[[], object], phase: str) -> None:
        """Time spent on `work` is not training time."""
        self.at = (self.step, phase)
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)
        self.clock.stop()
        work()
        self.clock.start()

    # -- reporting --------------------------------------------------------------------------------------------

    def _report(self) -> None:
        self.world.reduce(self.meter.sums)
        loss, self.meter = self.meter.estimate(), RatioMeter(self.world.device)
        seconds, (tokens, before) = self.clock.seconds, self.logged
        self.logged = (self.tokens, seconds)
        rate = (self.tokens - tokens) / max(seconds - before, 1e-9)
        left = (self.options.steps - self.step) * self.tokens / self.step / rate
        if self.options.max_seconds is not None:
            left = min(left, max(0.0, self.options.max_seconds - seconds))
        values = {
            "loss": loss.mean,
            "error": loss.error,
            "gradient_norm": float(self.norm),
            "learning_rate": self.optimiser.learning_rate_at(self.step - 1),
            "tokens": self.tokens,
            "epoch": self.loader.epoch,
            "tokens_per_second": rate,
            "seconds": seconds,
            "eta": left,
        }
        if self.world.device.type == "cuda":
            values["memory"] = torch.cuda.max_memory_allocated(self.world.device)
        # Of steps that were left out, or of none that was not, there is nothing to report.
        self.log.numbers(self.step, {name: value for name, value in values.items() if math.isfinite(value)})

    def _validate(self) -> None:
        assert self.validation is not None
        bound = self._averaged(self.validation)
        values = {
            "valid_nelbo": bound.mean,
            "valid_error": bound.error,
            "valid_ppl": bound.ppl,
            "valid_ppl_error": bound.ppl_error,
            "seconds": self.clock.seconds,
        }
        self.log.numbers(self.step, values)

    def _sample(self) -> None:
        assert self.sampler is not None
        for text in self._averaged(self.sampler):
            self.log.text(self.step, "sample", text)

    def _averaged(self, work: Callable[[], Any]) -> Any:
        """`work` done with the averaged weights, the ones that are published."""
        with self.average.swapped_in() if self.average is not None else nullcontext():
            return work()

    # -- going on later ---------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a resumed run needs, by name; the live ones."""
        tensors = {f"model.{name}": t for name, t in self.module.state_dict().items()}
        tensors |= {f"optimiser.{name}": t for name, t in self.optimiser.state().items()}
        if self.average is not None:
            tensors |= {f"ema.{name}": t for name, t in self.average.shadow.items()}
        tensors |= {f"objective.{name}": t for name, t in self.objective.state_dict().items()}
        return {**tensors, "tally": self.meter.sums}  # the name that older checkpoints have

    def published(self) -> dict[str, Published]:
        """The averaged weights under the network's own names; `quality.…` beside them if there is a PRISM head."""
        state, averages = self.module.state_dict(), {} if self.average is None else self.average.shadow
        sources = {name: f"{'ema' if name in averages else 'model'}.{name}" for name in state}
        weights = published({**state, **averages}, sources, self.options.lora)
        prefix = f"network.{self.module.network.weights_prefix}"
        return {name.removeprefix(prefix): each for name, each in weights.items()}

    def save(self) -> None:
        """A checkpoint of this step, unless it is there already; never one of weights that are not finite.

        It may be written while the run goes on: `checkpoints.wait` waits for it.
        """
        if self.guard.look(self):
            return  # rolled back to one that is there
        self.checkpoints.wait()
        if self.step == self.saved:
            return
        # Saved as one sum that rank 0 takes up again; gathered here too, so that a run which was never interrupted
        # adds the same numbers in the same order.
        self.world.reduce(self.meter.sums)
        facts = {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.clock.seconds,
            "loader": {
                **self.loader.state_dict(),
                "cursor": (self.step + self.guard.skipped) * self.options.batch_size,
            },
            "guard": self.guard.state(),
            "ema_updates": self.average.updates if self.average is not None else 0,
        }
        self.checkpoints.save(self.step, self.state(), self.published(), facts)
        self.saved = self.step
        if not self.world.is_main:
            self.meter = RatioMeter(self.world.device)

    def resume(self) -> Path | None:
        """Take up the newest undamaged checkpoint, written by whatever number of ranks; None if there is none.

        If newer ones are damaged, `notices` says so.
        """
        self.checkpoints.wait()
        self.checkpoints.clean()
        latest, self.notices = sound_checkpoint(self.checkpoints.run, self.world)
        if latest is None:
            self.checkpoints.require_room(size_of(self.state()) + size_of(self.module.state_dict()))
            return None
        self.step = self.saved = int(latest.name.removeprefix("step-"))
        tensors = self.state()
        facts = self.checkpoints.load(latest, tensors)
        learnt = {name: tensors[f"objective.{name}"] for name in self.objective.state_dict()}
        self.objective.load_state_dict(learnt)
        if not self.world.is_main:
            self.meter = RatioMeter(self.world.device)
        if self.average is not None:
            self.average.updates = int(facts["ema_updates"])
        self.loader.load_state_dict(facts["loader"])
        self.guard.load(facts.get("guard"), self.step, latest)
        self.tokens, self.clock = int(facts["tokens"]), Clock(float(facts["seconds"]))
        self.logged = (self.tokens, self.clock.seconds)
        return latest
