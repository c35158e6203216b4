"""From requests to jobs: the model behind the API, and how long anybody waits for it."""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fastapi import Request
from pydantic import TypeAdapter

from scdd import build, build_samplers, recipe
from scdd.core.errors import UserError
from scdd.lm import LM, Run, Sample
from scdd.lm.rows import SPAN
from scdd.serve import requests as ask
from scdd.serve.errors import ApiError, late
from scdd.serve.jobs import Abandoned, Job, Scheduler
from scdd.serve.limits import Limits
from scdd.serve.metrics import Meters
from scdd.serve.sharing import Sharing

VIEWS = 16  # reverse processes that are kept ready
_PROCESS: TypeAdapter[Any] = TypeAdapter(recipe.Process)


class ClientGone(Exception):
    """Whoever asked has left."""


class Service:
    """One model, its limits, and its scheduler."""

    def __init__(
        self, lm: LM, limits: Limits, name: str | None = None, threads: int | None = None, lent: bool = False
    ) -> None:
        self.lm, self.limits, self.name = lm, limits, name or model_id(lm.name)
        self.meters = Meters()
        self.scheduler = Scheduler(limits, self.meters, Sharing(lm, limits.together), threads, lent)
        self.draining = False
        self._views: OrderedDict[str, LM] = OrderedDict()
        self._lock = threading.Lock()

    def warm_up(self) -> None:
        """A short text, before anybody waits for one: kernels are chosen, and threads belong to whoever calls this."""
        self.lm.generate(steps=2, length=min(self.lm.engine.room, self.limits.length))

    # -- understanding ------------------------------------------------------------------------------------------------

    def check_model(self, name: str | None) -> None:
        """There is one model only."""
        if name is not None and name != self.name:
            raise ApiError(
                404, f"The model {name[:80]!r} does not exist: this server has {self.name!r}.", param="model", code="model_not_found",
            )  # fmt: skip

    def view(self, process: Any) -> LM:
        """The model under another reverse process, its weights shared."""
        if process is None:
            return self.lm
        if self.lm.process is None:
            raise UserError("process: this model is autoregressive and has none; leave it out.")
        spelt = process if isinstance(process, str) else _PROCESS.dump_json(process).decode()
        with self._lock:
            if spelt not in self._views:
                self._views[spelt] = self._viewed(process)
                if len(self._views) > VIEWS:
                    self._views.popitem(last=False)
            self._views.move_to_end(spelt)
            return self._views[spelt]

    def _viewed(self, process: Any) -> LM:
        lm = self.lm
        assert lm.process is not None
        if isinstance(process, recipe.ArProcess):
            raise UserError("process.kind: ar has no reverse process; choose scdd, gidd or mdlm.")
        if isinstance(process, str):
            made = build.PROCESSES[process](lm.tokenizer.vocab, lm.process.schedule)
        else:
            made = build.process(process, lm.tokenizer.vocab)
        view = LM(lm.network, made, lm.tokenizer, lm.context, lm.sampling, lm.quality, lm.name)
        view._graphed = lm._graphed
        return view

    def check_size(self, *, texts: int = 1, steps: int | None = None, length: int | None = None) -> None:
        """Refuse what is beyond the limits, before anything is allocated."""
        for name, value, most in (
            ("num", texts, self.limits.texts),
            ("steps", steps, self.limits.steps),
            ("length", length, self.limits.length),
        ):
            if value is not None and value > most:
                raise ApiError(
                    400,
                    f"{name} is {value}, and this server allows {most}.",
                    param=name,
                    code="limit_exceeded",
                )

    def check_text(self, text: str, name: str = "text") -> int:
        """The number of its tokens, refused if there are too many."""
        tokens = len(self.lm.tokenizer.encode(text)) if text else 0
        if tokens > self.limits.length:
            raise ApiError(
                400, f"{name} has {tokens} tokens, and this server allows {self.limits.length}.", param=name, code="limit_exceeded",
            )  # fmt: skip
        return tokens

    def wishes(self, body: ask.How, lm: LM) -> dict[str, Any]:
        """Keyword arguments for `LM.start`."""
        how = body.wishes()
        if body.sampler is not None:
            spec = build_samplers.section(body.sampler) if isinstance(body.sampler, str) else body.sampler
            how["sampler"] = build_samplers.sampler(spec, lm.quality, lm.tokenizer.eos_id)
        how["seed"] = draw_seed() if body.seed is None else body.seed
        return how

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def generate(self, body: ask.Generate, record: bool = False) -> Job:
        """Texts from masks."""
        self.check_model(body.model)
        lm = self.view(body.process)
        length = min(lm.usual_length, self.limits.length) if body.length is None else body.length
        self.check_size(texts=body.num, steps=self.steps(body.steps), length=length)
        self.check_text(body.prompt, "prompt"), self.check_text(body.suffix, "suffix")
        how = self.wishes(body, lm)
        if body.stop is not None:
            how["stop"] = body.stop
        run = lm.start(body.num, length=length, prompt=body.prompt, suffix=body.suffix, record=record, **how)
        return self.ready(run)

    def infill(self, body: ask.Infill, record: bool = False) -> Job:
        """Texts with holes."""
        self.check_model(body.model)
        lm = self.view(body.process)
        self.check_size(texts=body.num, steps=self.steps(body.steps))
        self.check_text(SPAN.sub("", body.text))
        for span in SPAN.finditer(body.text):
            if len(span[1] or "") > 9:
                raise ApiError(
                    400, "text asks for a hole that is too long.", param="text", code="limit_exceeded"
                )
        holes = sum(int(span[1] or 1) for span in SPAN.finditer(body.text))
        self.check_size(length=holes)
        run = lm.start_infill(body.text, body.num, blocks=True, record=record, **self.wishes(body, lm))
        self.check_size(length=max(map(len, run.starts)))
        return self.ready(run)

    def correct(self, body: ask.Correct, record: bool = False) -> Job:
        """A text to repair."""
        self.check_model(body.model)
        lm = self.view(body.process)
        self.check_size(steps=body.steps)
        self.check_text(body.text)
        freeze: list[str | tuple[int, int]] = [
            item if isinstance(item, str) else (item[0], item[1]) for item in body.freeze
        ]
        seed = draw_seed() if body.seed is None else body.seed
        shared: dict[str, Any] = {"strength": body.strength, "freeze": freeze, "seed": seed, "blocks": True}
        if body.mode == "pass":
            return Job(work=lambda: lm.correct(body.text, mode="pass", threshold=body.threshold, **shared))
        run, finish = lm.start_correct(
            body.text, steps=body.steps, final=body.final, top_p=body.top_p, record=record, **shared
        )
        return self.ready(run, lambda samples: finish(samples[0]))

    def score(self, body: ask.Score) -> Job:
        """A text to judge."""
        self.check_model(body.model)
        lm = self.view(body.process)
        self.check_text(body.text)
        return Job(work=lambda: lm.score(body.text, strength=body.strength, blocks=True))

    def ready(self, run: Run, finish: Any = None) -> Job:
        """A job of a run whose sampler fits its process; otherwise the worker would find out."""
        run.settings.sampler.check(run.engine.process)
        if run.settings.tolerance is not None and run.settings.sampler.name != "ancestral":
            raise UserError("tolerance works with the sampler ancestral only: leave one of them out.")
        return Job(run=run) if finish is None else Job(run=run, finish=finish)

    def steps(self, wanted: int | None) -> int:
        """The steps that a request will take."""
        return self.lm.sampling.steps if wanted is None else wanted

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def answers(self, jobs: Sequence[Job], request: Request) -> list[Any]:
        """The jobs' answers; the jobs are dropped if time runs out or the client goes away."""
        self.scheduler.submit(jobs)
        try:
            return await self.settled(jobs, request)
        finally:
            for job in jobs:
                job.drop()

    async def settled(self, jobs: Sequence[Job], request: Request) -> list[Any]:
        """The answers of jobs that were submitted."""
        futures = [asyncio.wrap_future(job.future) for job in jobs]
        left: asyncio.Future[Any] = asyncio.ensure_future(gone(request))
        answer: asyncio.Future[Any] = asyncio.gather(*futures)
        try:
            remaining = jobs[0].arrived + self.limits.seconds - time.monotonic()
            await asyncio.wait(
                {answer, left}, timeout=max(0.0, remaining), return_when=asyncio.FIRST_COMPLETED
            )
            if answer.done():
                return list(answer.result())
            if left.done():
                raise ClientGone
            raise late(self.limits.seconds)
        except Abandoned:
            raise ClientGone from None
        finally:
            left.cancel()
            answer.cancel()

    # -- facts --------------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """What the playground needs to know."""
        whole = recipe.schema()
        chosen = {"$defs": whole["$defs"], **{k: whole["properties"][k] for k in ("sampling", "process")}}
        own = self.lm.process
        return {
            "model": self.name,
            "process": {"kind": self.lm.engine.name(), "schedule": repr(own.schedule) if own is not None else ""},
            "context": self.lm.context,
            "room": self.lm.engine.room,
            "limits": {k: v for k, v in asdict(self.limits).items() if k in ("length", "steps", "texts", "seconds", "body")},
            "sampling": asdict(self.lm.sampling),
            "refusals": self._refusals(),
            "recipe_schema": chosen,
        }  # fmt: skip

    def _refusals(self) -> dict[str, str]:
        found = {name: self._refusal(name) for name in build_samplers.SECTIONS}
        return {name: why for name, why in found.items() if why is not None}

    def _refusal(self, sampler: str) -> str | None:
        spec = build_samplers.section(sampler)
        try:
            build_samplers.sampler(spec, self.lm.quality, self.lm.tokenizer.eos_id).check(self.lm.process)
        except UserError as error:
            return str(error)
        return None


async def gone(request: Request) -> None:
    """Returns when the client has left; the body has been read by then."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def draw_seed() -> int:
    """A seed that browsers can hold exactly."""
    return secrets.randbelow(2**31)


def model_id(name: str) -> str:
    """A public name that tells nothing about the file system beyond the last folder's name."""
    last = Path(name).name if "/" in name or "\\" in name else name
    if last == "the bundled model":
        return "scdd"
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", last).strip("-") or "scdd"


def as_json(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Samples as plain data."""
    return [sample.json() for sample in samples]


def shaped(limits: Limits, lm: LM, *, batch: int | None, workers: int | None, together: int | None) -> Limits:
    """Limits with a batch shape that suits the device."""
    on_gpu = lm.device.type != "cpu"
    group = together or (16 if on_gpu else None)
    return replace(limits, batch=batch or (64 if on_gpu else 16), workers=workers or 1, together=group)
