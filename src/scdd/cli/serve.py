"""`scdd serve`: the model over HTTP, and the playground."""

from __future__ import annotations

import ipaddress
import math
from typing import TYPE_CHECKING, Annotated

import typer

from scdd.cli import options as o
from scdd.core.errors import UserError

if TYPE_CHECKING:
    from scdd.serve.service import Service

LEVELS = ("critical", "error", "warning", "info", "debug")


def serve(
    model: o.Model = None,
    host: Annotated[str, typer.Option(help="Address to bind; the default is this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="SCDD_TOKEN", help="Ask for this bearer token (better set SCDD_TOKEN).")
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let anybody in who reaches an address beyond this machine.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="The model's id in the API; default: its folder's name.")] = None,
    process: o.Process = None,
    device: o.Device = None,
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the network; on a GPU, behind a CUDA graph.")
    ] = False,
    max_length: Annotated[
        int | None, typer.Option(help="Most tokens of a text; default: four times the context.")
    ] = None,
    max_steps: Annotated[int, typer.Option(help="Most steps.")] = 1024,
    max_texts: Annotated[int, typer.Option(help="Most texts that one request may draw.")] = 8,
    max_body: Annotated[int, typer.Option(help="Most bytes of a request.")] = 256 * 1024,
    max_queue: Annotated[int, typer.Option(help="Jobs that may wait before the next is told 429.")] = 64,
    timeout: Annotated[float, typer.Option(help="Seconds from a request to its answer.")] = 60.0,
    batch_size: Annotated[int | None, typer.Option(help="Texts drawn together; default: 16, on a GPU 64.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Batches at the same time; default: 1, which uses all cores.")
    ] = None,
    group: Annotated[
        int | None,
        typer.Option(help="Rows of every network evaluation; default: 64 on a GPU; on a CPU as many as change no bit."),
    ] = None,
    changes: o.Changes = None,
    log_level: Annotated[str, typer.Option(help="critical, error, warning, info or debug.")] = "info",
) -> None:
    """Serve a model over HTTP: a REST and an OpenAI-compatible API, and the playground at /."""
    local = is_loopback(host)
    token = _checked_token(token, host, local or no_token)
    _check_numbers(port, {
        "--max-length": max_length, "--max-steps": max_steps, "--max-texts": max_texts, "--max-body": max_body,
        "--max-queue": max_queue, "--timeout": timeout, "--batch-size": batch_size, "--workers": workers, "--group": group,
    })  # fmt: skip
    if log_level not in LEVELS:
        raise UserError(f"--log-level is {log_level!r}: choose one of {', '.join(LEVELS)}.")

    # first, so that a missing extra is named at once; here, so that the help needs none
    import fastapi  # noqa: F401
    import prometheus_client  # noqa: F401
    import torch
    import uvicorn  # noqa: F401

    from scdd.serve import Limits, create_app
    from scdd.serve.guard import LOOPBACK
    from scdd.serve.run import run

    lm = o.open_model(model, process, device, changes)
    if compile:
        lm.compile()
    on_gpu = lm.device.type != "cpu"
    limits = Limits(
        body=max_body,
        length=max_length or 4 * lm.engine.room,
        steps=max_steps,
        texts=max_texts,
        queue=max_queue,
        seconds=timeout,
        batch=batch_size or (64 if on_gpu else 16),
        workers=workers or 1,
        rows_per_forward=group or (64 if on_gpu else None),
    )
    app = create_app(
        lm,
        limits,
        token=token,
        hosts=(*LOOPBACK, host) if local and token is None else None,
        name=name,
        # of torch, for each worker: said aloud, since OpenMP's own choice is slower here
        threads=None if on_gpu else max(1, torch.get_num_threads() // limits.workers),
        lent=True,
    )
    run(app, host, port, log_level, lambda address: typer.echo(greeting(app.state.service, address), err=True))


def _checked_token(token: str | None, host: str, open_to: bool) -> str | None:
    """The token as HTTP will send it; refused where there must be one, or where it could never match."""
    if token is None:
        if not open_to:
            raise UserError(
                f"--host {host} lets other machines in: set a token (SCDD_TOKEN), or say --no-token if that is what you "
                "want."
            )
        return None
    token = token.strip()  # as HTTP strips what is sent
    if not (token.isascii() and token):
        raise UserError("--token must be ASCII text: choose another one.")
    return token


def _check_numbers(port: int, limits: dict[str, float | None]) -> None:
    """Refuse what cannot be meant."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port is {port}: give one from 1 to 65535, or 0 for a free one.")
    for option, value in limits.items():
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{option} is {value}: give a number above 0.")


def greeting(service: Service, address: str) -> str:
    """What is served, and where."""
    lm = service.lm
    size = f"{service.parameters / 1e6:.1f} M parameters, context {lm.context}, on {lm.device}"
    return (
        f"Serving {lm.name} ({lm.engine.process_name}, {size}) as {service.name!r}; Ctrl+C stops it.\n"
        f"  playground  {address}/\n"
        f"  API         {address}/docs, for OpenAI's clients {address}/v1"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
