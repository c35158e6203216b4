"""The number to report: NELBO per token over the validation split, with its standard error."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from scdd.core.rng import derive_seed
from scdd.data.loader import Batch
from scdd.objectives.base import BatchSlice, Estimate, RatioMeter
from scdd.training.parallel import Parallel


def validate(parallel: Parallel, batches: Iterable[Batch], seed: int, rows: int, micro: int | None = None) -> Estimate:
    """Nats per token over `batches` of `rows` rows on all ranks together; a rank takes `micro` rows at a time.

    The noise is a function of the seed alone: two calls differ by the weights only, so curves are smooth and
    comparisons are paired.
    """
    world, seed = parallel.world, derive_seed(seed, "validation")
    meter = RatioMeter(world.device)
    for number, batch in enumerate(batches):
        count = batch.tokens.shape[0]
        losses = []
        for piece, part in BatchSlice(seed, number, world.rank * count, count, rows).micro_batches(micro):
            documents = None if batch.documents is None else batch.documents[piece]
            learnt = None if batch.learnt is None else batch.learnt.rows(piece)
            losses.append(parallel.report(batch.tokens[piece], documents, learnt, part))
        if batch.real:
            nats, tokens = (torch.cat([loss.nats for loss in losses]), torch.cat([loss.tokens for loss in losses]))
            meter.add(nats[: batch.real], tokens[: batch.real])
    world.reduce(meter.sums)
    return meter.estimate()
