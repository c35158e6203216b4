"""How fast a model learns under different ways of drawing times: curves of the exact SCDD NELBO against training time.

    python benchmarks/time_sampling.py SHARDS --seconds 60 --out build/time_sampling
    python benchmarks/time_sampling.py SHARDS --seconds 150 --variants uniform,dynamic --lr 3e-3 --muon 0.02

Trains the network of `wiki-tiny` (8 × 512, length 256, batch 256, p_u = 0.2) once for each variant on one GPU, for the
same training seconds (compilation and validation do not count), and writes curves as JSON, with a plot where matplotlib
exists. Every variant is judged by the same number: the continuous-time NELBO of SCDD on a fixed validation set, averaged
over many looks, each a stratified draw of times over all sequences; the error is that of these looks.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scdd.core import Vocab
from scdd.core.rng import derive_seed
from scdd.data.loader import Batch, Loader, validation_batches
from scdd.data.pack import cut
from scdd.data.shards import Shards
from scdd.models.dit import DiT
from scdd.models.options import DiTConfig
from scdd.objectives.base import BatchSlice
from scdd.objectives.diffusion import DiffusionObjective
from scdd.objectives.options import ElboOptions
from scdd.objectives.times import Adaptive, Density, LowDiscrepancy, Power, Uniform
from scdd.processes.base import Process
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked
from scdd.training.optim import MovingAverage, Optimiser
from scdd.training.options import OptimiserOptions
from scdd.training.parallel import LossModule, Parallel, World
from scdd.training.validate import validate


class Unweighted(Density):
    """Times of another density without paying for it: not the same objective, but another weighting over t."""

    def __init__(self, density: Density) -> None:
        self.density = density

    def quantile(self, u: Tensor) -> Tensor:
        return self.density.quantile(u)

    def cumulative(self, t: Tensor) -> Tensor:
        return self.density.cumulative(t)

    def importance_weight(self, t: Tensor) -> Tensor:
        return torch.ones_like(t)


@dataclass(frozen=True)
class Variant:
    """What is trained: a process, and objectives that follow each other, each from a share of the time on."""

    phases: tuple[tuple[float, Callable[[Process], DiffusionObjective]], ...]
    process: Callable[[Vocab], Process] = lambda vocab: SCDD(vocab, Peaked(0.2))


def elbo(density: Callable[[], Density], steps: int | None = None) -> Any:
    return lambda process: DiffusionObjective(process, ElboOptions(steps), density(), compile=True)


def dynamic(density: Callable[[], Density]) -> Any:
    return lambda process: DiffusionObjective(process, ElboOptions(None, "dynamic"), density(), compile=True)


def only(objective: Any, **how: Any) -> Variant:
    return Variant(((0.0, objective),), **how)


VARIANTS: dict[str, Variant] = {
    # the paper's objective and its kin: unbiased, by growing care for the variance
    "uniform": only(elbo(Uniform, steps=1000)),
    "low-discrepancy": only(elbo(LowDiscrepancy, steps=1000)),
    "importance": only(elbo(lambda: Power(2.0))),
    "importance-3": only(elbo(lambda: Power(3.0))),
    "adaptive": only(elbo(Adaptive)),
    # SCDD+: bounded weights
    "dynamic": only(dynamic(LowDiscrepancy)),
    "dynamic-importance": only(dynamic(lambda: Power(1.5))),
    "dynamic-adaptive": only(dynamic(lambda: Adaptive(power=1.0))),
    "dynamic-early": only(dynamic(lambda: Unweighted(Power(1.5)))),
    "dynamic-earlier": only(dynamic(lambda: Unweighted(Power(2.0)))),
    # bounded weights first, the bound itself at the end
    "dynamic-then-elbo": Variant(((0.0, dynamic(LowDiscrepancy)), (0.6, elbo(lambda: Power(2.0))))),
    # relatives, for scale
    "gidd+": only(dynamic(LowDiscrepancy), process=lambda vocab: GIDD(vocab, Peaked(0.2))),
    "mdlm": only(elbo(LowDiscrepancy), process=lambda vocab: MDLM(vocab, Masked())),
}
DEFAULT = "uniform,low-discrepancy,importance,adaptive,dynamic,dynamic-importance,dynamic-early,dynamic-then-elbo"


class Bench:
    """One network and one validation set for all variants, so that the compiler works once."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device(args.device)
        self.train, self.valid = Shards(args.shards, "train"), Shards(args.shards, "valid")
        self.vocab = Vocab(self.train.vocab_size, self.train.mask_id)
        config = DiTConfig(depth=args.depth, width=args.width, heads=max(1, args.width // 64))
        self.net = DiT(config, self.vocab).to(self.device)
        self.net.compute_dtype = torch.bfloat16 if self.device.type == "cuda" else None
        self.world = World(device=self.device)
        self.reporter = DiffusionObjective(SCDD(self.vocab, Peaked(0.2)), ElboOptions(None), compile=True)
        limit = min(args.batch, args.valid)
        blocks = cut(self.valid, args.length)
        self.held = list(validation_batches(blocks, limit, limit=args.valid, device=self.device))
        self.compiled = False

    def parallel(self, objective: DiffusionObjective) -> Parallel:
        wanted = self.args.compile and self.device.type == "cuda" and not self.compiled
        self.compiled |= wanted
        return Parallel(LossModule(self.net, objective), self.world, compile=wanted)

    def sync(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def nelbo(self, process: Process) -> tuple[float, float]:
        """Mean over looks, and its standard error."""
        reporter = self.reporter if not isinstance(process, MDLM) else DiffusionObjective(process, ElboOptions(None))
        parallel = self.parallel(reporter)
        rows = self.held[0].tokens.shape[0]
        looks = [validate(parallel, self.held, look, rows).mean for look in range(self.args.looks)]
        if not all(map(math.isfinite, looks)):
            raise SystemExit(f"the NELBO is not finite: {looks[:4]} …")
        return statistics.fmean(looks), statistics.stdev(looks) / math.sqrt(len(looks))

    def steps_per_second(self) -> float:
        """Warm up (and compile), then time steps of the plain objective."""
        run = Run(self, VARIANTS["uniform"], total=10**9)
        batches = iter(run.loader)
        start = self.sync()
        for _ in range(self.args.warm):
            run.advance(next(batches))
        print(f"first {self.args.warm} steps (compilation included): {self.sync() - start:.1f} s", flush=True)
        start = self.sync()
        for _ in range(self.args.timed):
            run.advance(next(batches))
        return self.args.timed / (self.sync() - start)


class Run:
    """One variant from fresh weights."""

    def __init__(self, bench: Bench, variant: Variant, total: int) -> None:
        args = bench.args
        bench.net.initialise(torch.Generator().manual_seed(args.seed))
        self.bench, self.total, self.step = bench, total, 0
        self.process = variant.process(bench.vocab)
        self.phases = [(share, bench.parallel(make(self.process))) for share, make in variant.phases]
        options = OptimiserOptions(
            steps=total,
            learning_rate=args.lr,
            warmup_steps=min(args.warmup, total // 5),
            final_fraction=args.final_fraction,
            muon=args.muon,
        )
        self.optimiser = Optimiser(bench.net.named_parameters(), options, bench.net.hidden_matrices())
        self.average = MovingAverage(bench.net, args.ema)
        self.loader = Loader(cut(bench.train, args.length), args.batch, seed=args.seed, device=bench.device)

    def advance(self, batch: Batch) -> None:
        parallel = next(p for share, p in reversed(self.phases) if self.step >= share * self.total)
        rows = batch.tokens.shape[0]
        seed = derive_seed(self.bench.args.seed, "training")
        loss = parallel.forward(batch.tokens, batch.documents, None, BatchSlice(seed, self.step, 0, rows, rows))
        loss.total.backward()
        self.optimiser.update_and_average(self.step, self.average)
        parallel.module.objective.end_step(lambda tensor: None)
        self.step += 1

    def curve(self) -> list[dict[str, float]]:
        """Train for `total` steps, looking at the averaged weights now and then."""
        bench, points, spent = self.bench, [], 0.0
        stops = {max(1, round(self.total * share)) for share in bench.args.looks_at}
        batches = iter(self.loader)
        self.advance(next(batches))  # compiles what is this variant's own, off the clock
        start = bench.sync()
        while self.step < self.total:
            self.advance(next(batches))
            if self.step in stops:
                spent += bench.sync() - start
                with self.average.swapped_in():
                    mean, error = bench.nelbo(self.process)
                ppl = math.exp(min(mean, 50.0))
                points.append(
                    {
                        "step": self.step,
                        "seconds": spent,
                        "nelbo": mean,
                        "error": error,
                        "ppl": ppl,
                        "ppl_error": ppl * error,
                    }
                )
                start = bench.sync()
        return points


def plot(results: dict[str, Any], path: Path) -> None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for name, points in results["curves"].items():
        axes.errorbar(
            [p["seconds"] for p in points],
            [p["ppl"] for p in points],
            [p["ppl_error"] for p in points],
            label=name,
            capsize=2,
        )
    axes.set(xlabel="training seconds", ylabel="NELBO perplexity", yscale="log")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", help="folder that scdd prepare wrote, with a validation split")
    parser.add_argument("--out", type=Path, default=Path("build/time_sampling"))
    parser.add_argument("--variants", default=DEFAULT, help=f"comma-separated, of {', '.join(VARIANTS)}")
    parser.add_argument("--seconds", type=float, default=60.0, help="training seconds for each variant")
    parser.add_argument(
        "--budget", type=float, default=570.0, help="start no variant that would end after so many seconds"
    )
    parser.add_argument(
        "--looks-at", type=float, nargs="+", default=[0.1, 0.25, 0.5, 0.75, 1.0], help="shares of the run"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--muon", type=float, help="learning rate of Muon for the blocks' matrices")
    parser.add_argument("--final-fraction", type=float, default=0.1, help="of the learning rate, at the end")
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--ema", type=float, default=0.995)
    parser.add_argument("--valid", type=int, default=256, help="validation sequences")
    parser.add_argument("--looks", type=int, default=24)
    parser.add_argument("--warm", type=int, default=20)
    parser.add_argument("--timed", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    begun = time.perf_counter()
    names = args.variants.split(",")
    unknown = [name for name in names if name not in VARIANTS]
    if unknown:
        parser.error(f"no variant {unknown[0]}; choose from {', '.join(VARIANTS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64  # one small graph for each variant
    bench = Bench(args)
    rate = bench.steps_per_second()
    total = max(10, round(rate * args.seconds))
    tokens = args.batch * args.length
    where = torch.cuda.get_device_name() if bench.device.type == "cuda" else "cpu"
    print(
        f"{where}: {rate:.2f} steps/s, {rate * tokens / 1e3:.0f} k tokens/s; {total} steps for each variant", flush=True
    )
    results: dict[str, Any] = {"device": where, "torch": torch.__version__, "steps_per_second": rate, "curves": {}}
    results["settings"] = {key: str(value) for key, value in vars(args).items()}
    for name in names:
        took = time.perf_counter() - begun
        if results["curves"] and took + 1.15 * args.seconds > args.budget:
            print(f"{name}: left out, {args.budget - took:.0f} s are left", flush=True)
            continue
        points = Run(bench, VARIANTS[name], total).curve()
        results["curves"][name] = points
        shown = "  ".join(f"{p['seconds']:.0f}s {p['ppl']:.1f}±{p['ppl_error']:.1f}" for p in points)
        print(f"{name:>20}: {shown}", flush=True)
        (args.out / "time_sampling.json").write_text(json.dumps(results, indent=1) + "\n")
        plot(results, args.out / "time_sampling.png")


if __name__ == "__main__":
    main()
