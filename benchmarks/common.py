"""What the benchmarks share: medians by device events, peak memory, the measured matmul peak, one way to print."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from output import json_flag, write_json


@dataclass(frozen=True)
class Result:
    """One line of a benchmark's table."""

    name: str
    median_ms: float
    spread_ms: float  # between the quartiles
    tokens_per_s: float
    peak_gib: float
    peak_share: float | None  # of the measured bf16 matmul rate, where the work's FLOPs are known


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The flags that every benchmark has."""
    args = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    args.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args.add_argument("--repeats", type=int, default=20)
    json_flag(args)
    return args


def measure(work: Callable[[], object], device: str, repeats: int, warmup: int = 5) -> tuple[list[float], float]:
    """(Milliseconds of each repeat, peak GiB while they ran), after a warm-up that compiles what is compiled."""
    for _ in range(warmup):
        work()
    if device == "cpu":
        return _on_cpu(work, repeats)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, stop in marks:
        start.record()
        work()
        stop.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) for start, stop in marks], cuda_peak() / 2**30


def cuda_peak() -> int:
    """Bytes at the peak. Replayed graphs work in pools of their own, where nothing counts as allocated while they run: with
    such pools it is all that the process holds of the device."""
    pools = any(tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0) for segment in torch.cuda.memory_snapshot())
    return torch.cuda.max_memory_reserved() if pools else torch.cuda.max_memory_allocated()


def _on_cpu(work: Callable[[], object], repeats: int) -> tuple[list[float], float]:
    """CPU times are for ratios only; the peak is of live tensors that the profiler saw allocated."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e3)
    return times, cpu_peak(work) / 2**30


def cpu_peak(work: Callable[[], object]) -> int:
    """Bytes of the highest sum of live CPU tensor memory during one run of `work`, beyond what was there before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    live = peak = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def result(
    name: str, timing: tuple[list[float], float], tokens: int, flops: float | None = None, rate: float | None = None
) -> Result:
    """A line from `measure`'s answer."""
    times, peak = timing
    median = statistics.median(times)
    low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (median, median, median)
    share = None if flops is None or rate is None else flops / (median * 1e-3) / rate
    return Result(name, median, high - low, tokens / (median * 1e-3), peak, share)


def matmul_rate(size: int = 8192) -> float | None:
    """FLOP/s of a square bfloat16 product on random data: the ceiling to compare with. CUDA only."""
    if not torch.cuda.is_available():
        return None
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times, _ = measure(lambda: a @ b, "cuda", repeats=20)
    return 2.0 * size**3 / (statistics.median(times) * 1e-3)


def report(title: str, results: list[Result], path: str | None, **extra: object) -> None:
    """Print the table and, when asked, write it as JSON with what made it."""
    print(f"\n{title}")
    print(f"{'':44}{'median ms':>11}{'± ms':>8}{'tokens/s':>13}{'peak GiB':>10}{'of peak':>9}")
    for line in results:
        share = "" if line.peak_share is None else f"{line.peak_share:8.0%}"
        print(
            f"{line.name:44}{line.median_ms:11.3f}{line.spread_ms:8.3f}{line.tokens_per_s:13,.0f}"
            f"{line.peak_gib:10.2f}{share:>9}"
        )
    for key, value in extra.items():
        print(f"{key}: {value}")
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    made = {"title": title, "device": name, "torch": torch.__version__}
    write_json(path, {**made, "results": [asdict(r) for r in results], **extra})
