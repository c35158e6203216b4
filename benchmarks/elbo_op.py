"""The ELBO op alone: time and peak memory against N and V, beside the dense reference, and its gradients' error.

python benchmarks/elbo_op.py                       # one GPU
python benchmarks/elbo_op.py --device cpu --width 128 --vocab 4097 --rows 512,1024,2048
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from common import measure, parser, report, result
from scdd.core import ElboCoefficients, Head, Vocab
from scdd.core.types import padded
from scdd.ops.elbo import elbo
from scdd.processes.scdd import SCDD
from scdd.schedules.peaked import Peaked


class Problem:
    """N noisy positions of a vocabulary, hidden states and a head on one device."""

    def __init__(self, rows: int, size: int, width: int, device: str, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.vocab = Vocab(size, size - 1)
        process = SCDD(self.vocab, Peaked(0.2))
        self.hidden = torch.randn(rows, width, device=device).to(dtype).requires_grad_()
        self.weight = (torch.randn(padded(size), width, device=device) * (3 / width**0.5)).requires_grad_()
        self.bias = torch.zeros(padded(size), device=device, requires_grad=True)
        self.x = self.vocab.token(torch.randint(size - 1, (rows,), device=device))
        t = torch.rand(rows, dtype=torch.float64, device=device) * 0.9 + 0.05
        self.z_t = process.corrupt(self.x, t)
        self.rows: ElboCoefficients = process.elbo_coefficients(self.x, self.z_t, t, t - 1e-3).scaled(1e3 / rows)

    def gradients(self, impl: str, dtype: torch.dtype | None = None) -> list[Tensor]:
        """Gradients of the summed loss by hidden states, weight and bias."""
        inputs = [v.detach().to(dtype or v.dtype).requires_grad_() for v in (self.hidden, self.weight, self.bias)]
        total, _ = elbo(inputs[0], Head(inputs[1], self.vocab, inputs[2]), self.x, self.z_t, self.rows, impl=impl)
        return list(torch.autograd.grad(total, inputs))

    def work(self, impl: str) -> Callable[[], object]:
        """Forward and backward."""
        dtype = torch.float32 if impl == "float32 dense" else None
        return (lambda: self.dense()) if dtype else (lambda: self.gradients(impl))

    def dense(self) -> list[Tensor]:
        """The same loss by autograd over an N × V tensor in float32: what a plain implementation holds."""
        from scdd.ops.elbo.reference import loss

        logits = self.hidden.float() @ self.weight[: self.vocab.size].T + self.bias[: self.vocab.size]
        total = loss(logits, self.x, self.z_t, self.rows, self.vocab.mask_id).sum()
        return list(torch.autograd.grad(total, (self.hidden, self.weight, self.bias)))


def main() -> None:
    """A table over N, one over V, and the errors."""
    args = parser(__doc__)
    args.add_argument("--rows", default="4096,8192,16384,32768")
    args.add_argument("--vocab", type=int, default=50_258)
    args.add_argument("--width", type=int, default=768)
    args.add_argument("--impl", default="auto")
    args.add_argument("--checked", type=int, default=512, help="N of the problem whose gradients are checked")
    args = args.parse_args()
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    counts, lines = [int(n) for n in args.rows.split(",")], []
    for count in counts:
        problem = Problem(count, args.vocab, args.width, args.device, dtype)
        timing = measure(problem.work(args.impl), args.device, args.repeats)
        lines.append(result(f"op, N = {count}", timing, count))
    for size in (args.vocab // 4, args.vocab // 2):
        problem = Problem(counts[-1], size, args.width, args.device, dtype)
        timing = measure(problem.work(args.impl), args.device, args.repeats)
        lines.append(result(f"op, N = {counts[-1]}, V = {size}", timing, counts[-1]))
    small = Problem(counts[0], args.vocab, args.width, args.device, dtype)
    dense = measure(small.work("float32 dense"), args.device, max(3, args.repeats // 4), warmup=1)
    lines.append(result(f"dense reference, N = {counts[0]}", dense, counts[0]))
    tiny = Problem(args.checked, args.vocab, args.width, args.device, dtype)
    truth = tiny.gradients("reference", torch.float64)
    errors = [
        float((fast.double() - exact).norm() / exact.norm())
        for fast, exact in zip(tiny.gradients(args.impl), truth, strict=True)
    ]
    report(
        f"elbo op, forward and backward, D = {args.width}, V = {args.vocab}, {args.device}, {dtype}",
        lines,
        args.json,
        gradient_errors=dict(zip(("hidden", "weight", "bias"), errors, strict=True)),
        dense_over_op=round(lines[-1].median_ms / lines[0].median_ms, 2),
        dense_memory_over_op=round(lines[-1].peak_gib / lines[0].peak_gib, 2),
    )


if __name__ == "__main__":
    main()
