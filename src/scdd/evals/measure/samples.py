"""Unconditional generation: N samples of a seed, drawn once, whoever asks for their perplexity, entropy or corrections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scdd.evals.measure import stats
from scdd.evals.measure.diversity import diversity
from scdd.evals.measure.model import EvalModel, is_diffusion
from scdd.evals.measure.specs import SamplingSpec
from scdd.evals.measure.store import MeasureContext, Measurement, all_gather, rank_share
from scdd.evals.measure.walk import (
    StartRows,
    described,
    padded_moves,
    sampling_plan,
    settled,
    text_length,
    walk,
)
from scdd.processes.base import Process
from scdd.samplers.grids import Grid
from scdd.samplers.intrinsic import intrinsic


def usual_num(device: torch.device) -> int:
    """How many samples are drawn when nobody says how many."""
    return 1024 if device.type == "cuda" else 64


class Drawn(NamedTuple):
    """Samples in the order of their indices, complete on every rank."""

    tokens: list[list[int]]
    before: list[list[int]]
    """Each position's first visible token: the text as it would be had nothing been corrected afterwards."""
    moves: Tensor  # [N, S, 3]
    nfe: list[int]
    grid: Grid
    plan: dict[str, Any]
    """What the sampling came to, as plain data."""


def draw(context: MeasureContext, model: EvalModel, spec: SamplingSpec, follow: bool = True) -> Drawn:
    """All samples of `spec`; each rank draws its share of the indices."""
    plan, length = sampling_plan(model, spec, context.batch_size), text_length(model.lm, spec)
    mask, eos = model.tokenizer.mask_id, model.tokenizer.eos_id
    mine = rank_share(spec.num, context.world)
    z = torch.tensor([model.framed([mask] * length)], device=model.lm.device).expand(len(mine), -1).clone()
    rows = StartRows(z, z != mask, mine)
    walked = walk(model.denoiser, model.process, plan, rows, context.watch, follow)
    inside = slice(1, 1 + length)
    first, last = walked.first[:, inside].tolist(), walked.tokens[:, inside].tolist()
    own = list(zip(last, first, walked.moves, walked.nfe.tolist(), strict=True))
    texts, before, moves, nfe = zip(*all_gather(own, context.world), strict=True)
    return Drawn(
        tokens=[ended(row, eos) for row in texts],
        before=[ended(row, eos) for row in before],
        moves=torch.stack(padded_moves(moves)),
        nfe=list(nfe),
        grid=plan.grid,
        plan=described(plan),
    )


def ended(tokens: Sequence[int], eos_id: int) -> list[int]:
    """The tokens up to the first end of text."""
    row = list(tokens)
    return row[: row.index(eos_id)] if eos_id in row else row


def rates(moves: Tensor, length: int, process: Process | None, grid: Grid) -> dict[str, Any]:
    """Correction rate C/L and C/(L·N) with errors over samples, beside the intrinsic rate and the excess over it.

    `moves` [N, S, 3] as `walk` counts them. Remaskings are reported too: GIDD's corrections go through the mask as well.
    """
    corrected = moves[..., 1].double()
    rate = stats.mean((corrected.sum(1) / length).tolist())
    remasked = stats.mean((moves[..., 2].double().sum(1) / length).tolist())
    steps = moves.shape[1]
    measured = {
        "rate": rate.value,
        "rate_error": rate.error,
        "rate_per_step": rate.value / steps,
        "rate_per_step_error": rate.error / steps,
        "remasked": remasked.value,
        "remasked_error": remasked.error,
        "steps": steps,
        "samples": rate.units,
        "cumulative": cumulative(corrected.mean(0) / length),
    }
    if not is_diffusion(process):
        return measured
    own = intrinsic(process, grid)
    return {
        **measured,
        "intrinsic": own.corrections,
        "excess": rate.value - own.corrections,
        "intrinsic_per_step": own.corrections / (len(grid) - 1),
        "intrinsic_remasked": own.remasked,
        "intrinsic_cumulative": cumulative(torch.tensor(own.per_step, dtype=torch.float64)),
    }


def cumulative(per_step: Tensor) -> list[float]:
    """The fraction of all corrections that is done by each step, Figure `fig:ablation1-2`."""
    total = float(per_step.sum())
    return (per_step.cumsum(0) / total).tolist() if total > 0 else [0.0] * len(per_step)


def measure_samples(context: MeasureContext, model: EvalModel, spec: SamplingSpec) -> Measurement:
    """Draw the samples of `spec`: texts, diversity, corrections and evaluations."""

    def run() -> dict[str, Any]:
        drawn, length = draw(context, model, spec), text_length(model.lm, spec)
        return {
            "texts": [model.text(row) for row in drawn.tokens],
            "before": [model.text(row) for row in drawn.before],
            "nfe": stats.mean(drawn.nfe)._asdict(),
            **drawn.plan,
            "diversity": diversity(drawn.tokens, spec.seed),
            "correction": rates(drawn.moves, length, model.process, drawn.grid),
            "length": length,
        }

    return context.store.measurement("samples", model, settled(spec, model.lm), run)
