"""What the operations on the vocabulary head share: filters, the head product in bounded pieces, and who runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Parameter

from scdd.core import Head, UserError

if TYPE_CHECKING:
    from scdd.ops.int8 import Matrix

IMPLS = ("auto", "reference", "chunked", "triton")
HAS_TRITON = find_spec("triton") is not None  # known before a compiler traces anything


def choose(impl: str, where: Tensor) -> str:
    """The implementation meant by `impl` for tensors like `where`: Triton on CUDA, chunked torch elsewhere."""
    if impl not in IMPLS:
        raise UserError(f"impl is {impl!r}: choose one of {', '.join(IMPLS)}.", "impl")
    if impl != "auto":
        return impl
    return "triton" if where.is_cuda and HAS_TRITON else "chunked"


NucleusRule = Callable[[Tensor, float], Tensor]
"""(Scores [n, V] float64, −∞ where cut already; top_p) → the lowest score that stays, [n]. The best token always stays."""
NUCLEI = ("crossing", "below")


@dataclass(frozen=True)
class Filters:
    """x_θ is replaced by its filtered self everywhere: in draws and in x_θ(z_t), hence in the posterior.

    In this order: logits are divided by `temperature`; token v stays if fewer than `top_k` tokens are strictly more
    likely; of what is left, renormalised, the nucleus stays. `nucleus` says which that is: "crossing", v stays if the mass
    strictly more likely than v is below `top_p` (Holtzman's: the token that crosses the threshold is kept); "below", v stays
    if the mass at least as likely as v is at most `top_p` (the crossing token goes); or a `NucleusRule` of your own. Tied
    tokens stay or go together, so no order matters, and every filter is one threshold on the logit.
    """

    top_p: float = 1.0
    top_k: int | None = None
    temperature: float | Tensor = 1.0
    """A number, or float64 ones: [N] for the N rows of logits that an operation is given."""
    nucleus: str | NucleusRule = "crossing"

    def __post_init__(self) -> None:
        if not callable(self.nucleus) and self.nucleus not in NUCLEI:
            raise UserError(
                f"nucleus is {self.nucleus!r}: choose one of {', '.join(NUCLEI)}, or hand over a rule.", "nucleus"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise UserError(f"top_p is {self.top_p}: choose a mass in (0, 1]; 1 switches it off.")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k is {self.top_k}: keep at least one token, or leave it out.")
        if not isinstance(self.temperature, Tensor) and not 1e-30 <= self.temperature <= 1e30:
            raise UserError(
                f"temperature is {self.temperature}: choose one from 1e-30 to 1e30; use top_k=1 for greedy draws."
            )

    def of(self, rows: Tensor | slice) -> Filters:
        """Those of some of the rows of logits."""
        return replace(self, temperature=self.temperature[rows]) if isinstance(self.temperature, Tensor) else self

    @property
    def divisor(self) -> float | Tensor:
        """The temperature, as what logits [N, V] are divided by."""
        return self.temperature[:, None] if isinstance(self.temperature, Tensor) else self.temperature

    @property
    def cuts(self) -> bool:
        """Whether any token may be cut off."""
        return self.top_p < 1.0 or self.top_k is not None

    @property
    def other_nucleus(self) -> bool:
        """Whether the nucleus is another than the crossing one, which alone has kernels of its own."""
        return self.top_p < 1.0 and self.nucleus != "crossing"


NO_FILTERS = Filters()


# One chunk's logits: big enough to fill a GPU, small beside the rest.
CHUNK_BYTES = {"cuda": 448 << 20, "cpu": 16 << 20}


EVEN = 16


def evened(rows: Tensor) -> Tensor:
    """Row numbers filled up to a multiple of 16 by repeating the last one.

    A CPU's matrix product takes other paths for a few rows, which round otherwise. With at least 16 a row's logits do not
    depend on how many other rows are asked for at the same time, hence not on who shares the batch.
    """
    lack = -len(rows) % EVEN
    return torch.cat([rows, rows[-1:].expand(lack)]) if lack and len(rows) else rows


def chunks(count: int, columns: int, like: Tensor) -> Iterator[slice]:
    """Slices over `count` rows such that rows × columns of `like`'s dtype stay within the device's chunk."""
    limit = CHUNK_BYTES.get(like.device.type, CHUNK_BYTES["cpu"])
    rows = max(1, limit // (columns * like.element_size()))
    if rows >= EVEN:
        rows -= rows % (128 if rows >= 128 else EVEN)
    pieces = -(-count // rows) if count else 0
    even = -(-count // max(pieces, 1))
    step = min(rows, -(-even // 128) * 128) if rows >= 128 else rows  # equal chunks: no small, slow last one
    for start in range(0, count, max(step, 1)):
        yield slice(start, min(start + step, count))


def raw_logits(hidden: Tensor, weight: Tensor | Matrix, bias: Tensor) -> Tensor:
    """hidden @ weightᵀ + bias over all Vp columns, −∞ where `compute_weights` put it; dtype as `hidden`."""
    if isinstance(weight, Tensor):
        return torch.addmm(bias, hidden, weight.T)
    from scdd.ops.int8 import linear  # few networks are in 8 bits

    return linear(hidden, weight, bias)


def compute_weights(hidden: Tensor, head: Head) -> tuple[Tensor | Matrix, Tensor]:
    """The head's weight and its barred bias in the dtype of the activations (float32 master weights stay as they are, as do 8 bits)."""
    bias = barred_bias(head, hidden.dtype)
    if head.scale is not None:
        from scdd.ops.int8 import Matrix

        return Matrix(head.weight, head.scale), bias
    return head.weight.detach().to(hidden.dtype), bias


def barred_bias(head: Head, dtype: torch.dtype) -> Tensor:
    """The head's bias [Vp], −∞ at the mask and on the padding; without a gradient, and made anew each time, since it may be trained.

    So the product itself leaves those columns no probability and no gradient, and nobody after it has to know which they are.
    """
    weight, bias = head.weight, head.bias
    # what wraps tensors (a mesh's shards) knows plain PyTorch alone
    plain = all(type(each) in (Tensor, Parameter) for each in (weight, bias) if each is not None)
    if plain and weight.is_cuda and HAS_TRITON and not torch.compiler.is_compiling():
        from scdd.ops.barred.triton import barred

        return barred(head, dtype)
    rows, device = weight.shape[0], weight.device
    given = torch.zeros(rows, dtype=dtype, device=device) if bias is None else bias.detach().to(dtype)
    column = torch.arange(rows, device=device)
    return given.masked_fill((column == head.vocab.mask_id) | (column >= head.vocab.size), -torch.inf)


def invert(log_p: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The draw itself; should rounding leave u past the end, the last possible id is taken."""
    cumulative = log_p.exp().cumsum(-1)
    target = u.to(torch.float64)[:, None] * cumulative[:, -1:]
    passed = (cumulative > target) & torch.isfinite(log_p)
    ids = torch.arange(log_p.shape[-1], device=log_p.device)
    last = torch.where(torch.isfinite(log_p), ids, 0).amax(-1)
    tokens = torch.where(passed.any(-1), passed.to(torch.uint8).argmax(-1), last)
    return tokens, log_p.gather(-1, tokens[:, None])[:, 0]
