"""What a model thinks of a given text: doubts, and the one-pass repair that follows from them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scdd.core import CLEAN
from scdd.core.errors import UserError
from scdd.lm.results import TokenScore
from scdd.lm.rows import Row
from scdd.lm.run import Engine, windows
from scdd.ops import NO_FILTERS
from scdd.processes.base import Process
from scdd.samplers.network import Evaluation, groups

THRESHOLD = 2e-4
"""With one token in ten replaced at random, the bundled model restores 57 % of them and damages 1.3 % of the others at
this threshold; at 1e-3 it damages 2.8 % and restores no more (`scdd eval recovery --threshold`, see its model card)."""


def check_strength(strength: float) -> None:
    """A noise level to assume of the text."""
    if not 0.0 < strength <= 1.0:
        raise UserError(f"strength is {strength}: choose a time in (0, 1]; small ones trust the text more.")


def two_sided(engine: Engine) -> Process:
    """The process of a model that can judge a text."""
    if engine.process is None:
        raise UserError(
            "An autoregressive model sees no token's right side: judge texts with a diffusion model."
        )
    return engine.process


@torch.no_grad()
def judge(engine: Engine, row: Row, strength: float) -> tuple[list[TokenScore], list[int], int]:
    """(Scores of every token, the likeliest tokens, network evaluations) of a text taken as z_t at t = strength."""
    check_strength(strength)
    process = two_sided(engine)
    scores: list[TokenScore] = []
    best: list[int] = []
    parts = windows(len(row), engine.room)
    for window in parts:
        tokens = engine.framed(row.tokens[window.start : window.stop])
        z = torch.tensor([tokens], device=engine.device)
        t = torch.full((1,), strength, dtype=torch.float64, device=engine.device)
        seen = Evaluation(
            engine.denoiser, groups(1, z.shape[1], None, z.device, None), z, t, NO_FILTERS
        ).top()
        move = process.transition(z, seen.log_p_z.exp(), CLEAN, strength)
        p_z = seen.log_p_z.double().exp()
        doubt = (1.0 - move.keep - move.model * p_z).clamp(0.0, 1.0)[0].tolist()
        p, p_best, likeliest = (
            p_z[0].tolist(),
            seen.log_p[0, :, 0].double().exp().tolist(),
            seen.tokens[0, :, 0].tolist(),
        )
        for i in range(window.fresh, window.stop):
            at = i - window.start + 1
            names = (engine.tokenizer.token(row.tokens[i]), engine.tokenizer.token(likeliest[at]))
            scores.append(TokenScore(i, row.tokens[i], names[0], p[at], names[1], p_best[at], doubt[at]))
            best.append(likeliest[at])
    return scores, best, len(parts)


def repaired(row: Row, scores: Sequence[TokenScore], best: Sequence[int], threshold: float) -> list[int]:
    """Every free token with x_θ(z) < threshold·max x_θ becomes the argmax; the others stay.

    That is the mode of p_θ(z_0 | z_t) for the noise level at which (1 − ρ_t)/K over ρ_t is the threshold. Without a
    threshold (plain argmax) four clean tokens in ten would be damaged.
    """
    if not 0.0 < threshold < 1.0:
        raise UserError(
            f"threshold is {threshold}: choose one in (0, 1), such as {THRESHOLD}; smaller changes less."
        )
    return [
        new if not frozen and score.p < threshold * score.p_best else old
        for old, new, frozen, score in zip(row.tokens, best, row.frozen, scores, strict=True)
    ]
