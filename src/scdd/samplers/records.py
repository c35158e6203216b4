"""A row as bytes: how it gets from the host into its slot on a device, with others, in one copy (`slots`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scdd.core.rng import CounterRNG
from scdd.samplers.base import Sampler, State
from scdd.samplers.readback import ALIGNED, Array
from scdd.samplers.step import TokenRows

OWN = "own."  # before the names of what a sampler keeps of a row


def send(here: Tensor, there: Tensor) -> None:
    """A copy to the device for which the host does not wait."""
    there.copy_(here.pin_memory() if there.is_cuda else here, non_blocking=True)


class Layout:
    """A row as bytes: all that it has, one after the other, on the host as numpy's record and on the device as a row of the inbox."""

    def __init__(self, fields: Mapping[str, Tensor], capacity: int) -> None:
        starts, formats, spans, end = [], [], [], 0
        for name, each in fields.items():
            size = each[0].numel() * each.element_size()
            raw = name.startswith(OWN)  # of any type, which numpy may not have
            formats.append((np.uint8, (size,)) if raw else (each[:0].cpu().numpy().dtype, tuple(each.shape[1:])))
            starts.append(end)
            spans.append((end, end + size))
            end += -(-size // ALIGNED) * ALIGNED
        record: Any = {"names": [*fields], "formats": formats, "offsets": starts, "itemsize": end}
        self._spans = spans
        # in its last row is nobody
        self._inbox = torch.zeros((capacity + 1, end), dtype=torch.uint8, device=fields["tokens"].device)
        self._parts: dict[int, list[Tensor]] = {}
        self.nobody: Array = np.zeros(1, np.dtype(record))
        self.nobody["done"], self.nobody["heat"], self.nobody["lengths"] = True, 1.0, fields["tokens"].shape[1]
        self.nobody["log_p"] = self.nobody["log_p_when_drawn"] = np.nan
        send(torch.from_numpy(self.nobody.view(np.uint8)), self._inbox[-1])

    def fill(self, rows: Sequence[Array]) -> None:
        """These rows into the first of the inbox."""
        here = torch.empty((len(rows), self._inbox.shape[1]), dtype=torch.uint8, pin_memory=self._inbox.is_cuda)
        np.stack(rows, out=here.numpy())
        self._inbox[: len(rows)].copy_(here, non_blocking=True)

    def parts(self, number: int) -> list[Tensor]:
        """Its pieces."""
        if number not in self._parts:
            self._parts[number] = [self._inbox[number, start:stop] for start, stop in self._spans]
        return self._parts[number]


def beginnings(rows: TokenRows, rng: CounterRNG, sampler: Sampler, columns: int, mask_id: int) -> list[dict[str, Any]]:
    """What new rows, which are on the host, begin with: by name, as `Shape.join` wants it."""
    (count, given), device = rows.tokens.shape, rows.tokens.device
    lengths = np.array([given] * count if rows.lengths is None else list(rows.lengths))
    tokens = np.full((count, columns), mask_id, dtype=np.int64)
    tokens[:, :given] = rows.tokens.numpy()
    updatable = np.arange(columns) < lengths[:, None]
    if rows.frozen is not None:
        updatable[:, :given] &= ~rows.frozen.numpy()
    calls = np.broadcast_to(rng.calls.numpy() if isinstance(rng.calls, Tensor) else rng.calls, (count,))
    found = {"tokens": tokens, "updatable": updatable, "lengths": lengths, "keys": rng.keys.numpy(), "calls": calls}
    for name, each in sampler.memory(rows.tokens).items():
        assert each.device == device
        found[OWN + name] = each.reshape(count, -1).contiguous().view(torch.uint8).numpy()
    return [{name: each[i] for name, each in found.items()} for i in range(count)]


def state_fields(state: State) -> dict[str, Tensor]:
    """The state's tensors by name, the sampler's own included."""
    own = {OWN + name: each for name, each in state.memory.items() if isinstance(each, Tensor)}
    return {**{name: each for name, each in vars(state).items() if name != "memory"}, **own}
