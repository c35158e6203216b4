"""`scdd serve`: the model over HTTP, and the playground."""

from __future__ import annotations

import ipaddress
import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from scdd.cli import options as o
from scdd.cli.cluster import Ray, RayCommand
from scdd.cluster.connect import check_address, require_ray
from scdd.core.errors import UserError

if TYPE_CHECKING:
    from scdd.cluster.options import Replicas
    from scdd.lm.model import LM
    from scdd.serve.spec import Endpoint, ServeSpec

COMMAND = RayCommand
MOST_PROCESSES = 64
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
    dtype: o.Dtype = None,
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the network; on a GPU, inside a CUDA graph.")
    ] = False,
    graphs: o.Graphs = True,
    max_length: Annotated[
        int | None, typer.Option(help="Most tokens of a text; default: four times the context.")
    ] = None,
    max_steps: Annotated[int, typer.Option(help="Most steps.")] = 1024,
    max_texts: Annotated[int, typer.Option(help="Most texts that one request may draw.")] = 8,
    max_body: Annotated[int, typer.Option(help="Most bytes of a request.")] = 256 * 1024,
    max_queue: Annotated[int, typer.Option(help="Jobs that may wait before the next is told 429.")] = 64,
    timeout: Annotated[float, typer.Option(help="Seconds from a request to its answer.")] = 60.0,
    batch_size: Annotated[int | None, typer.Option(help="Texts under way at a time; default: 16, on a GPU 64.")] = None,
    workers: Annotated[int | None, typer.Option(help="Threads that compute; default: 1, which uses all cores.")] = None,
    http_processes: Annotated[
        int | None,
        typer.Option(
            help="Processes that talk HTTP, beside the one that computes; 0: that one does both. Default: on a GPU 4, or as many as "
            "leave 2 cores free; on a CPU, with --ray and on Windows 0."
        ),
    ] = None,
    rows_per_forward: Annotated[
        int | None,
        typer.Option(
            help="Rows of a network evaluation, or fewer where that changes no bit; default: 64 on a GPU; on a CPU as many as change none."
        ),
    ] = None,
    changes: o.Changes = None,
    log_level: Annotated[str, typer.Option(help="critical, error, warning, info or debug.")] = "info",
    ray: Ray = None,
    replicas: Annotated[
        int | None,
        typer.Option(help="With --ray: copies of the model, each with a GPU or a share of the cores; default: 1."),
    ] = None,
    max_replicas: Annotated[
        int | None, typer.Option(help="With --ray: add copies up to this number while there is much to do.")
    ] = None,
) -> None:
    """Serve a model over HTTP: a REST and an OpenAI-compatible API, and the playground at /."""
    local = is_loopback(host)
    token = _checked_token(token, host, local or no_token)
    _check_numbers(port, {
        "--max-length": max_length, "--max-steps": max_steps, "--max-texts": max_texts, "--max-body": max_body,
        "--max-queue": max_queue, "--timeout": timeout, "--batch-size": batch_size, "--workers": workers, "--rows-per-forward": rows_per_forward,
        "--replicas": replicas, "--max-replicas": max_replicas,
    })  # fmt: skip
    if http_processes is not None and not 0 <= http_processes <= MOST_PROCESSES:
        raise UserError(f"--http-processes is {http_processes}: give a number from 0 to {MOST_PROCESSES}.")
    if log_level not in LEVELS:
        raise UserError(f"--log-level is {log_level!r}: choose one of {', '.join(LEVELS)}.")

    if ray is not None:
        if http_processes:
            raise UserError("--http-processes are for a model in this process: leave it out, or leave --ray out.")
        check_address(ray)
        require_ray()
    elif replicas is not None or max_replicas is not None:
        raise UserError("--replicas are Ray's: say --ray as well.")
    # first, so that a missing extra is named at once; here, so that the help needs none
    import fastapi  # noqa: F401
    import prometheus_client  # noqa: F401
    import uvicorn  # noqa: F401

    from scdd.cluster.options import Replicas
    from scdd.core.machine import cores
    from scdd.lm.loading import usual_device
    from scdd.serve.guard import LOOPBACK
    from scdd.serve.limits import Limits
    from scdd.serve.spec import Endpoint, ServeSpec, usual_processes

    limits = Limits(
        body=max_body, steps=max_steps, texts=max_texts, queue=max_queue, seconds=timeout, workers=workers or 1
    )
    spec = ServeSpec(
        model=model,
        process=process,
        device=device,
        changes=tuple(changes or ()),
        compiled=compile,
        name=name,
        limits=limits,
        length=max_length,
        batch=batch_size,
        rows_per_forward=rows_per_forward,
        dtype=dtype,
        graphs=graphs,
    )
    names = (*LOOPBACK, host) if local and token is None else None
    if http_processes is None:
        http_processes = usual_processes(device or usual_device(), cores(), sys.platform, ray is not None, workers or 1)
    endpoint = Endpoint(host, port, token, names, log_level, http_processes)
    if ray is None:
        _here(spec, endpoint)
    else:
        _on_ray(spec, endpoint, ray, Replicas(replicas or 1, max_replicas))


def _here(spec: ServeSpec, endpoint: Endpoint) -> None:
    """One model in this process, and HTTP in others if there are to be any."""
    from scdd.serve import fronts, run
    from scdd.serve.app import app_of

    service = spec.service(lent=True)
    about = f"{_about(service.lm, service.name)} in {service.lm.dtype} on {service.lm.device}"
    if endpoint.processes:
        each = f"HTTP in {endpoint.processes} other process{'es' if endpoint.processes > 1 else ''}"
        fronts.run(service, endpoint, endpoint.processes, lambda address: _greet(f"{about}, {each}", address))
    else:
        app = app_of(service, endpoint.token, endpoint.hosts)
        run.run(app, endpoint.host, endpoint.port, endpoint.log_level, lambda address: _greet(about, address))


def _on_ray(spec: ServeSpec, endpoint: Endpoint, address: str, replicas: Replicas) -> None:
    """Several of them on Ray, and this process in front."""
    from scdd.cluster.serving import serve_replicas
    from scdd.serve.service import model_id

    # mistakes are better heard from here than from each replica
    lm = replace(spec, device="cpu", compiled=False).load()
    name, room = spec.name or model_id(lm.name), lm.engine.room
    spec = replace(spec, name=name, length=spec.length or 4 * room)
    said = _about(lm, name)
    del lm

    def greet(place: str, resources: str) -> None:
        _greet(f"{said} on Ray, {resources}", place)

    serve_replicas(spec, endpoint, address, replicas, greet)


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
    if not token:
        raise UserError("--token is empty: choose one, or say --no-token if others may come in without.")
    if not token.isascii():
        raise UserError("--token must be ASCII text: choose another one.")
    return token


def _check_numbers(port: int, limits: dict[str, float | None]) -> None:
    """Refuse what cannot be meant."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port is {port}: give one from 1 to 65535, or 0 for a free one.")
    for option, value in limits.items():
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{option} is {value}: give a number above 0.")


def _about(lm: LM, name: str) -> str:
    """What is served."""
    return f"{lm.name} ({lm.engine.process_name}, {lm.parameters / 1e6:.1f} M parameters, context {lm.context}) as {name!r}"


def _greet(what: str, address: str) -> None:
    """Say what is served, and where."""
    typer.echo(
        f"Serving {what}; Ctrl+C stops it.\n"
        f"  playground  {address}/\n"
        f"  API         {address}/docs, for OpenAI's clients {address}/v1",
        err=True,
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
