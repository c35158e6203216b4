"""Jobs as plain data, for processes that understand requests and leave the computing to another.

What walks is its rows of tokens and its plan; of anything else the verb and the checked body are sent, and the job is made once more of
them. Drawn texts go back as tokens and counts: to decode them is the business of whoever writes the answer.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch

from scdd.core.options import altered
from scdd.lm.model import LM
from scdd.lm.results import Sample
from scdd.lm.rows import Row
from scdd.lm.run import Run, Text, sample_of
from scdd.models.network import Network
from scdd.samplers.plan import SamplingPlan
from scdd.serve.errors import ApiError, as_api_error
from scdd.serve.jobs import Job
from scdd.serve.service import PLANS, Service


class Described(LM):
    """A model without its weights: it understands requests and writes answers, and computes nothing."""

    def __init__(self, lm: LM) -> None:
        network = cast(Network, _Absent(hasattr(lm.network, "cache")))
        quality = None if lm.quality is None else cast(Any, _no_quality)
        super().__init__(
            network, lm.process, lm.tokenizer, lm.context,
            sampling=lm.sampling, repair=lm.repair, quality=quality, name=lm.name,
        )  # fmt: skip
        self.channel, self.chat_template = lm.channel, lm.chat_template
        self._dtype, self._parameters = lm.dtype, lm.parameters

    @property
    def device(self) -> torch.device:
        """Nothing is on the device of the weights."""
        return torch.device("cpu")

    @property
    def dtype(self) -> str:
        """What is computed in, elsewhere."""
        return self._dtype

    @property
    def parameters(self) -> int:
        """Of the network, elsewhere."""
        return self._parameters


class _Absent:
    """What samplers may ask of a network before anything is computed: whether it has a cache."""

    def __init__(self, cached: bool) -> None:
        if cached:
            self.cache = None


def _no_quality(hidden: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("this process has no weights")


class Texts(NamedTuple):
    """Rows that are to be drawn."""

    process: Any
    rows: tuple[tuple[tuple[int, ...], tuple[bool, ...]], ...]
    """(Tokens, which of them stay) of each."""
    plan: bytes
    """Without its seed, pickled by itself: most requests have one that is known already."""
    seed: int


class Verb(NamedTuple):
    """A job that is more than its rows: its finish or its work needs the network."""

    name: str
    body: Any
    record: bool


Order = Texts | Verb


def order_of(job: Job) -> Order:
    """A job of this process, for another."""
    if job.order is not None:
        return Verb(*job.order)
    assert job.run is not None
    rows = tuple((text.row.tokens, text.row.frozen) for text in job.run.texts)
    plan = job.run.plan
    return Texts(job.process, rows, pickle.dumps(altered(plan, seed=0), 5), plan.seed)


@lru_cache(PLANS)
def _plan(data: bytes) -> SamplingPlan:
    plan: SamplingPlan = pickle.loads(data)
    return plan


def job_of(service: Service, order: Order) -> Job:
    """The same job, in the process that computes; a run's texts are its answer as they are."""
    if isinstance(order, Texts):
        plan = altered(_plan(order.plan), seed=order.seed)
        rows = [Row(tokens, frozen) for tokens, frozen in order.rows]
        return Job(run=Run(service.engine(order.process), rows, plan), bare=True)
    make: dict[str, Callable[[], Job]] = {
        "infill": lambda: service.infill(order.body, order.record),
        "correct": lambda: service.correct(order.body, order.record),
        "score": lambda: service.score(order.body),
    }
    return make[order.name]()


# -- answers -----------------------------------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """A text that has been drawn; recorded steps as arrays, which are pickled far faster than tensors."""

    tokens: list[int]
    nfe: int
    counts: tuple[int, ...]
    frames: list[tuple[Any, ...]]


def plain(answer: Any) -> Any:
    """What a job was answered, without what only this process can use."""
    if isinstance(answer, tuple):
        return tuple(map(plain, answer))
    if isinstance(answer, Text):
        frames = [(moment, window, *(each.numpy() for each in shown)) for moment, window, *shown in answer.frames]
        return Drawn(answer.tokens, answer.nfe, answer.counts, frames)
    return replace(answer, trajectory=None) if getattr(answer, "trajectory", None) is not None else answer


def answer_of(job: Job, told: Any) -> Any:
    """The job's answer, of what `plain` made of it."""
    if job.order is not None or job.run is None:
        return told
    return _samples(job.run, told)


def _samples(run: Run, drawn: Sequence[Drawn]) -> tuple[Sample, ...]:
    for text, (tokens, nfe, counts, frames) in zip(run.texts, drawn, strict=True):
        text.tokens, text.nfe, text.counts = tokens, nfe, counts
        text.frames = [(moment, window, *map(torch.from_numpy, shown)) for moment, window, *shown in frames]
    return tuple(sample_of(run.engine, run.plan, text) for text in run.texts)


Refusal = tuple[int, dict[str, Any], dict[str, str] | None]


def refusal(error: BaseException) -> Refusal:
    """Any exception as plain data; bugs are logged here, where their traceback is."""
    known = as_api_error(error)
    return known.status, known.body["error"], known.headers


def refused(told: Refusal) -> ApiError:
    """The same as an exception."""
    status, body, headers = told
    return ApiError(status, body["message"], body["type"], body["param"], body["code"], headers)
