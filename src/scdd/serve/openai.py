"""`/v1/completions` and `/v1/models` as the OpenAI API has them, so that its clients work unchanged.

A diffusion model writes everywhere at once: until the last step any token may still change. A stream therefore sends text
when it is final, which is a window of the text at a time (the whole text, where it fits into the context), and comments in
between that keep the connection alive.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from scdd.lm.results import Sample
from scdd.samplers.plan import SamplingPlan
from scdd.serve import openai_chat
from scdd.serve.completion import Cutter, choice
from scdd.serve.errors import ApiError, beyond
from scdd.serve.jobs import Job
from scdd.serve.openai_shapes import Choice, Completion, CompletionReply, ModelReply, ModelsReply, Usage
from scdd.serve.replies import facts
from scdd.serve.service import Service, draw_seed
from scdd.serve.stream import Watched, streamed_chunks


class Order:
    """A completion request as jobs, one for each prompt."""

    def __init__(self, service: Service, body: Completion, record: bool) -> None:
        service.check_model(body.model)
        self.service, self.body = service, body
        self.n, self.room = body.n or 1, body.max_tokens or 16
        if body.best_of not in (None, self.n):
            raise ApiError(
                400, "best_of must equal n: this server does not rank texts.", param="best_of", code="unsupported_value"
            )
        self.prompts = self._prompts()
        self.steps = service.steps(body.steps)
        service.check_size(steps=self.steps)
        if self.room > service.limits.length:
            raise beyond("max_tokens", f"is {self.room}", service.limits.length)
        texts = self.n * len(self.prompts)
        if texts > service.limits.texts:
            raise beyond("n", f"asks for {texts} texts in all", service.limits.texts)
        self.seed = draw_seed() if body.seed is None else body.seed
        self.stops = body.stops
        self.suffix = body.suffix or ""
        self.after = len(service.tokens(self.suffix, "suffix"))
        self.before = [len(service.tokens(prompt, "prompt")) for prompt in self.prompts]
        plan = service.plan(service.lm, body.drawing(), self.seed, record=record, stop=not self.suffix)
        self.jobs = [self._job(prompt, tokens, plan) for prompt, tokens in zip(self.prompts, self.before, strict=True)]

    def _prompts(self) -> list[str]:
        given: Any = self.body.prompt
        if given is None or isinstance(given, str):
            return [given or ""]
        if not given:
            raise ApiError(400, "prompt is an empty list: give at least one.", param="prompt", code="invalid_value")
        if isinstance(given[0], int):
            given = [given]
        tokenizer = self.service.lm.tokenizer
        if any(not isinstance(p, str) and any(i >= tokenizer.size for i in p) for p in given):
            raise ApiError(
                400, "prompt holds an id that is no token of this model.", param="prompt", code="invalid_value"
            )
        return [p if isinstance(p, str) else tokenizer.decode(p) for p in given]

    def _job(self, prompt: str, tokens: int, plan: SamplingPlan) -> Job:
        length = tokens + self.room + self.after
        if length > self.service.limits.length:
            raise beyond("max_tokens", f"makes {length} tokens with prompt and suffix", self.service.limits.length)
        run = self.service.lm.start(self.n, length=length, prompt=prompt, suffix=self.suffix, plan=plan)
        return Job(run=run)

    def cutter(self, place: int) -> Cutter:
        """What turns the tokens of choice `place` into its text."""
        which, tokenizer = place // self.n, self.service.lm.tokenizer
        echo = self.prompts[which] if self.body.echo else ""
        run = self.jobs[which].run
        assert run is not None
        row, start = run.starts[place % self.n], self.before[which]
        return Cutter(tokenizer, row, start, self.room, self.stops, echo, ends=not self.suffix)

    def choices(self, samples: Sequence[Sample]) -> list[Choice]:
        """One for each text, in the order of the prompts."""
        logs = self.body.logprobs is not None
        return [choice(place, self.cutter(place), sample, logs) for place, sample in enumerate(samples)]

    def usage(self, samples: Sequence[Sample]) -> Usage:
        """Tokens read and written."""
        read = sum(self.before) + self.after * len(self.before)
        written = sum(len(self.cutter(place).inside(sample.tokens)) for place, sample in enumerate(samples))
        return Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)

    def facts(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """What OpenAI's shape has no place for."""
        return facts(self.seed, samples)


def routes(service: Service, refused: dict[int | str, dict[str, Any]]) -> APIRouter:
    """The routes of OpenAI's API that this server has."""
    router = APIRouter(prefix="/v1", tags=["openai"], responses=refused)

    @router.post("/completions", response_model=CompletionReply)
    async def completions(body: Completion, request: Request) -> Response | CompletionReply:
        """Complete a prompt, or fill in between a prompt and a suffix."""
        order = await run_in_threadpool(Order, service, body, body.logprobs is not None)
        head = {"id": f"cmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": service.name}
        if body.stream:
            return await _stream(order, head, request)
        answers = await service.answers(order.jobs, request)
        samples = [sample for answer in answers for sample in answer]
        return CompletionReply(
            **head, choices=order.choices(samples), usage=order.usage(samples), scdd=order.facts(samples)  # type: ignore[arg-type]
        )  # fmt: skip

    @router.get("/models")
    async def models() -> ModelsReply:
        """The models that this server has: one."""
        return ModelsReply(data=[ModelReply(id=service.name, created=service.born)])

    @router.get("/models/{name}")
    async def model(name: str) -> ModelReply:
        """One model."""
        service.check_model(name)
        return ModelReply(id=service.name, created=service.born)

    openai_chat.add_routes(router, service)
    return router


async def _stream(order: Order, head: dict[str, Any], request: Request) -> StreamingResponse:
    """Chunks as text becomes final. One prompt a stream: several would have to take turns anyway."""
    if len(order.jobs) > 1:
        raise ApiError(
            400, "A stream takes one prompt: send one request for each.", param="prompt", code="unsupported_value"
        )
    (job,) = order.jobs
    assert job.run is not None
    record = job.run.plan.record
    watched = Watched(order.service, job, request)
    await watched.taken()
    cutters = [order.cutter(place) for place in range(job.rows)]

    async def chunks() -> AsyncIterator[dict[str, Any] | None]:
        async for seen in watched.steps():
            if seen is None:
                yield None
            elif not record:  # then a window is shown when it is final
                text = cutters[seen.row].fed(seen.offset, seen.tokens)
                if text:
                    part = Choice(index=seen.row, text=text, finish_reason=None, logprobs=None)
                    yield {"choices": [part.model_dump()]}
        samples = watched.result()
        for whole, cutter in zip(order.choices(samples), cutters, strict=True):
            yield {"choices": [{**whole.model_dump(), "text": whole.text[len(cutter.sent) :]}]}
        if order.body.stream_options is not None and order.body.stream_options.include_usage:
            yield {"usage": order.usage(samples).model_dump(), "scdd": order.facts(samples)}

    return streamed_chunks(watched, {**head, "object": "text_completion"}, chunks())
