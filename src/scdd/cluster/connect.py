"""A connection to Ray: to a cluster that somebody has started, or to one of this machine's that lives as long as we do."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

from scdd.core.errors import UserError, missing_extra, reason

LOCAL = "local"
ADDRESS = re.compile(r"(?:auto|local|ray://\S*|(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):\d+)")
"""What Ray may be told: `auto`, the cluster that this machine belongs to; `HOST:PORT`; `local`, a new one."""
PATIENCE = 5.0  # seconds for a connection
LONGEST = 40  # characters of a folder: the names of Ray's sockets below it are long, and may have 107
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}
CALM = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Of every worker: threads that wait do not spin, since others of the machine do (`core.machine.calm_threads`)."""


def require_ray() -> Any:
    """The package, which reports to nobody; refused where it is missing."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        ray = import_module("ray")
    except ModuleNotFoundError as error:
        raise UserError(missing_extra(f"ray needs {error.name}", "ray"), "ray") from error
    if ray.__file__ is None:  # a folder that happens to be called so, such as Ray's own below /tmp
        raise UserError(missing_extra("ray needs ray", "ray"), "ray")
    return ray


def check_address(address: str) -> None:
    """Refuse what is no address, or where nobody listens: Ray itself would try for minutes."""
    if address.startswith("ray://"):
        raise UserError(
            f"ray {address} is Ray's client, which we do not use: run this on a machine of the cluster, with the address auto.",
            "ray",
        )
    if not ADDRESS.fullmatch(address) or "://" in address:
        raise UserError(
            f"ray {address} is no address: write HOST:PORT, or auto for the cluster that this machine is in.", "ray"
        )
    host, colon, port = address.rpartition(":")
    if colon:
        try:
            socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
        except (OSError, OverflowError) as error:
            raise _unreachable(address, error) from error


@contextlib.contextmanager
def connected(address: str = LOCAL, cores: int | None = None) -> Iterator[Any]:
    """Ray, while it lasts. `cores`: of a cluster that is started here. One that this process has joined before is used as it is."""
    check_address(address)
    ray = require_ray()
    if ray.is_initialized():
        yield ray
        return
    with _folder(address) as folder:
        try:
            _join(ray, address, cores, folder)
            yield ray
        finally:
            ray.shutdown()


def _join(ray: Any, address: str, cores: int | None, folder: str | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL and not any(name.startswith("RAY_AUTH_") for name in os.environ):
        # Who reaches a Ray can run anything, so it asks for a token; left to itself, it would keep one in the home folder.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    own = {"num_cpus": cores, "include_dashboard": False, "_temp_dir": folder} if address == LOCAL else {}
    start = partial(ray.init, address=address, runtime_env={"env_vars": CALM}, **quiet, **own)
    try:
        try:
            start()
        except Exception:  # bare ones are among Ray's
            if address != LOCAL:
                raise
            ray.shutdown()
            start()  # once more: its own deadlines are short for a busy machine
    except Exception as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str, error: Exception) -> UserError:
    if address == LOCAL:
        return UserError(
            f"Ray cannot be started here ({reason(error)}): look at the memory, and at the space in {tempfile.gettempdir()}."
        )
    return UserError(
        f"ray {address} cannot be reached ({reason(error)}): start it there with `ray start --head`, with the same versions of "
        "Ray and Python and the same RAY_AUTH_TOKEN, or leave the address out to use this machine alone.",
        "ray",
    )


@contextlib.contextmanager
def _folder(address: str) -> Iterator[str | None]:
    """Where a cluster of our own keeps its sockets and logs; gone with it. None: Ray's usual place."""
    if address != LOCAL or len(tempfile.gettempdir()) > LONGEST - len("/scdd-ray-12345678"):
        yield None
        return
    folder = tempfile.mkdtemp(prefix="scdd-ray-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def resource(ray: Any, name: str) -> float:
    """How much of "CPU" or "GPU" the cluster has now."""
    return float(ray.cluster_resources().get(name, 0.0))
