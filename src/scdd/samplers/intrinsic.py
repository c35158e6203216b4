"""What a perfect denoiser would do: the corrections that the forward process itself asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

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
    marginal at grid[0], so a grid from t0 < 1 speaks of a text corrupted to t0. Where noise is not uniform, the right token
    matters: it is averaged over as the noise has it, which for unigram noise is as the data have it.
    """
    times = checked(grid)
    at = process.levels(torch.tensor(times, dtype=torch.float64))
    about = _tokens(process)
    gamma, rho, lost = at.gamma[0], at.rho[0], at.one_minus_rho[0]
    state = (at.one_minus_gamma[0] + 0 * about.hit, gamma * (rho + lost * about.hit), gamma * lost * (1 - about.hit))
    states, per_step, remasked = [about.mean(state)], [], 0.0
    for i in range(len(times) - 1):
        here = Levels(*(field[i] for field in at))
        towards = CLEAN if i == len(times) - 2 else Levels(*(field[i + 1] for field in at))
        state, corrected, masked = _step(process, about, state, here, towards)
        states.append(about.mean(state))
        per_step.append(about.mean((corrected,))[0])
        remasked += about.mean((masked,))[0]
    whole = tuple((each[0], each[1], each[2]) for each in states)
    return Intrinsic(sum(per_step), remasked, tuple(per_step), whole)


class _Tokens(NamedTuple):
    """Right tokens that are unlike each other under the noise: one for all, if it is uniform."""

    ids: Tensor  # [G]
    chance: Tensor  # [G]: how much of the noise such tokens are
    hit: Tensor  # [G]: π of the token itself
    same: Tensor  # [G]: the chance that noise repeats a wrong token, which is drawn from the rest of π

    def mean(self, values: Sequence[Tensor]) -> tuple[float, ...]:
        """Over the tokens."""
        return tuple(float((value * self.chance).sum()) for value in values)


def _tokens(process: Process) -> _Tokens:
    one = torch.ones(1, dtype=torch.float64)
    if process.noise is None:
        token = process.vocab.token(torch.zeros(1, dtype=torch.int64))
        return _Tokens(token, one, one / process.vocab.K, one / process.vocab.K)
    pi, where, counts = torch.unique(process.noise.values, return_inverse=True, return_counts=True)
    first = torch.zeros(len(pi), dtype=torch.int64)
    first[where.flip(0)] = torch.arange(len(where)).flip(0)
    total = process.noise.values.square().sum()
    return _Tokens(process.vocab.token(first), pi * counts, pi, (total - pi.square()) / (1 - pi))


def _step(
    process: Process, about: _Tokens, state: Sequence[Tensor], at_t: Levels, at_s: Levels
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor]:
    """(State after the step, expected corrections in it, expected remaskings), for each of the tokens."""
    z = torch.stack([torch.full_like(about.ids, process.vocab.mask_id), about.ids, about.ids])
    p_z = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)[:, None].expand(z.shape)
    # a wrong token's own chance cancels: any token stands for it
    move = process.transition(z, p_z, at_s, at_t)
    keep, model, uniform, mask = (part.expand(z.shape) for part in move)
    hit, masked, right, wrong = about.hit, *state
    new_masked = masked * (keep[MASKED] + mask[MASKED]) + right * mask[RIGHT] + wrong * mask[WRONG]
    becomes_right = model[WRONG] + uniform[WRONG] * hit
    changes_wrong = uniform[WRONG] * (1 - hit - about.same)
    spoils = uniform[RIGHT] * (1.0 - hit)
    new_right = (
        masked * (model[MASKED] + uniform[MASKED] * hit)
        + right * (keep[RIGHT] + model[RIGHT] + uniform[RIGHT] * hit)
        + wrong * becomes_right
    )
    new_wrong = (
        masked * uniform[MASKED] * (1.0 - hit)
        + right * spoils
        + wrong * (keep[WRONG] + uniform[WRONG] * about.same + changes_wrong)
    )
    corrected = right * spoils + wrong * (becomes_right + changes_wrong)
    return (new_masked, new_right, new_wrong), corrected, right * mask[RIGHT] + wrong * mask[WRONG]
