"""One training step (corrupt, forward, loss, backward, clip, AdamW, average) beside a plain cross-entropy step.

python benchmarks/train_step.py --size small --vocab 50258 --length 512 --batch 32
python benchmarks/train_step.py --network llama --micro 64  # SmolLM2-135M, 256 × 256 tokens
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.attention
from torch.nn import functional as F

from common import matmul_rate, measure, parser, report, result
from scdd.core import Vocab
from scdd.core.types import padded
from scdd.models import attention, llama
from scdd.models.compiled import compile_network
from scdd.models.dit import DiT
from scdd.models.narrow import NarrowLinear, set_fp8
from scdd.models.options import DECODERS, SIZES
from scdd.objectives.base import BatchSlice
from scdd.objectives.diffusion import DiffusionObjective
from scdd.objectives.options import ElboOptions, LowDiscrepancyTimesOptions
from scdd.processes.base import Process
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked
from scdd.training.optim import MovingAverage, Optimiser
from scdd.training.options import OptimiserOptions

DEFAULTS: dict[str, dict[str, Any]] = {
    "dit": {"size": "small", "vocab": 50_258, "length": 512, "batch": 32},
    "llama": {"size": "smollm2-135m", "vocab": 49_153, "length": 256, "batch": 256},
}


class Setup:
    """A network with its optimiser and average, and a batch of tokens, on one device."""

    def __init__(self, args: Any) -> None:
        torch.manual_seed(0)
        self.args, self.vocab = args, Vocab(args.vocab, args.vocab - 1)
        self.model = network(args, self.vocab).to(args.device)
        # bfloat16 compute over float32 master weights on a GPU, plain float32 on a CPU
        self.model.compute_dtype = torch.bfloat16 if args.device == "cuda" else None
        if args.precision == "fp8":
            set_fp8(self.model, torch.device(args.device))
        for parameter in self.model.parameters():  # zero-initialised parts would make some kernels look fast
            if not parameter.detach().any():
                torch.nn.init.normal_(parameter, std=0.02)
        if args.device == "cuda" and not args.eager:
            chosen = {"triton.cudagraphs": args.cudagraphs, "max_autotune_gemm": args.autotune}
            for part in self.model.layers() if args.blocks else [self.model]:
                compile_network(part, options={name: True for name, wanted in chosen.items() if wanted})
        options = OptimiserOptions(steps=100_000, warmup_steps=10)
        self.optimiser = Optimiser(self.model.named_parameters(), options, keep_gradients=args.cudagraphs)
        self.average = MovingAverage(self.model)
        shape = (args.batch, args.length)
        self.tokens = self.vocab.token(torch.randint(self.vocab.K, shape, device=args.device))
        self.step, self.norm = 0, torch.zeros(())

    def parts(self) -> list[BatchSlice]:
        """The batch in pieces of --micro rows."""
        rows, each = self.args.batch, self.args.micro or self.args.batch
        return [BatchSlice(0, self.step, at, min(each, rows - at), rows) for at in range(0, rows, each)]

    def take(self, loss: torch.Tensor, part: BatchSlice) -> None:
        """The gradients of one piece."""
        self.optimiser.take_gradients(loss, alone=part.count == part.total)

    def finish(self) -> None:
        """Clip, AdamW, average."""
        self.norm = self.optimiser.update_and_average(self.step, self.average)
        self.step += 1


def network(args: Any, vocab: Vocab) -> Any:
    """The network of that size, with --depth blocks if it says so."""
    shape: Any = DECODERS[args.size] if args.network == "llama" else SIZES[args.size]
    if args.depth:
        shape = replace(shape, depth=args.depth)
    made: Any
    if args.network == "dit":
        made = DiT(shape, vocab)
        made.recompute = args.recompute
        return made
    llama.Block.mlp_impl, llama.Norm.impl, llama.Block.keeps_product = args.mlp, args.norm, args.keep_product
    attention.GROUPED[args.device] = args.groups or attention.GROUPED[args.device]
    made = llama.Llama(shape, vocab)
    made.recompute = args.recompute
    return made


def diffusion_step(
    setup: Setup, process: Process, steps: int | None, impl: str, clean_share: float = 1.0
) -> Callable[[], None]:
    """The step of a diffusion objective, as the trainer takes it: discrete time with `steps`, continuous without."""
    compiled = setup.args.device == "cuda" and not setup.args.eager
    options = ElboOptions(steps, times=LowDiscrepancyTimesOptions(), clean_share=clean_share)
    objective = DiffusionObjective(process, options, impl=impl, compile=compiled)

    def work() -> None:
        for part in setup.parts():
            tokens = setup.tokens[part.first : part.first + part.count]
            torch.compiler.cudagraph_mark_step_begin()
            setup.take(objective.loss(setup.model, tokens, None, part).total, part)
        setup.finish()

    return work


def plain_step(setup: Setup) -> Callable[[], None]:
    """The floor: the same network on clean tokens and F.cross_entropy, head and loss compiled."""
    head = setup.model.head

    def loss(hidden: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            return F.cross_entropy(F.linear(hidden, weight, bias).float(), x.flatten())

    compiled = torch.compile(loss) if setup.args.device == "cuda" and not setup.args.eager else loss

    def work() -> None:
        for part in setup.parts():
            x = setup.tokens[part.first : part.first + part.count]
            torch.compiler.cudagraph_mark_step_begin()
            hidden = setup.model.hidden(x, torch.zeros(x.shape[0], device=x.device))
            share = part.count / part.total
            setup.take(compiled(hidden.flatten(0, 1), x, head.weight, head.bias) * share, part)
        setup.finish()

    return work


def flops(setup: Setup) -> float:
    """6 · weights in matrix products · tokens, and attention's 12 · L · D a token and layer."""
    config, tokens = setup.model.config, setup.tokens.numel()
    inner = 12 * config.depth * config.width**2
    if setup.args.network == "llama":
        inner = sum(setup.model.get_parameter(name).numel() for name in setup.model.hidden_matrices())
    weights = inner + padded(setup.vocab.size) * config.width
    return tokens * (6.0 * weights + 12.0 * config.depth * setup.args.length * config.heads * config.head_width)


def main() -> None:
    """Every step in one run, on one network."""
    args = parser(__doc__)
    args.add_argument("--network", default="dit", choices=list(DEFAULTS), help="sets the defaults of the next four")
    args.add_argument("--size", choices=[*SIZES, *DECODERS])
    args.add_argument("--vocab", type=int, help="V, mask included")
    args.add_argument("--length", type=int)
    args.add_argument("--batch", type=int)
    args.add_argument("--micro", type=int, default=0, help="rows of one backward pass; default: the batch")
    args.add_argument("--depth", type=int, default=0, help="blocks; default: as many as the size has")
    args.add_argument("--impl", default="auto", help="of ops.elbo")
    args.add_argument("--eager", action="store_true", help="compile nothing")
    args.add_argument("--blocks", action="store_true", help="compile block by block: sooner ready, more launches")
    args.add_argument("--cudagraphs", action="store_true", help="replay the compiled passes as CUDA graphs")
    args.add_argument("--autotune", action="store_true", help="let the compiler try its own matrix products, too")
    args.add_argument("--only", default="", help="measure only the steps whose name contains this, and the plain one")
    args.add_argument(
        "--attention",
        default="",
        choices=["", "torch", "cudnn", "flash", "efficient"],
        help="default: ops.attention and ops.gelu; torch: neither; cudnn, flash or efficient: torch's, that one first",
    )
    args.add_argument("--precision", default="bf16", choices=["bf16", "fp8"], help="of the blocks' products on a GPU")
    args.add_argument("--wgrad", default="fp8", choices=["fp8", "bf16"], help="of their weights' gradients with fp8")
    args.add_argument("--mlp", default="auto", help="llama: impl of ops.swiglu")
    args.add_argument("--keep-product", action="store_true", help="llama: keep the gated product for the backward pass")
    args.add_argument("--norm", default="auto", help="llama: impl of ops.norm")
    args.add_argument("--groups", default="", help="llama: native, fold or repeat, see models.attention.GROUPED")
    args.add_argument("--recompute", action="store_true", help="compute blocks again in the backward pass")
    args = args.parse_args()
    for name, value in DEFAULTS[args.network].items():
        setattr(args, name, getattr(args, name) or value)
    attention.FUSED, NarrowLinear.wgrad = not args.attention, args.wgrad
    setup = Setup(args)
    if args.attention not in ("", "torch"):
        names = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
        backend = getattr(torch.nn.attention.SDPBackend, names[args.attention])
        torch.nn.attention.sdpa_kernel([backend, torch.nn.attention.SDPBackend.MATH], set_priority=True).__enter__()
    rate, tokens = matmul_rate(), setup.tokens.numel()
    vocab, peaked = setup.vocab, Peaked(0.2)
    works = {
        "plain cross-entropy (compiled, padded head)": plain_step(setup),
        "SCDD p_u 0.2, T = 1000": diffusion_step(setup, SCDD(vocab, peaked), 1000, args.impl),
        "SCDD p_u 0.2, continuous": diffusion_step(setup, SCDD(vocab, peaked), None, args.impl),
        "GIDD p_u 0.2, continuous": diffusion_step(setup, GIDD(vocab, peaked), None, args.impl),
        "MDLM, T = 1000": diffusion_step(setup, MDLM(vocab, Masked()), 1000, args.impl),
        "MDLM, T = 1000, clean_share 0.01": diffusion_step(setup, MDLM(vocab, Masked()), 1000, args.impl, 0.01),
    }
    works = {name: work for name, work in works.items() if args.only in name or name.startswith("plain")}
    lines = []
    for name, work in works.items():
        began = time.perf_counter()
        work()
        if not setup.norm.isfinite():
            raise SystemExit(f"{name}: the gradient's norm is {setup.norm.item()}; a broken step is not worth timing")
        print(f"{name}: first step after {time.perf_counter() - began:.1f} s", file=sys.stderr)
        lines.append(result(name, measure(work, args.device, args.repeats), tokens, flops(setup), rate))
    lines.append(result("plain cross-entropy, again", measure(works[lines[0].name], args.device, args.repeats), tokens))
    report(
        f"training step, {args.size}, {args.precision}, V = {args.vocab}, batch {args.batch} × {args.length}, {args.device}",
        lines,
        args.json,
        matmul_tflops=None if rate is None else round(rate / 1e12),
        scdd_over_plain=round(lines[1].median_ms / min(lines[0].median_ms, lines[-1].median_ms), 3),
    )


if __name__ == "__main__":
    main()
