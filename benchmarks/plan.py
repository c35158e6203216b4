"""Is `scdd plan` right? Some steps of several sizes: calculated memory and speed beside the measured ones.

python benchmarks/plan.py --json build/plan.json
python benchmarks/plan.py --smoke --device cpu  # the same code at toy sizes, which says nothing about the numbers

Each line of the JSON is an entry for src/scdd/assets/measured.json, which the speeds of `scdd plan` come from.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from common import measure
from output import json_flag, write_json
from scdd.assemble.job import Job, job_of
from scdd.assemble.machines import GIB, find
from scdd.assemble.measured import fitted
from scdd.assemble.memory import memory
from scdd.assemble.network import network, prepare
from scdd.assemble.pace import pace
from scdd.assemble.training import objective
from scdd.core.types import Vocab
from scdd.objectives.base import BatchSlice
from scdd.recipe.load import load
from scdd.recipe.sections import Recipe
from scdd.training.optim import MovingAverage, Optimiser
from scdd.training.parallel import LossModule, Parallel, World

LLAMA_1B = "model={kind: llama, size: custom, depth: 16, width: 2048, heads: 32, kv_heads: 8, mlp_width: 8192}"
SMOLLM2 = "model={kind: llama, size: smollm2-135m}"


@dataclass(frozen=True)
class Case:
    """What is trained: a recipe, as `scdd plan` takes it."""

    size: str
    recipe: str
    changes: tuple[str, ...]
    vocab: int


CASES = (
    Case("8 × 512", "wiki-tiny", (), 16_384),
    Case("12 × 768", "paper/owt-scdd-0.2", ("training.batch_size=32",), 50_258),
    Case("12 × 768", "paper/owt-scdd-0.2", ("training.batch_size=32", "training.micro_batch_size=8"), 50_258),
    Case("24 × 1024", "paper/owt-scdd-0.2", ("model.size=medium", "training.batch_size=32"), 50_258),
    Case("SmolLM2-135M", "adapt/smollm2-135m", (SMOLLM2,), 49_153),
    Case("SmolLM2-135M", "adapt/smollm2-135m", (SMOLLM2, "training.micro_batch_size=128", "training.muon=null", "training.cuda_graphs=false"), 49_153),
    Case("1.2 B", "adapt/smollm2-135m", (LLAMA_1B, "data.length=1024", "training.batch_size=16", "training.micro_batch_size=8", "training.muon=null", "training.cuda_graphs=false", "training.recompute=true"), 128_257),
    Case("1.2 B", "adapt/smollm2-135m", (LLAMA_1B, "data.length=1024", "training.batch_size=16", "training.micro_batch_size=8", "training.cuda_graphs=false"), 128_257),
)  # fmt: skip
TINY = ("data.length=16", "training.batch_size=4", "training.compile=false", "training.cuda_graphs=false")
SMOKE = (
    Case("2 × 32", "wiki-tiny", (*TINY, "model={kind: dit, size: custom, depth: 2, width: 32, heads: 4}"), 150),
    Case("llama 2 × 32", "adapt/smollm2-135m", (*TINY, "model={kind: llama, size: custom, depth: 2, width: 32, heads: 4, kv_heads: 2, mlp_width: 64}", "training.micro_batch_size=2", "training.muon=null", "training.recompute=true"), 150),
)  # fmt: skip


class Steps:
    """The recipe's training step, as `Trainer.advance` takes it, on random tokens."""

    def __init__(self, spec: Recipe, job: Job, device: str) -> None:
        vocab, training = Vocab(job.vocab, job.vocab - 1), spec.training
        net = network(spec, vocab)
        for parameter in net.parameters():  # zero-initialised parts would make some kernels look fast
            if not parameter.detach().any():
                torch.nn.init.normal_(parameter, std=0.02)
        world = World(device=torch.device(device))
        prepare(spec, net, world.device)
        module = LossModule(net, objective(spec, vocab, net.width)).to(world.device)
        self.training = training
        self.parallel = Parallel(module, world, training.compile, training.cuda_graphs)
        kept = self.parallel.replayed
        self.optimiser = Optimiser(module.named_parameters(), training, module.hidden_matrices(), keep_gradients=kept)
        self.average = MovingAverage(module, training.ema) if training.ema > 0 else None
        shape = (training.batch_size, job.length)
        self.tokens = vocab.token(torch.randint(vocab.K, shape, device=world.device))
        self.step = 0

    def __call__(self) -> None:
        """One step."""
        count = self.training.batch_size
        for rows, part in BatchSlice(0, self.step, 0, count, count).micro_batches(self.training.micro_batch_size):
            with self.parallel.sending_gradients(last=rows.stop == count):
                loss = self.parallel.forward(self.tokens[rows], None, None, part).total
                self.optimiser.take_gradients(loss, alone=rows == slice(0, count))
        norm = self.optimiser.update_and_average(self.step, self.average)
        if self.step == 0 and not norm.isfinite():
            raise SystemExit(f"the gradient's norm is {norm.item()}: a broken step is not worth timing")
        self.step += 1


def lines(args: Any) -> Iterator[dict[str, Any]]:
    """Each case, calculated and measured."""
    for case in SMOKE if args.smoke else CASES:
        if args.only not in case.size:
            continue
        spec = load(case.recipe, case.changes)
        spec = replace(spec, training=replace(spec.training, start_from=None, grow_attention=0))
        job, *_ = job_of(spec, vocab=case.vocab)
        before = torch.cuda.memory_allocated() / GIB if args.device == "cuda" else 0.0  # what the last case has left
        times, peak = measure(Steps(spec, job, args.device), args.device, args.repeats, warmup=2 if args.smoke else 8)
        peak -= before
        gc.collect()
        if args.device == "cuda":
            torch.compiler.reset()
            torch.cuda.empty_cache()
        rate = spec.training.batch_size * job.length / (statistics.median(times) * 1e-3)
        yield {
            "size": case.size, "gpu": args.gpu, "date": datetime.date.today().isoformat(),
            "command": "python benchmarks/plan.py", "where": "its --json",
            "recipe": case.recipe, "set": list(case.changes), "vocab": case.vocab,
            "tokens_per_second": round(rate), "memory": round(peak, 4),
            "calculated": {
                "tokens_per_second": round(pace(job, find(args.gpu), fitted()).tokens_per_second),
                "memory": round(memory(job).allocated / GIB, 4),
            },
        }  # fmt: skip


def main() -> None:
    """One line a case."""
    args = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    args.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args.add_argument("--gpu", default="h200", help="the device's name for scdd plan")
    args.add_argument("--repeats", type=int, default=20)
    args.add_argument("--only", default="", help="sizes whose name contains this")
    args.add_argument("--smoke", action="store_true", help="toy sizes")
    json_flag(args)
    args = args.parse_args()
    print(
        f"{'':16}{'micro':>6}{'GiB calculated':>16}{'measured':>10}{'':>9}{'tokens/s calculated':>21}{'measured':>12}"
    )
    made = []
    for line in lines(args):
        made.append(line)
        found = line["calculated"]
        rows = next((c.partition("=")[2] for c in line["set"] if "micro_batch_size" in c), "recipe")
        print(
            f"{line['size']:16}{rows:>6}{found['memory']:16.4g}{line['memory']:10.4g}{found['memory'] / line['memory'] - 1:+9.1%}"
            f"{found['tokens_per_second']:21,}{line['tokens_per_second']:12,}"
            f"{found['tokens_per_second'] / line['tokens_per_second'] - 1:+9.1%}",
            flush=True,
        )
    write_json(args.json, made)


if __name__ == "__main__":
    main()
