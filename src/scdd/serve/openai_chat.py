"""`/v1/chat/completions` as the OpenAI API has it, for models that come with a chat template."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from scdd.lm import chat
from scdd.lm.results import Sample
from scdd.serve.errors import ApiError, beyond
from scdd.serve.jobs import Job
from scdd.serve.openai_shapes import Answer, ChatChoice, ChatCompletion, ChatReply, Usage
from scdd.serve.replies import facts
from scdd.serve.service import Service, draw_seed
from scdd.serve.stream import Watched, streamed_chunks

ROOM = 64  # tokens of an answer when nobody says how many


class ChatOrder:
    """A chat request as a job."""

    def __init__(self, service: Service, body: ChatCompletion) -> None:
        service.check_model(body.model)
        self.service, self.body, self.seed = service, body, draw_seed() if body.seed is None else body.seed
        most, num, steps = service.limits.length, body.n or 1, service.steps(body.steps)
        if num > service.limits.texts:
            raise beyond("n", f"is {num}", service.limits.texts)
        service.check_size(steps=steps)
        self.chat = chat.written(service.lm, [message.plain() for message in body.messages])
        given = len(self.chat.tokens)
        wanted = body.max_completion_tokens or body.max_tokens
        room = min(ROOM, most - given) if wanted is None else wanted
        if room < 1:
            raise beyond("messages", f"has {given} tokens", most - 1)
        if given + room > most:
            raise beyond("max_tokens", f"makes {given + room} tokens with the messages", most)
        self.given, self.room = given, room
        plan = service.plan(service.lm, body.drawing(), self.seed, stop=False)
        self.job = Job(run=chat.start(service.lm, self.chat, room, plan, num))

    def reply(self, head: dict[str, Any], samples: Sequence[Sample]) -> ChatReply:
        """The whole answer."""
        choices, written = [], 0
        for i, sample in enumerate(samples):
            text, tokens = chat.said(self.service.lm, sample, self.chat)
            found = [at for at in (text.find(stop) for stop in self.body.stops) if at >= 0]
            ended = bool(found) or len(tokens) < self.room
            message = Answer(content=text[: min(found)] if found else text)
            choices.append(ChatChoice(index=i, message=message, finish_reason="stop" if ended else "length"))
            written += len(tokens)
        usage = Usage(prompt_tokens=self.given, completion_tokens=written, total_tokens=self.given + written)
        return ChatReply(**head, choices=choices, usage=usage, scdd=facts(self.seed, samples))


def add_routes(router: APIRouter, service: Service) -> None:
    """The chat route; for a model without a template, a pointer to the one that it has."""
    if service.lm.chat_template is None:

        @router.post("/chat/completions", include_in_schema=False)
        async def no_chats() -> None:
            message = "This model comes with no chat template: use POST /v1/completions with a prompt."
            raise ApiError(404, message, code="not_found")

        return

    @router.post("/chat/completions", response_model=ChatReply)
    async def chats(body: ChatCompletion, request: Request) -> Response | ChatReply:
        """What the assistant says next."""
        order = await run_in_threadpool(ChatOrder, service, body)
        head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": service.name}
        if body.stream:
            return await _stream(order, head, request)
        (samples,) = await service.answers([order.job], request)
        return order.reply(head, samples)


async def _stream(order: ChatOrder, head: dict[str, Any], request: Request) -> StreamingResponse:
    """The answers when they are final, and comments until then: any token may change until the last step."""
    watched = Watched(order.service, order.job, request)
    await watched.taken()

    async def chunks() -> AsyncIterator[dict[str, Any] | None]:
        async for seen in watched.steps():
            if seen is None:
                yield None
        whole = order.reply(head, watched.result())
        for one in whole.choices:
            delta = one.message.model_dump()
            yield {"choices": [{"index": one.index, "delta": delta, "finish_reason": None}]}
            yield {"choices": [{"index": one.index, "delta": {}, "finish_reason": one.finish_reason}]}
        if order.body.stream_options is not None and order.body.stream_options.include_usage:
            yield {"usage": whole.usage.model_dump(), "scdd": whole.scdd}

    return streamed_chunks(watched, {**head, "object": "chat.completion.chunk"}, chunks())
