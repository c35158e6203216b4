"""What a turn of the server costs the host: a network that computes nothing, and a batch that is always full.

    python benchmarks/serve_host.py
    python benchmarks/serve_host.py --replayed                  # a CPU does as a GPU: captured steps, and a replay that does nothing
    python benchmarks/serve_host.py --device cuda --profile
    python benchmarks/serve_host.py --replayed --http 16        # behind HTTP, for so many clients
    python benchmarks/serve_host.py --replayed --http 64 --device-ms 3 --switch-ms 0.5
    python benchmarks/serve_host.py --replayed --http 64 --device-ms 3 --ahead --http-processes 2

Rows come and go at the pace of real ones: of 64 texts of 32 steps, two end and two join in every turn. Seconds are the thread's own, so
what else the machine does hardly matters. "rows" is `RowBatch` (its steps compute on a CPU, and launch on a GPU), "server" all the rest: taking
requests, making rows of them, reading the device, settling texts and making samples. HTTP is not part of it. "wall" is what a turn takes by
the clock, waiting for the device included, and "request" what a request's job costs before a worker has it. `--http` tells the seconds of a
request instead, by thread: all of them take turns in one interpreter, so what they need together ("all") bounds the requests a second. With
`--http-processes` others talk HTTP ("fronts"), and the first thing to look at is how little is left in the interpreter that computes. Where clients,
fronts and worker have too few cores for all of them, requests a second are what the machine can do, and not what the server can.
"""

from __future__ import annotations

import argparse
import cProfile
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
from scdd.samplers.readback import Readback  # noqa: E402
from scdd.samplers.row_batch import RowBatch  # noqa: E402
from scdd.serve.app import app_of  # noqa: E402
from scdd.serve.fronts import Fronts  # noqa: E402
from scdd.serve.guard import LOOPBACK  # noqa: E402
from scdd.serve.limits import Limits  # noqa: E402
from scdd.serve.requests import Generate  # noqa: E402
from scdd.serve.run import keep, server  # noqa: E402
from scdd.serve.service import Service  # noqa: E402
from scdd.serve.spec import Endpoint  # noqa: E402
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

    seconds, ahead = 0.0, False
    done = 0.0  # when the device will be done with all that was launched

    def replay(self) -> None:
        Nothing.done = max(Nothing.done, time.monotonic()) + self.seconds
        if not self.ahead:
            self.synchronize()

    def synchronize(self) -> None:
        if (left := self.done - time.monotonic()) > 0:
            time.sleep(left)


def begin_ahead(self: Readback, wanted: bool = True) -> None:
    """`Readback.begin`, of a device that goes on by itself."""
    BEGIN(self, wanted)
    self._event = Nothing()
    self._event.done = Nothing.done


BEGIN = Readback.begin


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
    parser.add_argument(
        "--ahead", action="store_true", help="a replayed step is launched before the last one is done, as on a GPU"
    )
    parser.add_argument("--switch-ms", type=float, help="after which a thread lets another have the interpreter")
    parser.add_argument("--http", type=int, help="clients of a server in this process")
    parser.add_argument("--http-processes", type=int, default=0, help="that talk HTTP in place of this one")
    parser.add_argument("--requests", type=int, default=512, help="that they send")
    parser.add_argument("--profile", action="store_true", help="where the time goes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    Nothing.seconds, Nothing.ahead = args.device_ms / 1e3, args.ahead
    if args.ahead:
        Readback.begin = begin_ahead  # type: ignore[method-assign]
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
    keep()
    for name, seconds in several(args.turns).items():
        print(f"{name:<12} {1e3 * seconds / args.turns:8.3f} ms a {'request' if name == 'request' else 'turn'}")
    if args.profile:
        several(args.turns, profiled=True)
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


def behind_http(lm: LM, limits: Limits, args: argparse.Namespace) -> None:
    """CPU seconds that each thread spends on a request, and the processes beside this one."""
    service, profile, listening = Service(lm, limits, lent=True), cProfile.Profile(), threading.Event()
    service.scheduler._turns[0].batches.ahead = args.ahead
    threads, endpoint, port = {"worker": threading.current_thread()}, Endpoint("127.0.0.1", 0), 0
    with redirect_stdout(open(os.devnull, "w", encoding="utf-8")):  # where the log of requests goes
        if args.http_processes:
            fronts = Fronts(service, endpoint._replace(log_level="warning"), args.http_processes)
            fronts.start()
        else:
            made = server(app_of(service, None, LOOPBACK), endpoint.host, 0, "info", lambda _: listening.set())
            threads["http"] = threading.Thread(target=made.run, daemon=True)
    service.warm_up()
    keep()
    if args.http_processes:
        fronts.listen()
        port = int(fronts.address.rpartition(":")[2])
    else:
        threads["http"].start()
        listening.wait()
        port = made.servers[0].sockets[0].getsockname()[1]

    def spent() -> dict[str, float]:
        clocks = {name: time.pthread_getcpuclockid(each.ident) for name, each in threads.items() if each.ident}
        found = {**{name: time.clock_gettime(clock) for name, clock in clocks.items()}, "all": time.process_time()}
        return {**found, "fronts": sum(map(seconds_of, fronts.processes))} if args.http_processes else found

    def load() -> None:
        with ProcessPoolExecutor(1, get_context("spawn")) as clients:
            clients.submit(rate, port, args, args.http, 2 * args.http).result()
            if args.profile and not args.http_processes:
                made.servers[0].get_loop().call_soon_threadsafe(profile.enable)
            before, stepped = spent(), steps_taken(service)
            found, _ = clients.submit(rate, port, args, args.http, args.requests).result()
        for name, seconds in spent().items():
            print(f"{name:<12} {1e3 * (seconds - before[name]) / args.requests:8.3f} ms a request")
        steps, texts = (b - a for a, b in zip(stepped, steps_taken(service), strict=True))
        print(f"{texts / steps:<12.1f} texts a step, {1e3 * args.requests / found / steps:.2f} ms each")
        print(f"{found:.0f} requests a second")
        if args.http_processes:
            fronts.end()
            fronts.until_ended()
        else:
            made.servers[0].get_loop().call_soon_threadsafe(profile.disable)
            made.should_exit = True
        service.scheduler.close()

    threading.Thread(target=load, daemon=True).start()
    if args.profile and args.http_processes:
        profile.enable()
    service.scheduler.work()
    profile.disable()
    if "http" in threads:
        threads["http"].join()
    if args.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(60)


def steps_taken(service: Service) -> tuple[float, float]:
    """(Steps of batches, texts that took them)."""
    samples = {sample.name: sample.value for metric in service.meters.batch_rows.collect() for sample in metric.samples}
    return samples["scdd_batch_texts_count"], samples["scdd_batch_texts_sum"]


def seconds_of(process: int) -> float:
    """CPU seconds that another process has spent."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
