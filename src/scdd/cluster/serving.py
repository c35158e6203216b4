"""`scdd serve --ray`: copies of a model on Ray Serve, and this process in front of them.

Ray Serve starts, watches, replaces, adds and drains replicas, and chooses who answers. The HTTP side is our own: its proxy takes
bodies of any size and clients of any patience, and says 500 for a replica that died (ADR 10).
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

from scdd.cluster.connect import LOCAL, connected, resource
from scdd.cluster.front import Front
from scdd.cluster.options import Replicas
from scdd.cluster.replica import Replica
from scdd.core.errors import UserError, reason
from scdd.core.machine import cores
from scdd.serve.connections import MOST
from scdd.serve.guard import Guard
from scdd.serve.limits import Limits
from scdd.serve.run import GRACE, bound, server_of, until_signalled
from scdd.serve.scheduler import NOTICE
from scdd.serve.spec import ROWS, Endpoint, ServeSpec

CROWD = 2  # replicas a core of this machine
SPARE = 64  # requests that a replica may have beside its jobs: pages, health, refusals
HEALTH = {"health_check_period_s": 5.0, "health_check_timeout_s": 30.0}


def serve_replicas(
    spec: ServeSpec, endpoint: Endpoint, address: str, replicas: Replicas, ready: Callable[[str, str], None]
) -> None:
    """Serve until a signal comes; `ready` is told the address and what each replica has."""
    most = CROWD * cores()
    if address == LOCAL and replicas.most > most:
        raise UserError(
            f"{replicas.most} replicas are asked for and this machine has {cores()} cores: choose at most {most}, or name a cluster.",
            "replicas",
        )
    sockets = bound(endpoint.host, endpoint.port)  # before anything that takes long
    # Without a cluster, Ray is told of a core for each replica; a few more than there are cost speed alone.
    told = max(cores(), replicas.most)
    with connected(address, told if address == LOCAL else None) as ray, _deployed(ray, spec, replicas) as deployed:
        handle, resources = deployed
        front = Front(handle, _failures(ray), spec.limits.seconds)
        limits = spec.limits
        app = Guard(
            front,
            body=limits.body,
            token=endpoint.token,
            hosts=endpoint.hosts,
            meters=front.meters,
            patience=limits.seconds,
        )
        made = server_of(app, limits.seconds, endpoint, lambda place: ready(place, resources))
        over = threading.Event()

        def waiting() -> None:
            while not over.wait(NOTICE):
                pass

        until_signalled(made, sockets, waiting, over.set)


def _failures(ray: Any) -> tuple[type[BaseException], ...]:
    """What a request meets where a replica has died, or there is none."""
    from ray.serve import exceptions

    return (ray.exceptions.RayError, exceptions.RayServeException)


@contextlib.contextmanager
def _deployed(ray: Any, spec: ServeSpec, replicas: Replicas) -> Iterator[tuple[Any, str]]:
    """(Ray Serve's handle of running replicas, what each has); drained and gone in the end."""
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # its import has set it to tell all
    gpus, cores = _share(ray, spec, replicas)
    name = f"scdd-{secrets.token_hex(4)}"
    deployment = serve.deployment(
        Replica,
        name="replica",
        ray_actor_options={"num_gpus": gpus, "num_cpus": cores},
        max_ongoing_requests=_ongoing(spec.limits, spec.batch),
        max_queued_requests=MOST,
        graceful_shutdown_timeout_s=spec.limits.seconds + GRACE,
        **_number(spec, replicas),
        **HEALTH,
    )
    serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING", "enable_access_log": False})
    try:
        try:
            handle = serve.run(deployment.bind(spec, cores), name=name, route_prefix=None)
        except RuntimeError as error:
            raise UserError(
                f"The replicas did not start ({reason(error)}): look at Ray's logs, and have the model at the same path on every machine."
            ) from error
        share = "a GPU" if gpus else f"{cores} core{'s' if cores > 1 else ''}"
        each = f"{replicas.replicas} replica{'s' if replicas.replicas > 1 else ''} with {share} each"
        yield handle, each if replicas.most == replicas.replicas else f"{each}, up to {replicas.most}"
    finally:
        serve.delete(name)


def _share(ray: Any, spec: ServeSpec, replicas: Replicas) -> tuple[int, int]:
    """(GPUs, cores) of a replica; refused where the cluster has not enough for them."""
    there = int(resource(ray, "GPU"))
    gpus = int(there > 0 and spec.device != "cpu")
    cores = int(resource(ray, "CPU"))
    most = there if gpus else cores
    if replicas.replicas > most:
        raise UserError(
            f"replicas is {replicas.replicas}, and Ray has {most} {'GPUs' if gpus else 'cores'} here: ask for fewer, or add "
            "machines.",
            "replicas",
        )
    machines = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    return gpus, 1 if gpus else equal_share(machines, replicas.most)


def equal_share(machines: list[int], replicas: int) -> int:
    """The most cores that each of so many replicas can have; none lies on two machines."""
    fitting = (cores for cores in range(max(machines), 1, -1) if sum(each // cores for each in machines) >= replicas)
    return next(fitting, 1)


def _number(spec: ServeSpec, replicas: Replicas) -> dict[str, Any]:
    """How many there are, as Ray Serve wants to hear it."""
    if replicas.most == replicas.replicas:
        return {"num_replicas": replicas.replicas}
    target = (spec.batch or ROWS["cpu"]) * spec.limits.workers  # a batch each: more wait
    scaling = {"min_replicas": replicas.replicas, "max_replicas": replicas.most, "target_ongoing_requests": target}
    return {"autoscaling_config": scaling}


def _ongoing(limits: Limits, batch: int | None) -> int:
    """Requests that a replica is given at a time: it refuses jobs itself, with the length of its queue, before Ray Serve has to."""
    return limits.queue + (batch or ROWS["gpu"]) * limits.workers + SPARE
