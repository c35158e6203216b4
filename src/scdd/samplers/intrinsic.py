"""What a perfect denoiser would do: the corrections that the forward process itself asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from scdd.core import CLEAN, Levels
from scdd.processes.base import Process
from scdd.samplers.base import checked

MASKED, RIGHT, WRONG = 0, 1, 2


class Intrinsic(NamedTuple):
    """Expectations for one token under ancestral sampling with x_θ = x."""

    corrections: float  # visible tokens replaced by other visible ones: the paper's correction rate C/L
    remasked: float
    per_step: tuple[float, ...]  # corrections in each step
    states: tuple[tuple[float, float, float], ...]  # P(masked, right, wrong) at each time of the grid


def intrinsic(process: Process, grid: Sequence[float]) -> Intrinsic:
    """Exact, by dynamic programming over {masked, right, wrong}: x_θ(z) is 1 at the right token and 0 elsewhere.

    Right → wrong counts as well: noise that the process draws now and takes back later. The start is the process's own
    marginal at grid[0], so a grid from t0 < 1 speaks of a text corrupted to t0.
    """
    times = checked(grid)
    at = process.levels(torch.tensor(times, dtype=torch.float64))
    K = process.vocab.K
    gamma, rho, lost = float(at.gamma[0]), float(at.rho[0]), float(at.one_minus_rho[0])
    state = (float(at.one_minus_gamma[0]), gamma * (rho + lost / K), gamma * lost * (K - 1) / K)
    states, per_step, remasked = [state], [], 0.0
    for i in range(len(times) - 1):
        here = Levels(*(field[i] for field in at))
        towards = CLEAN if i == len(times) - 2 else Levels(*(field[i + 1] for field in at))
        state, corrected, masked = _step(process, state, here, towards)
        states.append(state)
        per_step.append(corrected)
        remasked += masked
    return Intrinsic(sum(per_step), remasked, tuple(per_step), tuple(states))


def _step(
    process: Process, state: tuple[float, float, float], at_t: Levels, at_s: Levels
) -> tuple[tuple[float, float, float], float, float]:
    """(State after the step, expected corrections in it, expected remaskings)."""
    vocab = process.vocab
    token = int(vocab.token(torch.zeros((), dtype=torch.int64)))
    z = torch.tensor([vocab.mask_id, token, token])
    move = process.transition(z, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64), at_s, at_t)
    keep, model, uniform, mask = (part.expand(3).tolist() for part in move)
    hit, K = 1.0 / vocab.K, vocab.K
    masked, right, wrong = state
    new_masked = masked * (keep[MASKED] + mask[MASKED]) + right * mask[RIGHT] + wrong * mask[WRONG]
    becomes_right = model[WRONG] + uniform[WRONG] * hit
    changes_wrong = uniform[WRONG] * (K - 2) / K
    spoils = uniform[RIGHT] * (1.0 - hit)
    new_right = (
        masked * (model[MASKED] + uniform[MASKED] * hit)
        + right * (keep[RIGHT] + model[RIGHT] + uniform[RIGHT] * hit)
        + wrong * becomes_right
    )
    new_wrong = (
        masked * uniform[MASKED] * (1.0 - hit)
        + right * spoils
        + wrong * (keep[WRONG] + uniform[WRONG] * hit + changes_wrong)
    )
    corrected = right * spoils + wrong * (becomes_right + changes_wrong)
    return (new_masked, new_right, new_wrong), corrected, right * mask[RIGHT] + wrong * mask[WRONG]
