"""A diffusion objective in which some rows go on being learnt left to right."""

from __future__ import annotations

from typing import Any, Protocol, cast

from torch import Tensor

from scdd.core.denoiser import Denoiser
from scdd.core.types import Head, Learnt, Vocab
from scdd.objectives.ar import ArObjective
from scdd.objectives.base import BatchSlice, Loss, Objective, Reduce
from scdd.objectives.diffusion import DiffusionObjective
from scdd.processes.autoregressive import Autoregressive


class TwoSided(Denoiser, Protocol):
    """What is asked of the network beyond `Denoiser`: to see, for one call, only what is before each token."""

    def hidden(
        self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None, *, lookahead: int | None = None
    ) -> Tensor:
        """Each token sees so many tokens to its right."""
        ...


class Causally:
    """A two-sided network as the left-to-right one that it also is, as far as a loss asks."""

    def __init__(self, network: TwoSided) -> None:
        self.network = network
        self.vocab: Vocab = network.vocab

    @property
    def head(self) -> Head:
        """The network's."""
        return self.network.head

    def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """Each token sees what is before it."""
        return self.network.hidden(z_t, t, documents, lookahead=0)


def noised_rows(share: float, total: int) -> int:
    """How many rows of a global batch come before those that are read left to right."""
    return total - round(share * total)


class MixedObjective(Objective):
    """The last `share` of each global batch's rows by next-token cross-entropy, the others by the diffusion objective; in the
    first steps all of them by the former.

    Neither ranks nor micro-batches change which rows these are, and every row weighs alike, or where some tokens are
    given, every learnt token. A slice with rows of both kinds runs the network twice. What is reported, while
    training and in validation, is the diffusion objective alone.
    """

    def __init__(self, diffusion: DiffusionObjective, share: float, first: int = 0) -> None:
        """`first`: how many steps read every row from left to right."""
        self.diffusion, self.share, self.process = diffusion, share, diffusion.process
        self.first = self.changes_at = self._step = first
        self.ar = ArObjective(Autoregressive(self.process.vocab), diffusion.impl)

    def loss(
        self, network: Any, tokens: Tensor, documents: Tensor | None, part: BatchSlice, learnt: Learnt | None = None
    ) -> Loss:
        """Both losses, each on its rows."""
        self._step = part.step
        share = 1.0 if part.step < self.first else self.share
        noised = min(max(noised_rows(share, part.total) - part.first, 0), part.count)
        if noised == part.count:
            return self.diffusion.loss(network, tokens, documents, part, learnt)

        def rows(which: slice) -> tuple[Tensor, Tensor | None, BatchSlice, Learnt | None]:
            first, end, _ = which.indices(part.count)
            known = None if documents is None else documents[which]
            return tokens[which], known, part.cut(first, end - first), None if learnt is None else learnt.rows(which)

        read = self.ar.loss(cast(Denoiser, Causally(network)), *rows(slice(noised, None)))
        if not noised:
            return Loss(read.total, read.nats[:0], read.tokens[:0])
        loss = self.diffusion.loss(network, *rows(slice(noised)))
        return loss._replace(total=loss.total + read.total)

    def evaluate(
        self,
        network: Denoiser,
        tokens: Tensor,
        documents: Tensor | None,
        part: BatchSlice,
        learnt: Learnt | None = None,
    ) -> Loss:
        """The diffusion objective's."""
        return self.diffusion.evaluate(network, tokens, documents, part, learnt)

    def border(self, total: int) -> int:
        """Where the rows begin that are read left to right."""
        return noised_rows(self.share, total)

    def end_step(self, reduce: Reduce) -> None:
        """The diffusion objective's, once it has begun."""
        if self._step >= self.first:
            self.diffusion.end_step(reduce)

    def state_dict(self) -> dict[str, Tensor]:
        """The diffusion objective's."""
        return self.diffusion.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """See `state_dict`."""
        self.diffusion.load_state_dict(state)
