"""A reverse step's probabilities in one launch, where plain PyTorch takes seventy. Float64 throughout; uniform noise."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from scdd.core import Levels, Transition, Vocab
from scdd.ops.triton_rows import exp_

BLOCK = 256
WARPS = 4


def transition(z_t: Tensor, log_p_z: Tensor, s: Levels, t: Levels, vocab: Vocab, mixing: bool) -> Transition:
    """`Process.transition` of z_t [B, L] with log_p_z [B, L] = log x_θ(z_t), float32; levels s and t as columns [B, 1].

    `mixing`: masks may turn back into tokens on the way (GIDD); else they stay (SCDD, and MDLM, which is SCDD at ρ ≡ 1).
    """
    rows, columns = z_t.shape
    levels = [field.expand(rows, 1) for field in (*s[:4], *t[:4])]  # where they lie: columns of a table, mostly
    parts = torch.empty((4, rows, columns), dtype=torch.float64, device=z_t.device)
    if rows * columns:
        _transition[(rows, triton.cdiv(columns, BLOCK))](
            z_t.contiguous(), log_p_z.contiguous(), *levels, *(field.stride(0) for field in levels), parts,
            rows * columns, columns, vocab.mask_id, vocab.K, MIXING=mixing, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return Transition(*parts.unbind())


@triton.jit
def _survival(value_s, lost_s, value_t, lost_t):
    """`processes.base.survival_ratio`."""
    alive = value_s > 0
    divisor = tl.where(alive, value_s, 1.0)
    drop = tl.where(value_s > 0.5, lost_t - lost_s, value_s - value_t)
    return tl.where(alive, value_t / divisor, 0.0), tl.where(alive, drop / divisor, 1.0)


@triton.jit
def _likelihood(masked, p, gamma, rho, one_minus_gamma, one_minus_rho, K):
    """`Process.likelihood`."""
    return tl.where(masked, one_minus_gamma, gamma * (rho * p + one_minus_rho / K))


@triton.jit
def _transition(
    z_, log_p_, gamma_s_, rho_s_, hidden_s_, noise_s_, gamma_t_, rho_t_, hidden_t_, noise_t_,
    gamma_s_r, rho_s_r, hidden_s_r, noise_s_r, gamma_t_r, rho_t_r, hidden_t_r, noise_t_r,
    parts, size, columns, mask_id, K, MIXING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = j < columns
    at = row.to(tl.int64) * columns + j
    gamma_s, rho_s = tl.load(gamma_s_ + row * gamma_s_r), tl.load(rho_s_ + row * rho_s_r)
    hidden_s, noise_s = tl.load(hidden_s_ + row * hidden_s_r), tl.load(noise_s_ + row * noise_s_r)
    gamma_t, rho_t = tl.load(gamma_t_ + row * gamma_t_r), tl.load(rho_t_ + row * rho_t_r)
    hidden_t, noise_t = tl.load(hidden_t_ + row * hidden_t_r), tl.load(noise_t_ + row * noise_t_r)
    many = gamma_s * 0.0 + K
    seen, hidden = _survival(gamma_s, hidden_s, gamma_t, hidden_t)
    kept, noised = _survival(rho_s, noise_s, rho_t, noise_t)
    masked = tl.load(z_ + at, mask=inside, other=0) == mask_id
    p = exp_(tl.load(log_p_ + at, mask=inside, other=0.0)).to(tl.float64)
    zero = p * 0.0
    # the kernel's row: q(z_t | z_s = v) as keep, other, from_mask
    if MIXING:
        keep = zero + seen * kept
        other = tl.where(masked, hidden + seen * noised * hidden_s, gamma_t * noised / many)
        from_mask = other
    else:
        keep = tl.where(masked, 0.0, zero + seen * kept)
        other = tl.where(masked, zero + hidden, seen * noised / many)
        from_mask = tl.where(masked, zero + 1.0, 0.0)
    below = _likelihood(masked, p, gamma_t, rho_t, hidden_t, noise_t, many)
    above = _likelihood(masked, p, gamma_s, rho_s, hidden_s, noise_s, many)
    possible = below > 0
    inverse = tl.where(possible, 1.0 / tl.where(possible, below, 1.0), 0.0)
    redraw = other * gamma_s * inverse
    stuck = tl.where((below <= 0) & (keep > 0), zero + 1.0, 0.0)
    lost = tl.where(possible, zero, 1.0) - stuck
    tl.store(parts + at, keep * above * inverse + stuck, mask=inside)
    tl.store(parts + size + at, redraw * rho_s + lost, mask=inside)
    tl.store(parts + 2 * size + at, redraw * noise_s, mask=inside)
    tl.store(parts + 3 * size + at, from_mask * hidden_s * inverse, mask=inside)
