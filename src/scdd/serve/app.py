"""The routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, StreamingResponse

from scdd import __version__
from scdd.lm.model import LM
from scdd.lm.results import Result
from scdd.serve import errors, openai, replies, stream
from scdd.serve import requests as ask
from scdd.serve.guard import LOOPBACK, Guard
from scdd.serve.jobs import Job
from scdd.serve.limits import Limits
from scdd.serve.service import Service
from scdd.serve.settings import settings_of
from scdd.serve.waiting import ClientGone

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
REFUSED: dict[int | str, dict[str, Any]] = {
    status: {"model": errors.ErrorReply, "description": text}
    for status, text in {
        400: "The request is wrong, and the message says where.",
        401: "The token is missing or wrong.",
        403: "The host name, or the page that asks, is not this server's.",
        404: "There is no such model.",
        408: "The request was not complete in time.",
        413: "The body is too large.",
        429: "The queue is too long: try again after Retry-After seconds.",
        503: "The server is shutting down, or has as many connections as it can.",
        504: "The time limit has passed.",
    }.items()
}


def create_app(
    lm: LM,
    limits: Limits | None = None,
    *,
    token: str | None = None,
    hosts: Iterable[str] | None = LOOPBACK,
    name: str | None = None,
    threads: int | None = None,
    lent: bool = False,
) -> FastAPI:
    """The server's application.

    `hosts`: names it answers to, None for any; `threads`: of torch, for each worker; `lent`: see `Scheduler`.
    """
    return app_of(Service(lm, limits or Limits(), name, threads, lent), token, hosts)


def app_of(service: Service, token: str | None, hosts: Iterable[str] | None) -> FastAPI:
    """The same, of a service."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await service.queue.close()

    app = FastAPI(
        title="scdd",
        version=__version__,
        summary="A self-correcting discrete diffusion language model.",
        docs_url=None,  # the stock pages load scripts from elsewhere; /docs is our own
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    errors.install(app)
    app.include_router(_model_routes(service))
    app.include_router(openai.routes(service, REFUSED))
    app.include_router(_site_routes(service))

    async def left(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # nobody reads this

    app.add_exception_handler(ClientGone, left)
    limits = service.limits
    app.add_middleware(
        Guard, body=limits.body, token=token, hosts=hosts, meters=service.meters, patience=limits.seconds
    )
    _tidy_schema(app)
    return app


def _model_routes(service: Service) -> APIRouter:
    """Generate, infill, correct, score, tokenize, and the stream of steps."""
    router = APIRouter(prefix="/v1", tags=["scdd"], responses=REFUSED)
    said: list[replies.SettingsReply] = []  # when somebody has asked

    @router.post("/generate", response_model=replies.SamplesReply)
    async def generate(body: ask.Generate, request: Request) -> Response:
        """Draw texts from masks, after a prompt or before a suffix if there is one."""
        light = service.light(body)
        job = service.generate(body) if light else await run_in_threadpool(service.generate, body)
        (samples,) = await service.answers([job], request)
        return replies.answer(model=service.name, **replies.of_samples(samples))

    async def each(
        make: Callable[[Any], Job], shape: type, fields: Callable[[Any], dict[str, Any]], body: Any, request: Request
    ) -> Any:
        """One text's answer, or a list of them."""
        jobs = await run_in_threadpool(service.each, make, body)
        answers = [shape(model=service.name, **fields(answer)) for answer in await service.answers(jobs, request)]
        return answers[0] if isinstance(body.text, str) else replies.ListReply(model=service.name, results=answers)

    @router.post("/infill", response_model=replies.SamplesReply | replies.ListReply[replies.SamplesReply])
    async def infill(body: ask.InfillTexts, request: Request) -> Any:
        """Fill the [MASK], [MASK:12] and [MASK:4-12] holes of a text; all other tokens stay."""
        return await each(service.infill, replies.SamplesReply, replies.of_samples, body, request)

    @router.post("/correct", response_model=replies.CorrectReply | replies.ListReply[replies.CorrectReply])
    async def correct(body: ask.CorrectTexts, request: Request) -> Any:
        """Keep what is right in a text, repair what is not."""
        return await each(service.correct, replies.CorrectReply, replies.of_correction, body, request)

    @router.post("/score", response_model=replies.ScoreReply | replies.ListReply[replies.ScoreReply])
    async def score(body: ask.ScoreTexts, request: Request) -> Any:
        """How likely the model finds each token of a text, and how much it doubts it."""
        return await each(service.score, replies.ScoreReply, Result.json, body, request)

    @router.post("/tokenize")
    async def tokenize(body: ask.Tokenize) -> replies.TokenizeReply:
        """Cut a text into the model's tokens."""
        service.check_model(body.model)
        ids = await run_in_threadpool(service.tokens, body.text)
        pieces = [replies.Piece(id=i, text=service.lm.tokenizer.token(i)) for i in ids]
        return replies.TokenizeReply(model=service.name, tokens=pieces)

    @router.post(
        "/denoise",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}, "description": "start, frame …, result, done; or error"}},
    )  # fmt: skip
    async def denoise(body: ask.Task, request: Request) -> Response:
        """The same as generate, infill or correct, as a stream of server-sent events: one for every text and step."""
        facts = replies.of_correction if body.task == "correct" else replies.of_samples
        tasks: dict[str, Any] = {"generate": service.generate, "infill": service.infill, "correct": service.correct}
        job = await run_in_threadpool(tasks[body.task], body, record=True)
        return await stream.denoise(service, job, request, facts)

    @router.get("/settings")
    async def settings() -> replies.SettingsReply:
        """The model, the limits, and what can be chosen, as the recipe's JSON schema has it."""
        if not said:
            said.append(settings_of(service))
        return said[0]

    return router


def _site_routes(service: Service) -> APIRouter:
    """The playground, health and metrics. Files are read once, at the start: no path of a request reaches the disk."""
    router = APIRouter()
    folder = files("scdd.serve").joinpath("static")
    pages = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}

    def served(name: str) -> Response:
        if name not in pages:
            raise errors.ApiError(404, "There is no such file.", code="not_found")
        kind = KINDS.get(name.rpartition(".")[2], "application/octet-stream")
        return Response(pages[name], media_type=kind, headers={"Cache-Control": "no-cache"})

    @router.get("/", include_in_schema=False)
    async def playground() -> Response:
        return served("index.html")

    @router.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return served("docs.html")

    @router.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return served(name)

    @router.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return served("icon.svg")

    @router.get("/healthz", tags=["server"], responses={403: REFUSED[403]})
    async def healthz() -> replies.Health:
        """Answered while the server takes requests; one that shuts down takes no connections."""
        return replies.Health(status="ok", model=service.name, waiting=await service.queue.waiting())

    said: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/plain": {}}},
        **{s: REFUSED[s] for s in (401, 403)},
    }

    @router.get("/metrics", tags=["server"], response_class=PlainTextResponse, responses=said)
    async def metrics() -> Response:
        """Counters and histograms for Prometheus."""
        return Response(await service.queue.metrics(), media_type="text/plain; version=0.0.4")

    return router


def _tidy_schema(app: FastAPI) -> None:
    """Mistakes are answered with 400 in our own shape; the framework would promise 422 in its own."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        schema = made()
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for unused in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(unused, None)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
