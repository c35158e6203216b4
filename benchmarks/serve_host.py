"""What a turn of the server costs the host: a network that computes nothing, and a batch that is always full.

    python benchmarks/serve_host.py
    python benchmarks/serve_host.py --replayed                  # a CPU does as a GPU: captured steps, and a replay that does nothing
    python benchmarks/serve_host.py --device cuda --profile
    python benchmarks/serve_host.py --replayed --http 16        # behind HTTP, for so many clients
    python benchmarks/serve_host.py --replayed --http 64 --device-ms 3 --switch-ms 0.5

Rows come and go at the pace of real ones: of 64 texts of 32 steps, two end and two join in every turn. Seconds are the thread's own, so
what else the machine does hardly matters. "rows" is `RowBatch` (its steps compute on a CPU, and launch on a GPU), "server" all the rest: taking
requests, making rows of them, reading the device, settling texts and making samples. HTTP is not part of it. "wall" is what a turn takes by
the clock, waiting for the device included, and "request" what a request's job costs before a worker has it. `--http` tells the seconds of a
request instead, by thread: all of them take turns in one interpreter, so what they need together bounds the requests a second.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import pstats
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

import torch  # noqa: E402

from scdd.lm.loading import load  # noqa: E402
from scdd.lm.model import LM  # noqa: E402
from scdd.lm.run import Engine  # noqa: E402
from scdd.samplers.graphs import Replay, StepGraphs  # noqa: E402
from scdd.samplers.loop import RowBatch  # noqa: E402
from scdd.serve.app import create_app  # noqa: E402
from scdd.serve.limits import Limits  # noqa: E402
from scdd.serve.requests import Generate  # noqa: E402
from scdd.serve.run import server  # noqa: E402
from scdd.serve.service import Service  # noqa: E402
from serve import random_model, rate  # noqa: E402


class Constant(torch.nn.Module):
    """A network whose hidden states are all nought."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.vocab, self.config, self.whole_graph = inner, inner.vocab, inner.config, False

    @property
    def head(self) -> Any:
        return self.inner.head

    def hidden(self, z_t: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        weight = self.head.weight
        return torch.zeros((1, 1, weight.shape[1]), device=z_t.device).expand(*z_t.shape, -1)


class Nothing:
    """A replay that computes nothing, and takes its time as a device does, without the interpreter."""

    seconds = 0.0

    def replay(self) -> None:
        if self.seconds:
            time.sleep(self.seconds)


def captured(run: Callable[[], None]) -> Replay:
    return Nothing()


STEPS = StepGraphs(captured)


class Replayed(LM):
    """A model whose steps are replayed, wherever it is."""

    @property
    def engine(self) -> Engine:
        made = super().engine
        return replace(made, model=replace(made.model, graphs=STEPS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--replayed", action="store_true", help="as on a GPU, with nothing computed")
    parser.add_argument("--device-ms", type=float, default=0.0, help="that a replayed step takes")
    parser.add_argument("--switch-ms", type=float, help="after which a thread lets another have the interpreter")
    parser.add_argument("--http", type=int, help="clients of a server in this process")
    parser.add_argument("--requests", type=int, default=512, help="that they send")
    parser.add_argument("--profile", action="store_true", help="where the time goes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    Nothing.seconds = args.device_ms / 1e3
    sys.setswitchinterval(args.switch_ms / 1e3 if args.switch_ms else sys.getswitchinterval())
    with tempfile.TemporaryDirectory() as folder:
        lm = load(random_model(Path(folder) / "random", "nano", 1024, args.length), device=args.device)
    lm.network = Constant(lm.network)  # type: ignore[assignment]
    if args.replayed:
        lm.__class__ = Replayed
    limits = Limits(seconds=3600.0, batch=args.rows, rows_per_forward=args.rows)
    if args.http:
        behind_http(lm, limits, args)
        return
    service = Service(lm, limits, threads=1, lent=True)
    turns, spent = service.scheduler._turns[0], defaultdict[str, float](float)
    for name, method in (("add", "add"), ("step", "stepped"), ("remove", "remove")):
        setattr(RowBatch, method, timed(getattr(RowBatch, method), name, spent))
    profile = cProfile.Profile()
    each, number = max(1, args.rows // args.steps), 0

    def several(count: int, profiled: bool = False) -> dict[str, float]:
        nonlocal number
        start, jobs = time.thread_time(), []
        for _ in range(count * each):
            body = Generate(length=args.length, steps=args.steps, seed=number, top_p=0.9, stop=False)
            jobs.append(service.generate(body))
            jobs[-1].future.set_running_or_notify_cancel()
            number += 1
        asked = time.thread_time() - start
        spent.clear()
        begun, start = time.perf_counter(), time.thread_time()
        if profiled:
            profile.enable()
        for turn in range(count):
            for job in jobs[turn * each : (turn + 1) * each]:
                turns.take(job)
            turns.turn()
        profile.disable()
        whole, wall = time.thread_time() - start, time.perf_counter() - begun
        rows = {f"rows.{name}": value for name, value in spent.items()}
        return {"server": whole - sum(spent.values()), **rows, "request": asked / each, "wall": wall}

    several(2 * args.steps)
    gc.collect()
    gc.freeze()  # as `scdd serve` does
    for name, seconds in several(args.turns).items():
        print(f"{name:<12} {1e3 * seconds / args.turns:8.3f} ms a {'request' if name == 'request' else 'turn'}")
    if args.profile:
        several(args.turns, profiled=True)
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


def behind_http(lm: LM, limits: Limits, args: argparse.Namespace) -> None:
    """CPU seconds that each thread spends on a request."""
    app, profile, listening = create_app(lm, limits, lent=True), cProfile.Profile(), threading.Event()
    scheduler = app.state.service.scheduler
    with redirect_stdout(open(os.devnull, "w", encoding="utf-8")):  # where the log of requests goes
        made = server(app, "127.0.0.1", 0, "info", lambda _: listening.set())
    app.state.service.warm_up()
    gc.collect()
    gc.freeze()
    threads = {"worker": threading.current_thread(), "http": threading.Thread(target=made.run, daemon=True)}
    threads["http"].start()
    listening.wait()

    def spent() -> dict[str, float]:
        clocks = {name: time.pthread_getcpuclockid(each.ident) for name, each in threads.items() if each.ident}
        return {**{name: time.clock_gettime(clock) for name, clock in clocks.items()}, "all": time.process_time()}

    def load() -> None:
        port = made.servers[0].sockets[0].getsockname()[1]
        loop = made.servers[0].get_loop()
        with ProcessPoolExecutor(1, get_context("spawn")) as clients:
            clients.submit(rate, port, args, args.http, 2 * args.http).result()
            if args.profile:
                loop.call_soon_threadsafe(profile.enable)
            before = spent()
            found, _ = clients.submit(rate, port, args, args.http, args.requests).result()
        for name, seconds in spent().items():
            print(f"{name:<12} {1e3 * (seconds - before[name]) / args.requests:8.3f} ms a request")
        print(f"{found:.0f} requests a second")
        loop.call_soon_threadsafe(profile.disable)
        made.should_exit = True
        scheduler.close()

    threading.Thread(target=load, daemon=True).start()
    scheduler.work()
    threads["http"].join()
    if args.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(60)


def timed(call: Any, name: str, spent: dict[str, float]) -> Any:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            spent[name] += time.thread_time() - start

    return wrapped


if __name__ == "__main__":
    main()
