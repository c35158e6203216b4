"""Where a denoising step's time goes, kernel by kernel: whole walks of full batches, as commands and the server take them.

    python benchmarks/step_kernels.py                          # the bundled model, 64 texts of 128 tokens, in the server's shape
    python benchmarks/step_kernels.py --size tiny --vocab 8192 # a DiT with random weights, as in benchmarks/sample.py
    python benchmarks/step_kernels.py --model runs/mine --rows 16 --length 512

A kernel's time is its own, by torch's profiler, added up over a step; what is left to the step's time by the clock, measured without the
profiler, is gaps between kernels and waiting for the host. Products are told from the rest by their names. On a CPU it is torch's operations
instead.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

from output import json_flag, write_json  # noqa: E402
from sample import network  # noqa: E402
from scdd.core.options import altered  # noqa: E402
from scdd.core.rng import CounterRNG  # noqa: E402
from scdd.lm.loading import load  # noqa: E402
from scdd.models.options import SIZES  # noqa: E402
from scdd.ops.common import Filters  # noqa: E402
from scdd.processes.scdd import SCDD  # noqa: E402
from scdd.samplers.ancestral import Ancestral  # noqa: E402
from scdd.samplers.base import Model, grid  # noqa: E402
from scdd.samplers.graphs import StepGraphs  # noqa: E402
from scdd.samplers.plan import SamplingPlan  # noqa: E402
from scdd.samplers.row_batch import RowBatch  # noqa: E402
from scdd.samplers.step import TokenRows  # noqa: E402
from scdd.schedules.peaked import Peaked  # noqa: E402
from scdd.serve.sharing import Sharing  # noqa: E402

PRODUCT = re.compile(r"gated_linear|gemm|nvjet|cutlass|xmma|addmm|::_int_mm|::mm|::linear", re.IGNORECASE)


class Kernel(NamedTuple):
    """One kernel, in a step."""

    name: str
    launches: float
    microseconds: float


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a checkpoint or run folder; default: the bundled model")
    parser.add_argument("--size", choices=list(SIZES), help="a DiT with random weights instead")
    parser.add_argument("--vocab", type=int, default=50_258, help="its ids in all, the mask included")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=128, help="tokens of a text")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5, help="walks by the clock")
    parser.add_argument("--most", type=int, default=30, help="kernels that are shown")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    json_flag(parser)
    return parser.parse_args()


def batch_of(args: argparse.Namespace) -> tuple[RowBatch, SamplingPlan, int]:
    """(An empty batch, the plan of its rows, tokens of a row)."""
    cuda = args.device.startswith("cuda")
    if args.size:
        net = network(args)
        model = Model(net, SCDD(net.vocab, Peaked(p_u=0.2)), graphs=StepGraphs() if cuda else None)
        plan = SamplingPlan(Ancestral(), grid("uniform", args.steps), Filters(top_p=0.9))
        return RowBatch(model, plan), plan, args.length
    lm = load(args.model, device=args.device)
    plan = lm.plan(steps=args.steps, top_p=0.9, stop=False, seed=0)
    plan = altered(plan, rows_per_forward=args.rows if cuda else None)
    framed = args.length + len(lm.engine.framed(()))
    return RowBatch(lm.engine.model, plan, Sharing(lm, args.rows).shape(framed).width if cuda else None), plan, framed


def walk(batch: RowBatch, plan: SamplingPlan, rows: int, length: int) -> float:
    """Seconds of a walk of so many rows, which join and leave together; everything waited for."""
    masks = torch.full((rows, length), batch.model.denoiser.vocab.mask_id)
    batch.add(TokenRows(masks), CounterRNG(0, range(rows)), plan)
    wait(batch.device)
    start = time.perf_counter()
    while not batch.rows[0].ended:
        batch.step()
    wait(batch.device)
    elapsed = time.perf_counter() - start
    batch.remove(list(batch.rows))
    return elapsed


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def kernels(run: Any, steps: int, cuda: bool) -> list[Kernel]:
    """What a step launches, the longest first."""
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
        run()
    found = []
    for each in seen.key_averages():
        spent = each.self_device_time_total if cuda else each.self_cpu_time_total
        if spent:
            found.append(Kernel(each.key, each.count / steps, spent / steps))
    return sorted(found, key=lambda each: -each.microseconds)


@torch.no_grad()
def main() -> None:
    args = arguments()
    batch, plan, length = batch_of(args)
    for _ in range(2):
        walk(batch, plan, args.rows, length)
    by_clock = statistics.median(walk(batch, plan, args.rows, length) for _ in range(args.repeats)) / args.steps
    found = kernels(lambda: walk(batch, plan, args.rows, length), args.steps, args.device.startswith("cuda"))
    busy = sum(each.microseconds for each in found)
    products = sum(each.microseconds for each in found if PRODUCT.search(each.name))
    for each in found[: args.most]:
        print(f"{each.microseconds:9.1f} µs {each.launches:7.1f} ×  {each.name[:110]}")
    print(f"{busy:9.1f} µs {sum(each.launches for each in found):7.1f} ×  all, of which products {products:.1f} µs")
    print(f"{1e6 * by_clock:9.1f} µs a step by the clock")
    write_json(args.json, {"step_us": 1e6 * by_clock, "kernels_us": busy, "products_us": products, "kernels": found})


if __name__ == "__main__":
    main()
