"""One denoising step (network, x_θ(z_t), keep-or-redraw, draws) beside the bare forward with the vocabulary head.

python benchmarks/denoise_step.py --size small --vocab 50258 --length 512 --batch 16 --top-p 0.9
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from common import matmul_rate, measure, parser, report, result
from scdd.core import Levels, Vocab
from scdd.models.compiled import compile_network
from scdd.models.dit import DiT
from scdd.models.graphed import Graphed
from scdd.models.options import SIZES
from scdd.ops.common import Filters
from scdd.ops.head import head_stats, redraw
from scdd.processes.scdd import SCDD
from scdd.schedules.peaked import Peaked


class Setup:
    """A bfloat16 network with a head that has opinions, and half-masked tokens."""

    def __init__(self, args: Any) -> None:
        torch.manual_seed(0)
        self.args, self.vocab = args, Vocab(args.vocab, args.vocab - 1)
        self.model = DiT(SIZES[args.size], self.vocab).to(args.device).eval()
        for parameter in self.model.parameters():
            if not parameter.detach().any():
                torch.nn.init.normal_(parameter, std=0.02)
        torch.nn.init.normal_(self.model.output.weight, std=4.0 / self.model.config.width**0.5)
        if args.device == "cuda":
            self.model.to(torch.bfloat16)
        if args.device == "cuda" and not args.eager:
            compile_network(self.model)
        self.network = Graphed(self.model) if args.device == "cuda" and not args.eager else self.model
        tokens = self.vocab.token(torch.randint(self.vocab.K, (args.batch, args.length), device=args.device))
        masked = torch.rand(tokens.shape, device=args.device) < 0.5
        self.z_t = torch.where(masked, self.vocab.mask_id, tokens)
        self.t = torch.full((args.batch,), 0.5, dtype=torch.float64, device=args.device)

    def likely(self, filters: Filters) -> Tensor:
        """z_t with each visible token replaced by a draw of x_θ at its own position."""
        hidden = self.network.hidden(self.z_t, self.t).flatten(0, 1)
        visible = (self.z_t != self.vocab.mask_id).flatten()
        drawn = redraw(hidden, self.model.head, visible, None, filters, self.z_t.flatten(), impl=self.args.impl)
        return torch.where(visible, drawn.tokens, self.vocab.mask_id).view_as(self.z_t)


def bare(setup: Setup, with_head: bool) -> Callable[[], Tensor]:
    """The network alone, with or without the product with the (padded) head."""
    head = setup.model.head

    def work() -> Tensor:
        hidden = setup.network.hidden(setup.z_t, setup.t)
        return F.linear(hidden, head.weight, head.bias) if with_head else hidden

    return work


def step(setup: Setup, filters: Filters, inside: bool = False) -> Callable[[], Tensor]:
    """What a sampler does between z_t and z_s, without a host sync; the network behind a CUDA graph on a GPU.

    Random visible tokens lie outside the nucleus, which is quickly seen; `inside` judges tokens that x_θ itself drew, the
    slowest case.
    """
    process = SCDD(setup.vocab, Peaked(0.2))
    grid = process.levels(torch.linspace(1, 0, 129, dtype=torch.float64).to(setup.args.device))
    t, s = (Levels(*(field[i] for field in grid)) for i in (64, 65))
    plan = partial(_plan, process, s, t)
    plan = torch.compile(plan) if setup.args.device == "cuda" and not setup.args.eager else plan

    judged = setup.likely(filters) if inside else setup.z_t

    def work() -> Tensor:
        hidden = setup.network.hidden(setup.z_t, setup.t).flatten(0, 1)
        stats = head_stats(hidden, setup.model.head, judged.flatten(), filters, impl=setup.args.impl)
        choice = torch.rand(setup.z_t.shape, dtype=torch.float64, device=setup.z_t.device)
        u = torch.rand_like(choice)
        moves, other = plan(setup.z_t, stats.log_p_z.view_as(setup.z_t), choice, u)
        drawn = redraw(
            hidden, setup.model.head, moves.flatten(), u.flatten(), filters, setup.z_t.flatten(), stats.logits,
            impl=setup.args.impl,
        )  # fmt: skip
        return torch.where(moves, drawn.tokens.view_as(other), other)

    return work


def _plan(
    process: SCDD, s: Levels, t: Levels, z_t: Tensor, log_p_z: Tensor, choice: Tensor, u: Tensor
) -> tuple[Tensor, Tensor]:
    """(Where the model is asked for a token, what stands elsewhere)."""
    vocab = process.vocab
    move = process.transition(z_t, log_p_z.exp(), s, t)
    kept = choice < move.keep
    moves = ~kept & (choice < move.keep + move.model)
    noise = ~kept & ~moves & (choice < move.keep + move.model + move.uniform)
    token = vocab.token((u * vocab.K).long().clamp(max=vocab.K - 1))
    return moves, torch.where(kept, z_t, torch.where(noise, token, vocab.mask_id))


@torch.inference_mode()
def main() -> None:
    """Bare forwards and whole steps in one run."""
    args = parser(__doc__)
    args.add_argument("--size", default="small", choices=list(SIZES))
    args.add_argument("--vocab", type=int, default=50_258, help="V, mask included")
    args.add_argument("--length", type=int, default=512)
    args.add_argument("--batch", type=int, default=16)
    args.add_argument("--top-p", type=float, default=0.9)
    args.add_argument("--impl", default="auto", help="of the ops")
    args.add_argument("--eager", action="store_true", help="compile nothing")
    setup = Setup(args := args.parse_args())
    rate, tokens = matmul_rate(), setup.z_t.numel()
    works: dict[str, Callable[[], object]] = {
        "bare forward, with the head": bare(setup, True),
        "bare forward, no head": bare(setup, False),
        f"denoising step, top-p {args.top_p:g}": step(setup, Filters(args.top_p)),
        "the same, every visible token inside": step(setup, Filters(args.top_p), inside=True),
        "denoising step, no filter": step(setup, Filters()),
    }
    lines = [result(name, measure(work, args.device, args.repeats), tokens) for name, work in works.items()]
    report(
        f"denoising step, {args.size}, V = {args.vocab}, batch {args.batch} × {args.length}, {args.device}",
        lines,
        args.json,
        matmul_tflops=None if rate is None else round(rate / 1e12),
        step_over_bare=round(lines[2].median_ms / lines[0].median_ms, 3),
    )


if __name__ == "__main__":
    main()
