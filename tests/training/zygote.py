"""Starts training runs by fork, so that a test may start, kill and resume many without importing torch each time.

Reads one JSON request a line and answers each with the exit codes of its processes:
{"argv": […], "ranks": 2, "log": file, "after": seconds to SIGKILL, "operation": n-th file operation to die at,
 "quota": largest size of a file, "signal": [file whose appearance with content is waited for, number], "imports": [modules to import once for all],
 "environment": variables of the processes}.
"""

from __future__ import annotations

import json
import os
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
    "torch.distributed.checkpoint.hf_storage",
    "torch.distributed.fsdp",
    "scdd.assemble.training",
    "scdd.cli.train",
    "scdd.lm.training",
)


def die_at(operation: int) -> None:
    """SIGKILL this process at its n-th sync, rename or tensor file: the worst moments of a checkpoint write."""
    import safetensors.torch

    import scdd.bundle.folder
    import scdd.training.resume

    left = operation

    def deadly(work: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                if work is safetensors.torch.save_file:  # half a file on the disk
                    work(*args, **kwargs)
                    os.truncate(args[1], os.path.getsize(args[1]) // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return work(*args, **kwargs)

        return wrapped

    scdd.bundle.folder.save_file = scdd.training.resume.save_file = deadly(safetensors.torch.save_file)
    os.fsync, os.rename, os.replace = deadly(os.fsync), deadly(os.rename), deadly(os.replace)


def child(request: dict[str, Any], rank: int, port: int) -> None:
    log = os.open(f"{request['log']}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if request["ranks"] > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(request["ranks"]),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    os.environ |= request.get("environment", {})
    if request.get("quota"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["quota"], request["quota"]))
    if request.get("operation") and rank == 0:
        die_at(request["operation"])
    try:
        from scdd.cli.main import main

        code = main(request["argv"])
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _filled(path: str) -> bool:
    return os.path.exists(path) and os.path.getsize(path) > 0


def serve(request: dict[str, Any]) -> list[int]:
    for name in request.get("imports", ()):
        import_module(name)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(request["ranks"]):
        pid = os.fork()
        if pid == 0:
            child(request, rank, port)
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
