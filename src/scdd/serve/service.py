"""From requests to jobs: the model behind the API, and how long anybody waits for it."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

from fastapi import Request

from scdd.core.denoiser import Denoiser
from scdd.core.errors import UserError, at
from scdd.core.options import altered
from scdd.lm.model import LM
from scdd.lm.options import RepairOptions, ScoreOptions
from scdd.lm.rows import MOST_TRIES, SPAN
from scdd.lm.run import Engine
from scdd.processes.base import Process, make_process, process_of_kind
from scdd.processes.options import PROCESSES, AutoregressiveOptions
from scdd.samplers.options import SamplingOptions
from scdd.samplers.plan import SamplingPlan
from scdd.serve import requests as ask
from scdd.serve.errors import ApiError, beyond
from scdd.serve.job_queue import JobQueue, LocalQueue
from scdd.serve.jobs import Guarded, Job, cost
from scdd.serve.limits import Limits
from scdd.serve.metrics import Meters
from scdd.serve.scheduler import Scheduler
from scdd.serve.sharing import Sharing
from scdd.serve.waiting import settled

EDITING = 60  # times that a text is read when it is repaired by edits, about
VIEWS = 16  # reverse processes that are kept ready
PLANS = 256  # that are remembered
LIGHT = 4096  # characters and tokens of a request that is understood faster than another thread is asked to


class Service:
    """One model, its limits, and its scheduler."""

    def __init__(
        self, lm: LM, limits: Limits, name: str | None = None, threads: int | None = None, lent: bool = False
    ) -> None:
        meters, sharing, network = Meters(), Sharing(lm, limits.rows_per_forward), lm.engine.model.denoiser
        self.scheduler = scheduler = Scheduler(network, limits, meters, sharing, threads, lent)
        guarded = lm.behind(lambda inner: cast(Denoiser, Guarded(inner, scheduler.before)))
        self._begin(guarded, limits, name or model_id(lm.name), meters, LocalQueue(scheduler))

    @classmethod
    def at(cls, queue: JobQueue, lm: LM, limits: Limits, name: str, meters: Meters, born: int) -> Service:
        """One whose jobs are computed elsewhere: `lm` needs no weights, and there is no scheduler."""
        made = cls.__new__(cls)
        made._begin(lm, limits, name, meters, queue)
        made.born = born
        return made

    def _begin(self, lm: LM, limits: Limits, name: str, meters: Meters, queue: JobQueue) -> None:
        self.lm, self.limits, self.name, self.meters, self.queue = lm, limits, name, meters, queue
        self.born = int(time.time())
        self._views = lru_cache(VIEWS)(self._view)
        self._engines = lru_cache(VIEWS)(lambda process: self.under(process).engine)
        self._plans: dict[object, SamplingPlan] = {}  # by what was asked for: most ask for the same
        # two: the event loop asks for plans, and must not wait for a process that another thread makes
        self._viewing, self._planning = threading.Lock(), threading.Lock()

    def warm_up(self) -> None:
        """The usual text in a few steps, before anybody waits for one: kernels are chosen and, on a GPU, compiled for the
        shape that requests will have, threads belong to whoever calls this, and the scheduler learns how long it takes."""
        steps, length = 4, self.usual_length
        for _ in range(2):  # the first one is slower
            start = time.monotonic()
            self.scheduler.at_once(Job(run=self.lm.start(length=length, plan=self.lm.plan(steps=steps))))
        self.scheduler.learn(cost(length, steps), time.monotonic() - start)

    @property
    def usual_length(self) -> int:
        """Tokens of a text when nobody says how many."""
        return min(self.lm.usual_length, self.limits.length)

    # -- understanding ------------------------------------------------------------------------------------------------

    def check_model(self, name: str | None) -> None:
        """There is one model only."""
        if name is not None and name != self.name:
            raise ApiError(
                404, f"The model {name[:80]!r} does not exist: this server has {self.name!r}.", param="model", code="model_not_found",
            )  # fmt: skip

    def view(self, body: ask.Reverse) -> LM:
        """The model that is asked for."""
        self.check_model(body.model)
        return self.under(body.process)

    def under(self, process: Any) -> LM:
        """The model, maybe under another reverse process, its weights shared."""
        if process is None:
            return self.lm
        if self.lm.engine.autoregressive:
            raise UserError("process: this model is autoregressive and has none; leave it out.")
        with self._viewing, at("process"):  # one view for all who ask: only then do their texts walk together
            return self._views(process)

    def engine(self, process: Any) -> Engine:
        """That of the model under a process; made once, since nothing of it changes while it is served."""
        return self._engines(process)

    def _view(self, process: Any) -> LM:
        lm = self.lm
        assert isinstance(lm.process, Process)
        if isinstance(process, AutoregressiveOptions):
            raise UserError("ar has no reverse process; choose scdd, gidd or mdlm.", "kind")
        view = copy(lm)
        if isinstance(process, str):
            if process not in PROCESSES:
                raise UserError(f"there is no {process!r}; choose one of {', '.join(PROCESSES)}.")
            try:
                view.process = process_of_kind(process, lm.tokenizer.vocab, lm.process.schedule, lm.process.noise)
            except UserError as error:
                if error.option != "schedule":
                    raise
                raise UserError(  # a request has no field for the model's own schedule
                    f"{process} does not fit the model's own schedule, {lm.process.schedule!r}: send "
                    f'{{"kind": "{process}"}}, which brings one that does.'
                ) from error
        else:
            own, asked = lm.process.noise, getattr(process, "noise", "uniform")
            if asked != "uniform" and (own is None or own.name != asked):  # no file is read for a request
                known = "uniform" if own is None else f"uniform or {own.name}"
                raise UserError(f"noise is {asked!r}, and this server's model has {known}: leave it out.", "noise")
            view.process = make_process(process, lm.tokenizer.vocab, own)
        return view

    def check_size(self, *, texts: int = 1, steps: int | None = None, length: int | None = None) -> None:
        """Refuse what is beyond the limits, before anything is allocated."""
        for name, value, most in (
            ("num", texts, self.limits.texts),
            ("steps", steps, self.limits.steps),
            ("length", length, self.limits.length),
        ):
            if value is not None and value > most:
                raise beyond(name, f"is {value}", most)

    def tokens(self, text: str, name: str = "text") -> list[int]:
        """A text's tokens, refused if there are too many."""
        tokens = self.lm.tokenizer.encode(text) if text else []
        if len(tokens) > self.limits.length:
            raise beyond(name, f"has {len(tokens)} tokens", self.limits.length)
        return tokens

    def plan(self, lm: LM, chosen: dict[str, Any], seed: int | None, **run: Any) -> SamplingPlan:
        """How a request's texts are drawn: what it chose, within the limits."""
        seed = draw_seed() if seed is None else seed
        key = (*sorted(chosen.items()), *sorted(run.items())) if lm is self.lm else None
        try:
            known = None if key is None else self._plans.get(key)
        except TypeError:  # something in it is a list
            key = known = None
        if known is None:
            known = self._checked_plan(lm, chosen, run)
            if key is not None:
                with self._planning:
                    self._plans[key] = known
                    if len(self._plans) > PLANS:
                        del self._plans[next(iter(self._plans))]
        return altered(known, seed=seed)

    def _checked_plan(self, lm: LM, chosen: dict[str, Any], run: dict[str, Any]) -> SamplingPlan:
        plan = lm.plan(**{**chosen, "steps": self.steps(chosen.get("steps")), "seed": 0, **run})
        if (rounds := getattr(plan.sampler, "corrections", 0)) > self.limits.steps:
            raise beyond("sampler.corrections", f"is {rounds}", self.limits.steps)
        plan.sampler.check(lm.engine.model)  # otherwise the worker would find out
        return plan

    def each(self, make: Callable[[Any], Job], body: Any) -> list[Job]:
        """A job for the body's text, or for each text of its list, with one seed."""
        if isinstance(body.text, str):
            return [make(body)]
        if len(body.text) > self.limits.texts:
            raise beyond("text", f"is a list of {len(body.text)}", self.limits.texts)
        seeded = (
            {} if "seed" not in type(body).model_fields else {"seed": draw_seed() if body.seed is None else body.seed}
        )

        def made(i: int, text: str) -> Job:
            try:
                return make(body.model_copy(update={"text": text, **seeded}))
            except UserError as error:
                raise UserError(f"text[{i}]: {error}", error.option) from error

        return [made(i, text) for i, text in enumerate(body.text)]

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def generate(self, body: ask.Generate, record: bool = False) -> Job:
        """Texts from masks."""
        lm = self.view(body)
        length = self.usual_length if body.length is None else body.length
        self.check_size(texts=body.num, steps=self.steps(body.steps), length=length)
        for name, text in (("prompt", body.prompt), ("suffix", body.suffix)):
            self.tokens(text, name)
        stop = not body.suffix if body.stop is None else body.stop
        plan = self.plan(lm, body.chosen(SamplingOptions), body.seed, record=record, stop=stop)
        run = lm.start(body.num, length=length, prompt=body.prompt, suffix=body.suffix, plan=plan)
        return Job(run=run, process=body.process)

    def light(self, body: ask.Generate) -> bool:
        """Whether to understand it takes so little that the event loop may do it."""
        tokens = body.num * (self.usual_length if body.length is None else body.length)
        return body.process is None and len(body.prompt) + len(body.suffix) + tokens <= LIGHT

    def infill(self, body: ask.Infill, record: bool = False) -> Job:
        """Texts with holes."""
        lm = self.view(body)
        self.check_size(texts=body.num, steps=self.steps(body.steps))
        self.tokens(SPAN.sub("", body.text))
        sizes = [span[2] or span[1] or "1" for span in SPAN.finditer(body.text)]
        if max(map(len, sizes), default=0) > 9:
            raise beyond("text", "asks for a hole of a billion tokens", self.limits.length)
        if (holes := sum(map(int, sizes))) > self.limits.length:
            raise beyond("text", f"has holes for {holes} tokens", self.limits.length)
        plan = self.plan(lm, body.chosen(SamplingOptions), body.seed, record=record)
        run = lm.start_infill(body.text, body.num, blocks=True, plan=plan)
        if (length := max(map(len, run.starts))) > self.limits.length:
            raise beyond("text", f"has {length} tokens with its holes", self.limits.length)
        if len(run.starts) > max(self.limits.texts, MOST_TRIES):
            raise beyond(
                "num", f"asks for {len(run.starts)} fillings of all lengths", max(self.limits.texts, MOST_TRIES)
            )
        if len(run.starts) == body.num:
            return Job(run=run, process=body.process)
        # the best among fillings of several lengths
        return Job(run=run, finish=run.choose, long=True, order=("infill", _seeded(body, plan.seed), record))

    def correct(self, body: ask.Correct, record: bool = False) -> Job:
        """A text to repair."""
        lm = self.view(body)
        chosen = body.chosen(RepairOptions)
        if (chosen.get("mode") or lm.repair.mode) == "reverse":
            chosen["steps"] = chosen.get("steps", min(lm.repair.steps, self.limits.steps))
        self.check_size(steps=chosen.get("steps"))
        tokens = self.tokens(body.text)
        freeze = [item if isinstance(item, str) else (item[0], item[1]) for item in body.freeze]
        seed = draw_seed() if body.seed is None else body.seed
        repair = lm.to_repair(body.text, chosen, freeze=freeze, seed=seed, blocks=True)
        order = "correct", _seeded(body, seed), record
        if repair.options.mode != "reverse":
            edits = repair.options.mode == "edit"
            work = repair.at_once
            return Job(work=work, cost=cost(len(tokens), EDITING if edits else 1), long=edits, order=order)
        run, finish = lm.start_correct(repair, record)
        return Job(run=run, finish=lambda samples: finish(samples[0]), order=order)

    def score(self, body: ask.Score) -> Job:
        """A text to judge."""
        lm = self.view(body)
        tokens = self.tokens(body.text)
        work = partial(lm.score, body.text, blocks=True, **body.chosen(ScoreOptions))
        return Job(work=work, cost=cost(len(tokens)), order=("score", body, False))

    def steps(self, wanted: int | None) -> int:
        """The steps that a request will take; the usual number is no reason to refuse it."""
        return min(self.lm.sampling.steps, self.limits.steps) if wanted is None else wanted

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def answers(self, jobs: Sequence[Job], request: Request) -> list[Any]:
        """The jobs' answers; the jobs are dropped if time runs out or the client goes away."""
        self.queue.submit(jobs)
        try:
            return await settled(jobs, request, self.limits.seconds)
        finally:
            for job in jobs:
                job.drop()

    # -- facts --------------------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> int:
        """Of the network."""
        return self.lm.parameters


def _seeded(body: Any, seed: int) -> Any:
    """The body with the seed that was drawn for it."""
    return body if body.seed == seed else body.model_copy(update={"seed": seed})


def draw_seed() -> int:
    """A seed that browsers can hold exactly."""
    return secrets.randbelow(2**31)


def model_id(name: str) -> str:
    """A public name that tells nothing about the file system beyond the last folder's name."""
    last = Path(name).name if "/" in name or "\\" in name else name
    if last == "the bundled model":
        return "scdd"
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", last).strip("-.") or "scdd"
