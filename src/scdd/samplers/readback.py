"""What a batch's rows look like, brought to the host while the device goes on.

It begins right after a step, and is waited for when somebody wants it: in between the next step may be launched, which
writes over the tensors that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scdd.samplers.row_batch import RowBatch
from scdd.samplers.step import StepResult

Array = np.ndarray[Any, np.dtype[Any]]
ALIGNED = 16  # bytes


class HostRows(NamedTuple):
    """The same as numbers on the host, in the order of slots."""

    tokens: Array
    moved: Array
    log_p: Array
    counts: Array
    nfe: Array


class Flat:
    """Tensors like these in one piece of memory, so that one copy takes them all."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self._like = [(part.dtype, part.shape, part.numel() * part.element_size()) for part in parts]
        self._kinds = [torch.empty(0, dtype=part.dtype).numpy().dtype for part in parts]
        sizes = [-(-size // ALIGNED) * ALIGNED for _, _, size in self._like]
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self.bytes = torch.zeros(sum(sizes), dtype=torch.uint8, device=parts[0].device)

    def views(self, of: Tensor | None = None) -> list[Tensor]:
        """The parts, of these bytes or of others that are laid out alike."""
        memory, found = self.bytes if of is None else of, []
        for (dtype, shape, size), start in zip(self._like, self._starts, strict=True):
            found.append(memory[start : start + size].view(dtype).view(shape))
        return found

    def arrays(self, of: Tensor) -> list[Array]:
        """The same of bytes on the host, as numbers."""
        memory, found = of.numpy(), []
        for kind, (_, shape, size), start in zip(self._kinds, self._like, self._starts, strict=True):
            found.append(memory[start : start + size].view(kind).reshape(shape))
        return found


class Readback:
    """The rows after a step, on their way to the host."""

    def __init__(self, slots: Sequence[int], rows: Flat | StepResult) -> None:
        """`slots`: where each row of the batch is in `rows`, which are tensors that the next step writes over, in one piece, or new ones."""
        self.slots = slots
        self._rows, self._host, self._event = rows, None, None  # type: tuple[Flat | StepResult, Tensor | None, Any]
        self._device = (rows.bytes if isinstance(rows, Flat) else rows.tokens).device
        self._on_gpu = self._device.type == "cuda"

    def begin(self, wanted: bool = True) -> None:
        """Before the next step: copy the rows, where somebody wants them, and remember when the step ends."""
        if wanted:
            if isinstance(self._rows, StepResult) and self._on_gpu:
                self._rows = _flat(self._rows)
            if isinstance(self._rows, Flat):
                memory = self._rows.bytes
                self._host = torch.empty(memory.shape, dtype=memory.dtype, pin_memory=self._on_gpu)
                self._host.copy_(memory, non_blocking=True)
        if self._on_gpu:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Until the device is done with the step. It says here what went wrong there."""
        if self._event is not None:
            self._event.synchronize()

    def host_rows(self) -> HostRows:
        """All slots, if that was wanted."""
        self.wait()
        if isinstance(self._rows, StepResult):
            return HostRows(*(each.numpy() for each in self._rows))
        assert self._host is not None, "nobody wanted it"
        return HostRows(*self._rows.arrays(self._host))


def _flat(rows: StepResult) -> Flat:
    made = Flat(rows)
    for mine, other in zip(made.views(), rows, strict=True):
        mine.copy_(other)
    return made


def launch(batch: RowBatch) -> Readback:
    """`RowBatch.step`, without waiting for it, unless rows may end early; what it shows is to be asked for before the next step, and
    where there are other threads within one `RowBatch.undisturbed`."""
    here = range(len(batch.rows))
    return batch.stepped(lambda graphs, phases: graphs.launch(batch, phases), lambda result: Readback(here, result))
