"""Time and memory of a denoising step: the whole loop, the final step included, with frames off and on.

    python benchmarks/sample.py --json                       # on a GPU: the standard setting, 12 × 768, 512 tokens, 128 steps
    python benchmarks/sample.py --size nano --length 128 --steps 32 --batch 4 --vocab 2048

Needs torch alone: nothing here imports recipes.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from scdd.core import Vocab
from scdd.core.rng import CounterRNG
from scdd.models.compiled import compile_network
from scdd.models.dit import DiT
from scdd.models.graphed import Graphed
from scdd.models.options import SIZES
from scdd.ops.common import Filters
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.samplers.ancestral import Ancestral
from scdd.samplers.base import Model, grid
from scdd.samplers.loop import TokenRows, sample_loop
from scdd.samplers.p2 import P2
from scdd.samplers.plan import SamplingPlan
from scdd.samplers.remdm import Remdm
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked

PROCESSES: dict[str, Callable[[Vocab], Any]] = {
    "scdd": lambda vocab: SCDD(vocab, Peaked(p_u=0.2)),
    "gidd": lambda vocab: GIDD(vocab, Peaked(p_u=0.2)),
    "mdlm": lambda vocab: MDLM(vocab, Masked()),
}
SAMPLERS = {"ancestral": Ancestral(), "remdm": Remdm(), "remdm-conf": Remdm(variant="conf"), "p2": P2()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=list(SIZES))
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=50_258, help="ids in all, the mask (the last one) included")
    parser.add_argument("--top-p", type=float, default=0.9)
    parser.add_argument("--process", default="scdd", choices=list(PROCESSES))
    parser.add_argument("--sampler", default="ancestral", choices=list(SAMPLERS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return parser.parse_args()


def network(args: argparse.Namespace) -> DiT | Graphed:
    """Weights that make a spread-out but not flat x_θ: a head of zeros would leave nothing to a nucleus."""
    generator = torch.Generator().manual_seed(0)
    model = DiT(SIZES[args.size], Vocab(args.vocab, args.vocab - 1), generator)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(0.0, 0.02, generator=generator)
        model.output.weight.normal_(0.0, 0.1, generator=generator)
    kind = torch.bfloat16 if args.device.startswith("cuda") else torch.float32
    model = model.eval().requires_grad_(False).to(device=args.device, dtype=kind)
    if args.device.startswith("cuda") and not args.no_compile:
        compile_network(model)
        return Graphed(model)
    return model


def seconds(model: DiT | Graphed, args: argparse.Namespace, record: bool) -> tuple[float, int]:
    """(Wall time of one whole walk, NFE), everything waited for."""
    process = PROCESSES[args.process](model.vocab)
    z = torch.full((args.batch, args.length), model.vocab.mask_id, device=args.device)
    rng = CounterRNG(0, range(args.batch), args.device)
    times, filters = grid("uniform", args.steps), Filters(top_p=args.top_p)
    plan = SamplingPlan(SAMPLERS[args.sampler], times, filters, record=record)
    _wait(args)
    start = time.perf_counter()
    frames = list(sample_loop(Model(model, process), plan, TokenRows(z), rng))
    tokens = torch.stack([frame.tokens for frame in frames]).cpu()
    elapsed = time.perf_counter() - start
    assert not bool((tokens[-1] == model.vocab.mask_id).any()), "a mask was left over"
    return elapsed, int(frames[-1].nfe[0])


def _wait(args: argparse.Namespace) -> None:
    if args.device.startswith("cuda"):
        torch.cuda.synchronize()


def peak(args: argparse.Namespace) -> float:
    """GiB: of the device's memory, or of the process on a CPU."""
    if args.device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The medians of a few walks after a warm-up one."""
    model = network(args)
    found: dict[str, Any] = {
        **{name: getattr(args, name) for name in ("size", "length", "steps", "batch", "vocab", "process", "sampler")},
        "top_p": args.top_p,
        "device": torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device,
        "torch": torch.__version__,
    }
    for name, record in (("frames_off", False), ("frames_on", True)):
        seconds(model, args, record)
        if args.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats()
        walks = [seconds(model, args, record) for _ in range(args.repeats)]
        middle = statistics.median(elapsed for elapsed, _ in walks)
        found[name] = {
            "ms_per_step": round(1000 * middle / args.steps, 4),
            "ms_per_step_all": [round(1000 * elapsed / args.steps, 4) for elapsed, _ in walks],
            "tokens_per_s": round(args.batch * args.length * args.steps / middle),
            "nfe": walks[0][1],
            "peak_gib": round(peak(args), 3),
        }
    found["recording_overhead"] = round(found["frames_on"]["ms_per_step"] / found["frames_off"]["ms_per_step"] - 1, 4)
    return found


def main() -> None:
    args = arguments()
    found = measure(args)
    if args.json:
        print(json.dumps(found))
        return
    for name in ("frames_off", "frames_on"):
        one = found[name]
        print(
            f"{name:<11} {one['ms_per_step']:9.3f} ms/step  {one['tokens_per_s']:>10,} tokens/s  {one['peak_gib']:.2f} GiB"
        )
    print(f"recording costs {found['recording_overhead']:.1%}; {found['frames_off']['nfe']} evaluations a walk")


if __name__ == "__main__":
    main()
