"""Starts training runs by fork, so that a test may start, kill and resume many without importing torch each time.

Reads one JSON request a line and answers each with the exit codes of its processes:
{"argv": […], "ranks": 2, "log": file, "after": seconds to SIGKILL, "operation": n-th file operation to die at,
 "quota": largest size of a file, "signal": [file whose appearance with content is waited for, number], "imports": [modules to import once for all],
 "hook": ["module:function", *arguments] to call first in every rank, "local": ranks of a node, "environment": variables of the processes,
 "call": a function of on_ranks.py to run in place of the command, which gets the request}; with "nodes": 2 the ranks are
started by so many agents of torchrun, which start them anew when one dies.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import sys
import time
import traceback
from importlib import import_module
from typing import Any

PRELOADED = (
    "rich.progress",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.launcher.api",
    "scdd.assemble.training",
    "scdd.cli.train",
    "scdd.lm.training",
)


def die_at(operation: int) -> None:
    """SIGKILL this process at its n-th sync, rename or tensor file: the worst moments of a checkpoint write."""
    import safetensors.torch

    import scdd.bundle.folder
    from scdd.bundle import stream

    left = operation

    def deadly(work: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                if work in files:  # half a file on the disk
                    work(*args, **kwargs)
                    os.truncate(args[files[work]], os.path.getsize(args[files[work]]) // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return work(*args, **kwargs)

        return wrapped

    files = {safetensors.torch.save_file: 1, stream.write: 0}  # which argument is the file
    scdd.bundle.folder.save_file, stream.write = deadly(safetensors.torch.save_file), deadly(stream.write)  # type: ignore[assignment]
    os.fsync, os.rename, os.replace = deadly(os.fsync), deadly(os.rename), deadly(os.replace)


def rank_of_an_agent(request: dict[str, Any]) -> None:
    """What torchrun's agents start: the environment says which rank it is."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # not the agent's, which a process of its own would not have
    if code := work(request, int(os.environ["RANK"])):
        os._exit(code)


def agent(request: dict[str, Any], node: int, port: int) -> None:
    """`torchrun --nnodes=… -m scdd …`, with the ranks forked from here instead of started by a command."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    output_to(f"{request['log']}.agent{node}")
    config = LaunchConfig(
        min_nodes=request["nodes"],
        max_nodes=request["nodes"],
        nproc_per_node=request["ranks"] // request["nodes"],
        run_id="run",
        rdzv_backend="c10d",
        rdzv_endpoint=f"127.0.0.1:{port}",
        local_addr="127.0.0.1",
        max_restarts=3,
        monitor_interval=0.1,
        start_method="fork",
    )
    try:
        elastic_launch(config, rank_of_an_agent)(request)
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


def output_to(file: str) -> None:
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)


def child(request: dict[str, Any], rank: int, port: int) -> None:
    if request["ranks"] > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(request["ranks"]),
            "LOCAL_WORLD_SIZE": str(request.get("local", request["ranks"])),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    os._exit(work(request, rank))


def work(request: dict[str, Any], rank: int) -> int:
    output_to(f"{request['log']}.{rank}")
    os.environ |= request.get("environment", {})
    if request.get("quota"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["quota"], request["quota"]))
    if request.get("operation") and rank == 0:
        die_at(request["operation"])
    if request.get("hook"):
        name, *arguments = request["hook"]
        module, _, function = name.partition(":")
        getattr(import_module(module), function)(*arguments)
    try:
        from scdd.cli.main import main

        if "call" in request:  # something of on_ranks.py, before or instead of the command
            code = getattr(import_module("on_ranks"), request["call"])(request, rank)
        else:
            code = main(request["argv"])
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _filled(path: str) -> bool:
    return os.path.exists(path) and os.path.getsize(path) > 0


def free_port() -> int:
    """One below those that the system hands out: between looking and use nobody else is given it by chance."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def serve(request: dict[str, Any]) -> list[int]:
    for name in request.get("imports", ()):
        import_module(name)
    port = free_port()
    children = []
    for number in range(request.get("nodes", request["ranks"])):
        pid = os.fork()
        if pid == 0:
            (agent if "nodes" in request else child)(request, number, port)
        children.append(pid)
    start, codes = time.monotonic(), dict.fromkeys(children, 0)
    running = set(children)
    told = False
    while running:
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                running.discard(pid)
                codes[pid] = os.waitstatus_to_exitcode(status)
        spent = time.monotonic() - start
        if request.get("signal") and not told and _filled(request["signal"][0]):
            told = True
            for pid in running:
                os.kill(pid, request["signal"][1])
        # One dead rank ends the others, as torchrun would; those that were told what failed end by themselves.
        failed = any(codes[pid] not in (0, 2) for pid in children)
        if running and (failed or spent > request.get("after", 240)):
            for pid in running:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    return [codes[pid] for pid in children]


def main() -> None:
    for name in PRELOADED:
        import_module(name)
    for line in sys.stdin:
        codes = serve(json.loads(line))
        sys.stdout.write(json.dumps(codes) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
