"""Time and memory of a denoising step: the whole loop, the final step included, with frames off and on.

On a GPU in several ways in one run: eager (kernel by kernel), graphed (`samplers.graphs`, what commands do), compiled (the network
compiled, behind a graph of its own), both; and beside them the bare forward pass with its head, eager and graphed.

    python benchmarks/sample.py                              # on a GPU: the standard setting, 12 × 768, 512 tokens, 128 steps
    python benchmarks/sample.py --size tiny --length 128 --steps 32 --vocab 8192 --batch 1 --ways eager,graphed
    python benchmarks/sample.py --size nano --length 128 --steps 32 --batch 4 --vocab 2048

Needs torch alone: nothing here imports recipes.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from output import json_flag, write_json
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
from scdd.samplers.graphs import StepGraphs
from scdd.samplers.loop import sample_loop
from scdd.samplers.p2 import P2
from scdd.samplers.plan import SamplingPlan
from scdd.samplers.remdm import Remdm
from scdd.samplers.step import TokenRows
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
    parser.add_argument(
        "--ways", default=None, help=f"of {', '.join(WAYS)}; default: eager and graphed, eager on a CPU"
    )
    json_flag(parser)
    return parser.parse_args()


WAYS = {"eager": (False, False), "graphed": (False, True), "compiled": (True, False), "both": (True, True)}
"""Whether the network is compiled, and whether steps are captured."""


def network(args: argparse.Namespace) -> DiT:
    """Weights that make a spread-out but not flat x_θ: a head of zeros would leave nothing to a nucleus."""
    generator = torch.Generator().manual_seed(0)
    model = DiT(SIZES[args.size], Vocab(args.vocab, args.vocab - 1), generator)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(0.0, 0.02, generator=generator)
        model.output.weight.normal_(0.0, 0.1, generator=generator)
    kind = torch.bfloat16 if args.device.startswith("cuda") else torch.float32
    return model.eval().requires_grad_(False).to(device=args.device, dtype=kind)


def seconds(model: Model, args: argparse.Namespace, record: bool) -> tuple[float, int]:
    """(Wall time of one whole walk, NFE), everything waited for."""
    mask_id = model.denoiser.vocab.mask_id
    z = torch.full((args.batch, args.length), mask_id, device=args.device)
    rng = CounterRNG(0, range(args.batch), args.device)
    times, filters = grid("uniform", args.steps), Filters(top_p=args.top_p)
    plan = SamplingPlan(SAMPLERS[args.sampler], times, filters, record=record)
    _wait(args)
    start = time.perf_counter()
    frames = list(sample_loop(model, plan, TokenRows(z), rng))
    tokens = torch.stack([frame.tokens for frame in frames]).cpu()
    elapsed = time.perf_counter() - start
    assert not bool((tokens[-1] == mask_id).any()), "a mask was left over"
    return elapsed, int(frames[-1].nfe[0])


def _wait(args: argparse.Namespace) -> None:
    if args.device.startswith("cuda"):
        torch.cuda.synchronize()


def peak(args: argparse.Namespace) -> float:
    """GiB: of the device's memory, or of the process on a CPU."""
    if args.device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def forwards(model: DiT | Graphed, args: argparse.Namespace) -> float:
    """Milliseconds of a bare forward pass, hidden states and logits: the median of a few rounds of as many as a walk has steps."""
    z = torch.randint(args.vocab - 1, (args.batch, args.length), device=args.device)
    t = torch.full((args.batch,), 0.5, dtype=torch.float64, device=args.device)
    weight, bias = model.head.weight, model.head.bias
    found = []
    with torch.no_grad():
        for round_ in range(args.repeats + 1):
            _wait(args)
            start = time.perf_counter()
            for _ in range(args.steps):
                torch.nn.functional.linear(model.hidden(z, t).flatten(0, 1), weight, bias)
            _wait(args)
            if round_:
                found.append((time.perf_counter() - start) / args.steps)
    return 1000 * statistics.median(found)


def bare(args: argparse.Namespace) -> dict[str, float]:
    """The forward pass alone, for every way of launching it."""
    found, model = {"eager": forwards(network(args), args)}, network(args)
    if args.device.startswith("cuda"):
        found["graphed"] = forwards(Graphed(model), args)
        if any(WAYS[way][0] for way in ways(args)):
            compile_network(model)
            found["compiled"] = forwards(Graphed(model), args)
    return {name: round(value, 4) for name, value in found.items()}


def ways(args: argparse.Namespace) -> list[str]:
    """Those that were asked for."""
    on_gpu = args.device.startswith("cuda")
    chosen: list[str] = args.ways.split(",") if args.ways else ["eager", "graphed"] if on_gpu else ["eager"]
    if unknown := set(chosen) - set(WAYS):
        raise SystemExit(f"--ways {', '.join(unknown)}: choose from {', '.join(WAYS)}.")
    return chosen


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Every way, and the bare forward."""
    found: dict[str, Any] = {
        "ways": {way: measure_way(args, *WAYS[way]) for way in ways(args)},
        "forward_ms": bare(args),
    }
    best = min(found["forward_ms"].values())
    for one in found["ways"].values():
        one["of_forward"] = round(one["frames_off"]["ms_per_step"] / best, 4)
    return {**found["ways"][ways(args)[-1]], **found}


def measure_way(args: argparse.Namespace, compiled: bool, graphs: bool) -> dict[str, Any]:
    """The medians of a few walks after a warm-up one."""
    bare_network = network(args)
    if compiled:
        compile_network(bare_network)
    denoiser = Graphed(bare_network) if compiled and not graphs else bare_network
    model = Model(denoiser, PROCESSES[args.process](denoiser.vocab), graphs=StepGraphs() if graphs else None)
    found: dict[str, Any] = {
        **{name: getattr(args, name) for name in ("size", "length", "steps", "batch", "vocab", "process", "sampler")},
        "top_p": args.top_p,
        "device": torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device,
        "torch": torch.__version__,
    }
    for name, record in (("frames_off", False), ("frames_on", True)):
        _wait(args)
        start = time.perf_counter()
        seconds(model, args, record)
        found.setdefault("first_walk_s", round(time.perf_counter() - start, 3))
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
    write_json(args.json, found)
    print("forward pass:", ", ".join(f"{name} {value:.3f} ms" for name, value in found["forward_ms"].items()))
    for way, whole in found["ways"].items():
        print(f"{way}: {whole['of_forward']:.2f} × the best forward; the first walk took {whole['first_walk_s']:.2f} s")
        for name in ("frames_off", "frames_on"):
            one = whole[name]
            print(
                f"{name:<11} {one['ms_per_step']:9.3f} ms/step  {one['tokens_per_s']:>10,} tokens/s  {one['peak_gib']:.2f} GiB"
            )
        print(f"recording costs {whole['recording_overhead']:.1%}; {whole['frames_off']['nfe']} evaluations a walk")


if __name__ == "__main__":
    main()
