"""Exponential moving average of the weights: what is sampled from and published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from scdd.core.errors import UserError


def local(tensors: list[Tensor]) -> list[Tensor]:
    """This rank's share of sharded tensors; plain tensors as they are. Averaging needs no communication."""
    return [t.to_local() if hasattr(t, "to_local") else t for t in tensors]


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    torch._foreach_copy_(local(targets), local(sources))


class EMA:
    """shadow ← d · shadow + (1 − d) · weight after each step, d = min(decay, (1 + n) / (10 + n)) at the n-th update.

    The shadow is float32 whatever the weights are: with d = 0.9999, bfloat16 would lose every update.
    """

    def __init__(self, module: nn.Module, decay: float = 0.9999) -> None:
        if not 0 <= decay <= 1:
            raise UserError(f"The EMA's decay is {decay}: choose a number from 0 to 1.")
        self.decay = decay
        self.updates = 0
        self._weights = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.shadow = {name: p.detach().clone().float() for name, p in self._weights.items()}

    def advance(self) -> float:
        """Count an update and return 1 − d for it: for who writes the shadow in the optimiser's own pass."""
        self.updates += 1
        return 1 - min(self.decay, (1 + self.updates) / (10 + self.updates))

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now; a handful of fused kernels for all of them."""
        self.pull(self._weights, self.advance())

    @torch.no_grad()
    def pull(self, weights: Mapping[str, Tensor], share: float) -> None:
        """shadow ← shadow + share · (weight − shadow) for some of the weights."""
        given = [w if w.dtype == torch.float32 else w.float() for w in local(list(weights.values()))]
        if given:
            torch._foreach_lerp_(local([self.shadow[name] for name in weights]), given, share)

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> None:
        """Write the averages into the parameters of a module of the same shape."""
        targets = dict(module.named_parameters())
        missing = self.shadow.keys() - targets.keys()
        if missing:
            raise UserError(
                f'The module has no parameter "{min(missing)}": copy the EMA to the network it was made of.'
            )
        _copy([targets[name] for name in self.shadow], list(self.shadow.values()))

    @contextmanager
    def swap(self) -> Iterator[None]:
        """The network carries the averages inside the block, and its own weights again afterwards."""
        weights: list[Tensor] = list(self._weights.values())
        with torch.no_grad():
            own = [w.detach().clone() for w in weights]
            _copy(weights, list(self.shadow.values()))
        try:
            yield
        finally:
            with torch.no_grad():
                _copy(weights, own)

    def weights(self, module: nn.Module) -> dict[str, Tensor]:
        """The module's state with the averages in place of the trained weights: what a bundle stores."""
        return {**module.state_dict(), **self.shadow}

    def state_dict(self) -> dict[str, Any]:
        """For resuming; the tensors are the live ones."""
        return {"decay": self.decay, "updates": self.updates, "shadow": dict(self.shadow)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        shadow = state["shadow"]
        if shadow.keys() != self.shadow.keys():
            name = min(shadow.keys() ^ self.shadow.keys())
            raise UserError(
                f'The EMA to resume from and the network differ at "{name}": resume with the same recipe.'
            )
        self.decay, self.updates = float(state["decay"]), int(state["updates"])
        for key, value in shadow.items():
            self.shadow[key].copy_(value)
