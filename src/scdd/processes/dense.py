"""Textbook matrices of every process, for tests, docs and small vocabularies. Nothing here is fast.

Rows are where one comes from (z_s), columns where one goes (z_t), so rows of a kernel sum to one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.processes.base import Process, Time


def kernel_matrix(process: Process, s: Time, t: Time) -> Tensor:
    """Q_{t|s} of `eq:forwardMatrix`: entry (v, z) is q(z_t = z | z_s = v)."""
    return _matrix(process, *process.kernel(_states(process), s, t))


def rate_matrix(process: Process, t: Time) -> Tensor:
    """R_t, transposed from `eq:Rt-matrix-form` (`pro:Rt-matrix`): entry (v, z) is the rate from v to z; rows sum to 0."""
    return _matrix(process, *process.rates(_states(process), t))


def marginal_matrix(process: Process, t: Time) -> Tensor:
    """Q̄_t of `eq:forwardMarginal`: entry (x, z) is q(z_t = z | x). The mask's own row is left as if x were m."""
    return process.marginal(_states(process), t)


def bayes(process: Process, x_theta: Tensor, s: Time, t: Time) -> Tensor:
    """p_θ(z_s = v | z_t = z) ∝ q(z | v)·q_s(v | x_θ), `eq:gidd-backward`, by matrices: entry (z, v), one x_theta [V]."""
    joint = process.marginal(x_theta, s)[:, None] * kernel_matrix(process, s, t)  # (v, z)
    return (joint / joint.sum(0, keepdim=True)).T


def _states(process: Process) -> Tensor:
    return torch.arange(process.vocab.size)


def _matrix(process: Process, keep: Tensor, other: Tensor, from_mask: Tensor) -> Tensor:
    is_mask = (_states(process) == process.vocab.mask_id)[:, None]
    columns = torch.where(is_mask, from_mask[None, :], other[None, :])
    return columns + torch.diag(keep)
