"""The ELBO op: head product, softmax statistics, losses and gradients, without an N × V tensor that lasts.

Rows are worked through in chunks. While a chunk's logits are there, its losses and the gradient of their sum are
computed and the gradient is multiplied back onto the hidden states and the head at once, so nothing is kept for the
backward pass but results the size of the inputs. The head product runs three times in all, as in a plain
cross-entropy step; nothing is recomputed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scdd.core import ElboCoefficients, Head
from scdd.ops.common import choose, chunks, compute_weights, raw_logits
from scdd.ops.elbo import reference

RowLoss = Callable[[Tensor, Head, Tensor, Tensor, ElboCoefficients, bool], Tensor]
"""(logits, head, x, z_t, rows, with_grad) → losses; `logits` becomes its own gradient in place."""


def elbo(
    hidden: Tensor,
    head: Head,
    x: Tensor,
    z_t: Tensor,
    rows: ElboCoefficients,
    impl: str = "auto",
    noise: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(Sum of the per-position losses, with gradients; the losses [N], without).

    hidden [N, D], x and z_t [N], rows of fields [N] (`Process.elbo_coefficients(...).flatten(...)`, scaled by whatever weights
    the sum is to have). One op serves SCDD, MDLM and GIDD in discrete and continuous time, and plain cross-entropy.
    `noise` is log(K·π) [V] where noise is not uniform; the kernels know uniform noise alone, so that is torch's work anywhere.
    """
    chosen = choose(impl, hidden)
    if chosen == "reference":
        return reference.elbo(hidden, head, x, z_t, rows, noise)
    work = _row_loss(chosen, noise)
    parameters = (head.weight, head.bias, head.input_bias)
    total, losses = _Elbo.apply(work, head, x, z_t, rows, hidden, *parameters)  # type: ignore[no-untyped-call]
    return total, losses


def _row_loss(chosen: str, noise: Tensor | None) -> RowLoss:
    """One chunk's work, as the chosen implementation does it."""
    if chosen == "triton" and noise is None:
        from scdd.ops.elbo import triton

        return triton.row_loss
    from scdd.ops.elbo import chunked

    return chunked.row_loss if noise is None else partial(chunked.row_loss, noise=noise)


class _Elbo(torch.autograd.Function):
    """Forward computes the gradients as well: the sum's upstream gradient is one number, applied in backward."""

    @staticmethod
    def forward(
        ctx: Any, row_loss: RowLoss, head: Head, x: Tensor, z_t: Tensor, rows: ElboCoefficients, *inputs: Any
    ) -> tuple[Tensor, Tensor]:
        # The inputs after `hidden` are the head's own: handed over here to have gradients.
        hidden, need = inputs[0], ctx.needs_input_grad[5:]
        grads = _Gradients(hidden, head, need)
        compute, compute_bias = compute_weights(hidden, head)
        rows = ElboCoefficients(*(field.to(torch.float32) for field in rows))
        losses = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        for part in chunks(hidden.shape[0], compute.shape[0], hidden):
            logits = raw_logits(hidden[part], compute, compute_bias)
            cut = ElboCoefficients(*(field[part] for field in rows))
            losses[part] = row_loss(logits, head, x[part], z_t[part], cut, any(need))
            if any(need):
                assert isinstance(compute, Tensor), "8 bits are not trained"
                grads.add(part, logits, hidden[part], compute, z_t[part])
        ctx.save_for_backward(*grads.results())
        ctx.mark_non_differentiable(losses)
        return losses.sum(), losses

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [None if grad is None else grad * upstream.to(grad.dtype) for grad in ctx.saved_tensors]
        return (None, None, None, None, None, *scaled)


class _Gradients:
    """Accumulators of the four gradients, float32 for everything that sums over chunks."""

    def __init__(self, hidden: Tensor, head: Head, need: tuple[bool, bool, bool, bool]) -> None:
        """`need`: whether each of hidden, weight, bias and input_bias wants one."""
        self.hidden = torch.empty_like(hidden) if need[0] else None
        self.weight: Tensor | None = None
        self.wants_weight, self.weight_dtype = need[1], head.weight.dtype
        self.bias = torch.zeros_like(head.bias) if head.bias is not None and need[2] else None
        self.input_bias = torch.zeros_like(head.input_bias) if head.input_bias is not None and need[3] else None

    def add(self, part: slice, grad: Tensor, hidden: Tensor, weight: Tensor, z_t: Tensor) -> None:
        """Fold in one chunk, `grad` the gradient of its logits."""
        if self.hidden is not None:
            torch.mm(grad, weight, out=self.hidden[part])
        if self.wants_weight:
            self.weight = _accumulate(self.weight, grad.T, hidden, self.weight_dtype)
        if self.bias is not None:
            self.bias += grad.sum(0, dtype=self.bias.dtype)
        if self.input_bias is not None:
            self.input_bias += grad.gather(1, z_t[:, None]).sum(dtype=self.input_bias.dtype)

    def results(self) -> tuple[Tensor | None, ...]:
        """In the order of the op's inputs."""
        return self.hidden, self.weight, self.bias, self.input_bias


def _accumulate(total: Tensor | None, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """total + a @ b, summed in `dtype` by the product itself where the device can (bfloat16 in, float32 out)."""
    if a.dtype != dtype and a.is_cuda:
        if total is None:
            return torch.mm(a, b, out_dtype=dtype)
        return torch.addmm(total, a, b, out_dtype=dtype, out=total)
    product = (a @ b).to(dtype)
    return product if total is None else total.add_(product)
