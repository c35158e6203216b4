"""Processes that talk HTTP for the one that computes, so that the two do not share an interpreter.

The command itself computes; each front is a child that has the listening sockets, the model without its weights, and a channel (`channel`). Jobs come as
plain data (`orders`) and go into the one scheduler: queue, limits, fairness and deadlines are those of all fronts together. A front that dies takes
its requests with it and is replaced; when this process dies, its fronts find their channels closed, answer 503 and end.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from scdd.core.errors import UserError
from scdd.serve import connections, front
from scdd.serve.channel import PIECE, Kind, Message, Unpacker
from scdd.serve.orders import Described, Order, Texts, job_of
from scdd.serve.peers import Front, Survey, started
from scdd.serve.run import GRACE, address_of, bound, keep, unbound
from scdd.serve.service import Service
from scdd.serve.spec import Endpoint
from scdd.serve.sums import Families, added, families, summed

log = logging.getLogger("scdd.serve")
ENDING = 5.0  # seconds beyond a drain's own, until what is left is killed
STEADY = 10.0  # seconds of serving: fronts that end sooner make the next ones wait
PAUSES = (0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 30.0)
"""Seconds before a front is replaced, by how many have ended too soon one after the other."""
TRIES = 5  # such in a row, where none serves, after which others would not either


class Fronts:
    """All of them, and what they ask."""

    def __init__(self, service: Service, endpoint: Endpoint, count: int) -> None:
        """Bound, but not listening."""
        self._service, self._endpoint, self._count = service, endpoint, count
        self._sockets = bound(endpoint.host, endpoint.port)
        self.address = address_of(self._sockets[0])
        lm = pickle.dumps(Described(service.lm))
        self._setting = front.Setting(lm, service.name, service.limits, endpoint, count, service.born)
        self._lock = threading.Lock()
        self._fronts: list[Front] = []
        self._gone: Families = []
        self._surveys: dict[int, Survey] = {}
        self._makers = ThreadPoolExecutor(2, "scdd-makers")
        self._asked_to_end, self._at_once, self._listening = threading.Event(), False, False
        self._up, self._falls = False, 0  # whether all have served once; fronts in a row that have soon ended
        self.failure: UserError | None = None

    # -- processes ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """All fronts begin to start."""
        for _ in range(self._count):
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._asked_to_end.is_set():
                return
            made = started(self._sockets, self._setting)
            self._fronts.append(made)
            if self._listening:
                made.send((Kind.GO,))
        threading.Thread(target=self._listen, args=(made,), name="scdd-front", daemon=True).start()

    def listen(self) -> None:
        """Connections are taken from now on; returns when each front does so, or it cannot be."""
        with self._lock:
            if self._asked_to_end.is_set():
                return
            try:
                for sock in self._sockets:  # here, since somebody may have begun to listen since this one was bound
                    sock.listen(connections.WAITING)
            except OSError:
                self.failure = unbound(self._endpoint.host, self._endpoint.port)
                self._asked_to_end.set()
                return
            self._listening, fronts = True, list(self._fronts)
            for each in fronts:
                each.send((Kind.GO,))
        while not self._asked_to_end.is_set() and not self._up:
            self._up = all(each.ready.wait(0.05) for each in fronts)

    def _listen(self, front: Front) -> None:
        """What a front says, until it ends."""
        unpacker = Unpacker()
        try:
            while data := front.channel.recv(PIECE):
                for message in unpacker.messages(data):
                    self._hear(front, message)
        except OSError:
            pass  # it was killed
        except Exception:
            log.exception("A process that talks HTTP was not understood, and is given up")
            front.process.kill()
        self._left(front)

    def _left(self, front: Front) -> None:
        """A front has ended, and is replaced; where one cannot even start as the server does, others would not either."""
        front.forget()
        front.process.join(ENDING)
        if front.process.is_alive():  # it stands still, and would take no notice of anything else
            front.process.kill()
            front.process.join()
        with self._lock:
            self._fronts.remove(front)
            self._gone = summed([self._gone, front.meters])
            surveys, ending = list(self._surveys.values()), self._asked_to_end.is_set()
            falls = self._falls = 0 if time.monotonic() - front.since > STEADY else self._falls + 1
            hopeless = not self._up or (falls >= TRIES and not any(each.ready.is_set() for each in self._fronts))
        for survey in surveys:
            survey.told(front)
        front.channel.close()
        if ending:
            return
        code = front.process.exitcode
        if hopeless and not front.ready.is_set():
            self.failure = UserError(
                f"A process that was to talk HTTP ended with {code} before it could; what it said is above, and 0 processes leave "
                "HTTP to this one.",
                "http_processes",
            )
            self._asked_to_end.set()
            return
        log.error("A process that talks HTTP has ended (%s): another one takes its place.", code)
        self._replace(falls)

    def _replace(self, falls: int) -> None:
        """Start a front, after a while where several have soon ended."""
        while not self._asked_to_end.wait(PAUSES[min(falls, len(PAUSES) - 1)]):
            with contextlib.suppress(OSError):  # there may be too little of something just now
                self._start()
                return
            falls += 1

    # -- messages -----------------------------------------------------------------------------------------------------

    def _hear(self, front: Front, message: Message) -> None:
        match message:
            case Kind.ASK, first, arrived, watched, orders:
                front.asked(range(first, first + len(orders)))
                taking = partial(self._take, front, first, arrived, watched, orders)
                if all(isinstance(order, Texts) for order in orders):
                    taking()
                else:  # to understand a text may take longer than others should wait for it
                    self._makers.submit(taking)
            case Kind.DROP, number:
                front.dropped(number)
            case Kind.WAITING, number:
                front.send((Kind.GIVEN, number, self._service.scheduler.waiting()))
            case Kind.METRICS, number:
                self._survey(front, number)
            case Kind.METERS, number, meters:
                front.meters = meters
                if (survey := self._surveys.get(number)) is not None:
                    survey.told(front)
            case (Kind.READY,):
                front.begins()

    def _take(self, front: Front, first: int, arrived: float, watched: bool, orders: Sequence[Order]) -> None:
        numbers = range(first, first + len(orders))
        try:
            jobs = [job_of(self._service, order) for order in orders]
            for number, job in zip(numbers, jobs, strict=True):
                job.arrived = arrived  # the clock is the machine's, not the process's
                if watched:
                    job.watch = partial(_tell, front, number)
                front.made(number, job)
            self._service.scheduler.submit(jobs)
        except Exception as error:
            for number in numbers:
                front.fail(number, error)
            return
        if watched:
            front.send((Kind.TAKEN, first))
        for number, job in zip(numbers, jobs, strict=True):
            job.future.add_done_callback(partial(front.answer, number))

    def _survey(self, asker: Front, number: int) -> None:
        """All fronts are asked for their meters."""

        def answer() -> None:
            with self._lock:
                self._surveys.pop(survey.number, None)
                parts = [self._gone, *(each.meters for each in self._fronts)]
            own = families(self._service.meters.registry)
            asker.send((Kind.GIVEN, number, added([own, *parts])))

        with self._lock:
            fronts = list(self._fronts)
            survey = Survey(fronts, answer)
            self._surveys[survey.number] = survey
        for each in fronts:
            each.send((Kind.METERS, survey.number))

    @property
    def processes(self) -> list[int]:
        """Their numbers."""
        with self._lock:
            return [each.process.pid for each in self._fronts]

    @property
    def ending(self) -> bool:
        """Whether nothing new is taken any more."""
        return self._asked_to_end.is_set()

    # -- the end ------------------------------------------------------------------------------------------------------

    def end(self, sign: int = 0, frame: object = None) -> None:
        """Take nothing new, answer what was taken, and let `until_ended` return; asked for a second time by Ctrl+C, at once."""
        self._at_once = self._at_once or (self._asked_to_end.is_set() and sign == signal.SIGINT)
        self._asked_to_end.set()

    def until_ended(self) -> None:
        """Returns when no front is left."""
        self._asked_to_end.wait()
        with self._lock:
            fronts = list(self._fronts)
            for sock in self._sockets:
                sock.close()
        for each in fronts:
            each.send((Kind.DRAIN,))
            if not self._listening:  # it has taken nothing, and may still be starting for a while
                each.process.kill()
        deadline, told = time.monotonic() + self._service.limits.seconds + GRACE + ENDING, False
        for each in fronts:
            while each.process.is_alive() and time.monotonic() < deadline:
                if self._at_once and not told:
                    told = True
                    for other in fronts:
                        other.send((Kind.QUIT,))
                each.process.join(0.1)
            if each.process.is_alive():
                each.process.kill()

    def abandon(self) -> None:
        """This process computes no more: fronts answer 503 and end."""
        self._asked_to_end.set()
        with self._lock:
            for each in self._fronts:
                with contextlib.suppress(OSError):
                    each.channel.shutdown(socket.SHUT_RDWR)


def _tell(front: Front, number: int, seen: Any) -> None:
    front.send((Kind.STEP, number, seen))


def run(service: Service, endpoint: Endpoint, count: int, ready: Callable[[str], None]) -> None:
    """Serve until a signal comes, with so many processes for HTTP; this thread computes (`run.run` says why)."""
    fronts = Fronts(service, endpoint, count)
    before = {sign: signal.signal(sign, fronts.end) for sign in (signal.SIGTERM, signal.SIGINT)}

    def talk() -> None:
        fronts.listen()
        if not fronts.ending:
            ready(fronts.address)
        fronts.until_ended()
        service.scheduler.close(wait=0.0)

    try:
        fronts.start()
        service.warm_up()
        keep()
        thread = threading.Thread(target=talk, name="scdd-fronts", daemon=True)
        thread.start()
        service.scheduler.work()
        thread.join()
    finally:
        fronts.abandon()
        for sign, handler in before.items():
            signal.signal(sign, handler)
    if fronts.failure is not None:
        raise fronts.failure
