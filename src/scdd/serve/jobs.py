"""Jobs: what is to be computed, for whom, and what they see of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch import Tensor

from scdd.core.denoiser import Denoiser
from scdd.lm.results import Sample
from scdd.lm.run import Due, Run

BASE = 32  # tokens: what an evaluation costs besides its own
Lane = Literal["texts", "short", "long"]
"""What a job is: texts that walk, one evaluation or so, or many."""


def cost(tokens: int, steps: int = 1) -> float:
    """Of a text, in tokens that are evaluated."""
    return float((tokens + BASE) * steps)


class Abandoned(Exception):
    """Nobody waits for this any more."""


class StepEvent(NamedTuple):
    """One text of a job after a step, as plain numbers."""

    row: int
    offset: int
    step: int
    steps: int
    t: float
    s: float
    tokens: list[int]
    moved: list[int]
    log_p: list[float]
    counts: list[int]
    nfe: int


@dataclass(eq=False)
class Job:
    """Either a run, whose texts share evaluations with others, or work of another kind."""

    run: Run | None = None
    work: Callable[[], Any] | None = None
    finish: Callable[[tuple[Sample, ...]], Any] | None = None
    """Makes the answer of the run's samples, where that needs the network again."""
    long: bool = False
    """Whether the work, or the finish, takes more than an evaluation or so."""
    order: tuple[str, Any, bool] | None = None
    """(Verb, body, whether it is recorded): what the same job is made of elsewhere; None: its rows and plan say it all (`orders`)."""
    process: Any = None
    """The reverse process that was asked for, where it is not the model's own."""
    bare: bool = False
    """Whether whoever asked makes samples of the run's texts itself: they are the answer as they are."""
    watch: Callable[[StepEvent], None] | None = None
    future: Future[Any] = field(default_factory=Future)
    wanted: bool = True
    arrived: float = field(default_factory=time.monotonic)
    cost: float = 0.0
    """What its time is guessed by."""
    left: float = 0.0
    """The part of the cost that is still to come."""
    waiting: deque[tuple[int, Due]] = field(default_factory=deque)
    """Texts, by their number in the run, that wait for a slot."""
    present: int = 0
    """Texts that are under way."""
    alone: bool = False
    """A batch that it was in has failed: its texts share with no other job's from now on."""
    told: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The last step of each text that the watcher has seen, as (window, step): what failed is repeated, not told again."""

    def __post_init__(self) -> None:
        if self.run is not None:
            plan = self.run.plan
            steps = plan.steps + plan.extra_steps
            self.cost = sum(cost(len(text.tokens), steps) for text in self.run.texts)
        self.left = self.cost

    @property
    def lane(self) -> Lane:
        """Jobs of one kind are taken in the order of their coming."""
        return "texts" if self.run is not None else "long" if self.long else "short"

    @property
    def rows(self) -> int:
        """Texts."""
        return 1 if self.run is None else len(self.run.texts)

    def drop(self) -> None:
        """Nobody waits for the answer any more."""
        self.wanted = False
        self.future.cancel()


class Guarded:
    """The network for all that is not a step of a batch: somebody is told before each evaluation, and may refuse it."""

    def __init__(self, inner: Denoiser, before: Callable[[Tensor], None]) -> None:
        self._inner, self._before = inner, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def hidden(self, z_t: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`Denoiser.hidden`."""
        self._before(z_t)
        return self._inner.hidden(z_t, *args, **kwargs)
