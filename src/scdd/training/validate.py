"""The number to report: NELBO per token over the validation split, with its standard error."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from scdd.core.rng import derive_seed
from scdd.data.loader import Batch
from scdd.objectives.base import BatchSlice, Estimate, RatioMeter
from scdd.training.parallel import Parallel


def validate(
    parallel: Parallel,
    batches: Iterable[Batch],
    seed: int,
    rows: int,
    micro: int | None = None,
    repeats: int = 1,
) -> Estimate:
    """Nats per token over `batches` of `rows` rows on all ranks together, each row looked at `repeats` times.

    A rank takes `micro` rows at a time. The noise is a function of the seed alone: two calls differ by the weights
    only, so curves are smooth and comparisons are paired.
    """
    world = parallel.world
    meter = RatioMeter(world.device)
    for number, batch in enumerate(batches):
        count = batch.tokens.shape[0]
        nats = torch.zeros(repeats, count, dtype=torch.float64, device=world.device)
        tokens = torch.zeros_like(nats)
        for look in range(repeats):
            whole = BatchSlice(
                derive_seed(seed, "validation"), number * repeats + look, world.rank * count, count, rows
            )
            for piece, part in whole.micro_batches(micro):
                documents = None if batch.documents is None else batch.documents[piece]
                loss = parallel.report(batch.tokens[piece], documents, part)
                nats[look, piece], tokens[look, piece] = loss.nats, loss.tokens.double()
        if batch.real:
            meter.add(nats.mean(0)[: batch.real], tokens.mean(0)[: batch.real])
    world.reduce(meter.sums)
    return meter.estimate()
