"""The types that every room shares: the vocabulary, its head, what a schedule says of a time and a process of a position.

Every field is a float64 tensor that broadcasts to the positions it speaks of.
Symbols: x clean token, z_t noisy token, m mask, K ordinary tokens, u uniform over those K.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from scdd.core.errors import UserError
from scdd.core.options import padded as padded


@dataclass(frozen=True)
class Vocab:
    """`size` ids in all, one of which, `mask_id`, is the mask m. It never is padding and never is sampled."""

    size: int
    mask_id: int

    def __post_init__(self) -> None:
        if self.size < 3:
            raise UserError(f"Vocab.size is {self.size}: give at least two ordinary tokens and the mask (3).")
        if not 0 <= self.mask_id < self.size:
            raise UserError(f"Vocab.mask_id is {self.mask_id}: choose an id from 0 to size - 1 = {self.size - 1}.")

    @property
    def K(self) -> int:
        """Number of ordinary tokens."""
        return self.size - 1

    def token(self, ordinal: Tensor) -> Tensor:
        """The id of the `ordinal`-th ordinary token, 0 ≤ ordinal < K: ids step over the mask's."""
        return ordinal + (ordinal >= self.mask_id).to(ordinal.dtype)

    def ordinary(self, device: torch.device | str | None = None) -> Tensor:
        """True at each id but the mask's, [V]."""
        allowed = torch.ones(self.size, dtype=torch.bool, device=device)
        allowed[self.mask_id] = False
        return allowed


class Learnt(NamedTuple):
    """Which tokens of B rows are learnt; the others are given: they are never noised, and weigh nothing in a loss."""

    where: Tensor  # [B, L] bool
    total: Tensor  # one number, float64: how many there are in the whole global batch, which its loss is the mean over

    def rows(self, rows: slice) -> Learnt:
        """Some of the rows, of the same global batch."""
        return Learnt(self.where[rows], self.total)

    def to(self, device: torch.device | str) -> Learnt:
        """The same on `device`; from pinned memory the copy does not wait."""
        return Learnt(*(t.to(device, non_blocking=True) for t in self))


@dataclass(frozen=True)
class Head:
    """logits = hidden @ weightᵀ + bias, plus `input_bias` at the logit of the input token z_t (GIDD's networks).

    Rows V … Vp − 1 of `weight` are padding; they and the mask's row take part in no softmax.
    """

    weight: Tensor  # [Vp, D]
    vocab: Vocab
    bias: Tensor | None = None  # [Vp]
    input_bias: Tensor | None = None  # one number
    scale: Tensor | None = (
        None  # [Vp] float32: the weight is in 8 bits then (`ops.int8`), and this is one step of each row
    )

    def wide_weight(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight of the vocabulary's rows, [V, D], in this dtype: for references, tests and small work."""
        weight = self.weight[: self.vocab.size].to(dtype)
        return weight if self.scale is None else weight * self.scale[: self.vocab.size, None].to(dtype)


class Levels(NamedTuple):
    """The noise levels of `eq:marginal` at one time, with derivatives.

    γ = P(z_t ≠ m) and ρ = P(z_t retains x | z_t ≠ m). The complements come from closed forms of their own:
    with p_u = 1e-6 the subtraction 1 − ρ would lose ten of sixteen digits.
    """

    gamma: Tensor
    rho: Tensor
    one_minus_gamma: Tensor
    one_minus_rho: Tensor
    dgamma: Tensor
    drho: Tensor

    def like(self, z: Tensor) -> Levels:
        """These levels on z's device, given trailing axes until times [B] broadcast against positions [B, L]."""
        return Levels(*(_align(field.to(z.device), z) for field in self))


def _align(field: Tensor, z: Tensor) -> Tensor:
    return field.reshape(field.shape + (1,) * (z.dim() - field.dim())) if field.dim() < z.dim() else field


def _clean() -> Levels:
    one, zero = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    return Levels(one, one, zero, zero, zero, zero)


CLEAN = _clean()
"""The levels of the clean data, the paper's t_{−1}: γ = ρ = 1."""


class Kernel(NamedTuple):
    """One row of a forward kernel, or of its rate matrix, seen from a fixed z_t as a function of v = z_s:

    keep·1[v = z_t] + other·1[v ≠ m] + from_mask·1[v = m]
    """

    keep: Tensor
    other: Tensor
    from_mask: Tensor


class Transition(NamedTuple):
    """What happens to a position in one reverse step; the four probabilities sum to one.

    keep: z_s = z_t;  model: z_s ~ x_θ;  uniform: z_s ~ u;  mask: z_s = m.
    """

    keep: Tensor
    model: Tensor
    uniform: Tensor
    mask: Tensor


class ElboCoefficients(NamedTuple):
    """Coefficients of the per-position ELBO loss, a closed form of log x_θ(x), log x_θ(z_t) and S.

    With D(p) = log(1 + r·p), ℓ(p) = D(p) − D(1) (so ℓ(1) = 0; ℓ(p) = log p where r = ∞) and S = Σ_{v≠m} D(x_θ(v)):

        y    = ℓ_t(x_θ(z_t)) if z_t = x else D_t(x_θ(z_t))          the log of q_t(z_t | x_θ) / q_t(z_t | x)
        loss = −w_x·ℓ(x_θ(x)) − w_z·D(x_θ(z_t)) − w_o·(S − D(x_θ(x))) + w_t·y + w_e·(e^{−y} − 1)

    r = exp(log_r) is the signal over the floor α/β at the level of z_s (z_t itself in continuous time), r_t the same
    at z_t. Where r = ∞ there is no floor and w_z = w_o = 0: those terms must be skipped, not multiplied by zero.

    Noise of another distribution π than the uniform one has a floor K·π(v) =: κ_v times as high at v. Then every D and ℓ of a
    token v has r/κ_v for r, S = Σ κ_v·D_v(x_θ(v)), and D(x_θ(x)) beside S is κ_x times as much.
    """

    log_r: Tensor
    log_r_t: Tensor
    w_x: Tensor
    w_z: Tensor
    w_o: Tensor
    w_t: Tensor
    w_e: Tensor

    def scaled(self, weight: Tensor | float) -> ElboCoefficients:
        """The rows of weight × loss."""
        return self._replace(**{name: getattr(self, name) * weight for name in ("w_x", "w_z", "w_o", "w_t", "w_e")})

    def flatten(self, shape: torch.Size) -> ElboCoefficients:
        """Every field broadcast to `shape` and flattened to one axis of positions."""
        return ElboCoefficients(*(field.expand(shape).reshape(-1) for field in self))
