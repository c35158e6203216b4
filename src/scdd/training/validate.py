"""The number to report: NELBO per token over the validation split, with its standard error."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from scdd.core.rng import derive_seed
from scdd.data.loader import Batch
from scdd.objectives.batch_slice import BatchSlice
from scdd.objectives.meter import Estimate, RatioMeter
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
    tally = RatioMeter(world.device)
    for number, batch in enumerate(batches):
        count = batch.tokens.shape[0]
        nats = torch.zeros(repeats, count, dtype=torch.float64, device=world.device)
        tokens = torch.zeros_like(nats)
        for look in range(repeats):
            part = BatchSlice(
                derive_seed(seed, "validation"), number * repeats + look, world.rank * count, count, rows
            )
            for first in range(0, count, micro or count):
                cut = slice(first, min(first + (micro or count), count))
                documents = None if batch.documents is None else batch.documents[cut]
                found = parallel.report(batch.tokens[cut], documents, part.cut(first, cut.stop - first))
                nats[look, cut], tokens[look, cut] = found.nats, found.tokens.double()
        if batch.real:
            tally.add(nats.mean(0)[: batch.real], tokens.mean(0)[: batch.real])
    world.reduce(tally.sums)
    return tally.estimate()
