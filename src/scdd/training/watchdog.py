"""Several ranks and one that does not get on: the others wait for it for ever. Here somebody notices, and says which.

The trainer notes where it is, a step and a phase, and a thread of each rank tells the others through the process group's
store, which answers although collectives hang. When a rank has not moved for too long, every rank prints its stacks, rank
0 names those that are behind, and all end with a status that makes torchrun start them again.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch.distributed as dist

from scdd.training.parallel import World

STUCK = 75
"""Exit status: a failure that trying again may mend (EX_TEMPFAIL of sysexits.h)."""
PHASES = ("data", "forward", "backward", "reduce", "report", "validate", "sample", "checkpoint", "agree")
"""Of a step, in their order."""
PAUSES = ("validate", "sample", "checkpoint")
GRACE = 3.0  # seconds for an answer of the store, and for rank 0 to name those behind
PATIENCE = 10  # times as long for a pause, and for the first step, which compiles

Where = tuple[int, str]
"""Step and phase. A new tuple each time, so that the same phase again counts as movement."""


class Place(NamedTuple):
    """Where a rank is, for how long, and whether it has answered."""

    step: int
    phase: str
    seconds: float
    answers: bool = True

    @property
    def order(self) -> tuple[int, int]:
        """Less is further behind."""
        return self.step, PHASES.index(self.phase)

    def __str__(self) -> str:
        silent = "" if self.answers else ", and does not answer: stopped, or dead"
        return f"at step {self.step + 1} in {self.phase} for {self.seconds:.0f} s{silent}"


def verdict(places: Mapping[int, Place]) -> str:
    """Who is behind: ranks that do not answer, or else those that have come least far."""
    behind = [rank for rank, place in places.items() if not place.answers]
    if not behind:
        least = min(place.order for place in places.values())
        behind = [rank for rank, place in places.items() if place.order == least]
    if len(behind) == len(places):
        return f"all {len(places)} ranks are {places[behind[0]]}: a collective or a device hangs"
    named = "; ".join(f"rank {rank} is {places[rank]}" for rank in behind[:8])
    more = f"; and {len(behind) - 8} more" if len(behind) > 8 else ""
    other = next(place for rank, place in places.items() if rank not in behind)
    return f"behind: {named}{more}. The others wait, {other}"


class Watchdog:
    """Watches a run from a thread while it is entered; does nothing for one process, or without a limit."""

    def __init__(self, world: World, limit: float | None, where: Callable[[], Where]) -> None:
        self.world, self.where, self.limit = world, where, limit or 0.0
        self.tick = min(max(self.limit / 10, 0.02), 10.0)
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._heard = time.monotonic()  # when the store last answered
        self._first, self._last, self._since = where()[0], where(), time.monotonic()
        self._store: Any = None

    def __enter__(self) -> Watchdog:
        if self.limit and self.world.size > 1:
            # A name of its own: torchrun's store outlives the processes that it restarts.
            self._store = cast(Any, dist).PrefixStore(f"watchdog/{self.world.broadcast(uuid.uuid4().hex)}", _store())
            self._last, self._since = self.where(), time.monotonic()
            for work in (self._watch, self._watch_alone):
                self._threads.append(threading.Thread(target=work, name="scdd-watchdog", daemon=True))
                self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(GRACE)  # one that waits for a store that has gone dies with the process

    def _watch(self) -> None:
        """Tell, listen, and end when somebody is stuck."""
        while not self._stop.wait(self.tick):
            if self._stuck():
                self._end(self._conclude)
            self._heard = time.monotonic()

    def _watch_alone(self) -> None:
        """For a rank whose store does not answer, as when rank 0 keeps it and is stopped: nobody else will tell."""
        while not self._stop.wait(self.tick):
            silent = time.monotonic() - self._heard > max(GRACE, 10 * self.tick)
            if silent and self._place().seconds > self._allowed():
                self._end(lambda: False)

    def _stuck(self) -> bool:
        """Tell where this rank is, and hear whether all is well."""
        try:
            self._tell(self._place(), "place")
            if not self._store.check(["stuck"]) and not self._overdue():
                return False
            self._store.set("stuck", "")
            return True
        except RuntimeError:  # the store has gone, and with it whoever kept it
            return self._place().seconds > self._allowed()

    def _place(self) -> Place:
        """This rank's."""
        here = self.where()
        if here is not self._last:
            self._last, self._since = here, time.monotonic()
        return Place(*here, time.monotonic() - self._since)

    def _allowed(self) -> float:
        longer = self._last[0] == self._first or self._last[1] in PAUSES
        return self.limit * (PATIENCE if longer else 1)

    def _overdue(self) -> bool:
        """Whether this rank waits for too long; not while another has a validation or a checkpoint to finish."""
        seconds = self._place().seconds
        if seconds <= self._allowed():
            return False
        resting = any(place.phase in PAUSES for place in self._places().values())
        return not resting or seconds > self.limit * PATIENCE

    # -- through the store ------------------------------------------------------------------------------------------

    def _tell(self, place: Place, kind: str) -> None:
        self._store.set(f"{kind}/{self.world.rank}", json.dumps(place))

    def _places(self) -> dict[int, Place]:
        """Where the ranks were when last heard of; one that was never heard of is where all began."""
        found = {}
        for rank in range(self.world.size):
            answered = self._store.check([f"answer/{rank}"])
            kind = "answer" if answered else "place"
            if answered or self._store.check([f"place/{rank}"]):
                step, phase, seconds, _ = json.loads(self._store.get(f"{kind}/{rank}"))
                found[rank] = Place(step, phase, seconds, answered)
            else:
                found[rank] = Place(self._first, PHASES[0], self._place().seconds, answers=False)
        return found

    def _end(self, conclude: Callable[[], bool]) -> None:
        """Say where this rank is, let rank 0 say who is behind, and end the process."""
        place = self._place()
        _say(f"rank {self.world.rank} is {place}; its stacks:")
        faulthandler.dump_traceback(2)
        told = False
        with contextlib.suppress(RuntimeError):
            told = conclude()
        if not told:
            _say(f"rank {self.world.rank} is {place}, and rank 0, which would name the ranks behind, does not answer")
        os._exit(STUCK)  # flushing might wait for whatever hangs

    def _conclude(self) -> bool:
        """Rank 0 waits for answers and names those behind; the others wait for that. Whether it was said."""
        self._tell(self._place(), "answer")
        wanted = [f"answer/{rank}" for rank in range(self.world.size)] if self.world.is_main else ["told"]
        patience = max(1.0, 4 * self.tick)
        until = time.monotonic() + (patience if self.world.is_main else patience + GRACE)
        while not self._store.check(wanted) and time.monotonic() < until:
            self._heard = time.monotonic()
            time.sleep(self.tick / 4)
        if not self.world.is_main:
            return bool(self._store.check(wanted))
        _say(f"nothing moves ({verdict(self._places())}): ending with status {STUCK}")
        self._store.set("told", "")
        return True


def _say(text: str) -> None:
    """One whole line on the standard error, whatever the other threads hold."""
    os.write(2, f"watchdog: {text}\n".encode())


def _store() -> Any:
    """A connection of our own to the process group's store: that of the main thread may be waiting for something."""
    store: Any = dist.distributed_c10d._get_default_store()
    return store.clone() if hasattr(store, "clone") else store
