"""What is to be served, as plain data: whoever serves it, here or on another machine, makes the same application of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from scdd.lm.loading import load
from scdd.lm.model import LM
from scdd.serve.limits import Limits
from scdd.serve.service import Service

ROWS = {"cpu": 16, "gpu": 64}  # texts drawn together
TALKING = 4  # processes that talk HTTP, where the model is on a GPU
KEPT = 2  # cores that they leave to a worker that computes, and to whatever else the machine does


class Endpoint(NamedTuple):
    """Where a server listens, and whom it lets in."""

    host: str
    port: int
    token: str | None = None
    hosts: tuple[str, ...] | None = None
    log_level: str = "info"
    processes: int = 0
    """That talk HTTP, beside the one that computes; 0: that one talks as well."""


def usual_processes(device: str, cores: int, platform: str, ray: bool, workers: int = 1) -> int:
    """`Endpoint.processes` where nobody says how many; `device` as torch spells it, `cores` that may be used, `platform` as `sys` has it.

    `workers` compute, and have a core each. On a CPU the network wants all cores; in front of replicas nothing is computed; and Windows
    lacks what they are started with.
    """
    if device.partition(":")[0] != "cuda" or platform == "win32" or ray:
        return 0
    return max(0, min(TALKING, cores - KEPT - (workers - 1)))


@dataclass(frozen=True)
class ServeSpec:
    """A model and its limits. What is None is chosen to suit the model and the device."""

    model: str | None = None
    process: str | None = None
    device: str | None = None
    changes: tuple[str, ...] = ()
    compiled: bool = False
    name: str | None = None
    limits: Limits = field(default_factory=Limits)
    length: int | None = None
    batch: int | None = None
    rows_per_forward: int | None = None
    dtype: str | None = None
    graphs: bool = True

    def load(self) -> LM:
        """The model, on its device."""
        how = {"process": self.process, "device": self.device, "dtype": self.dtype, "graphs": self.graphs}
        lm = load(self.model, overrides=self.changes, **how)  # type: ignore[arg-type]
        if self.compiled:
            lm.compile()
        return lm

    def limits_of(self, lm: LM) -> Limits:
        """The limits of this model on its device."""
        on_gpu = lm.device.type != "cpu"
        return replace(
            self.limits,
            length=self.length or 4 * lm.engine.room,
            batch=self.batch or ROWS["gpu" if on_gpu else "cpu"],
            rows_per_forward=self.rows_per_forward or (64 if on_gpu else None),
        )

    def service(self, threads: int | None = None, lent: bool = False) -> Service:
        """The model and its scheduler. `threads`: of torch, for all workers together; `lent`: see `Scheduler`."""
        lm = self.load()
        limits = self.limits_of(lm)
        # said aloud, since OpenMP's own choice is slower
        each = max(1, (threads or torch.get_num_threads()) // limits.workers)
        share = each if lm.device.type == "cpu" else None
        return Service(lm, limits, self.name, share, lent)
