"""Where ranks find each other: a store of keys that no earlier start of the same run has written to.

torchrun's agents keep one store for as long as they live (c10d rendezvous), and ranks that are started anew would find the
addresses of dead ones there (pytorch issue 135712). How often an agent has restarted its ranks cannot tell the starts
apart: agents count for themselves.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from secrets import token_hex
from typing import Any

import torch.distributed
from torch.distributed.rendezvous import rendezvous

MEETING = "scdd/meeting"
PAUSE = 0.02  # seconds between two looks


def meet(timeout: timedelta) -> tuple[Any, int, int]:
    """(a store for this start of the run alone, this rank, number of ranks), as torchrun's environment describes them.

    Rank 0 opens a meeting under a name that nobody had before; every other rank signs in with a name of its own, under
    whatever meeting is the newest, until it finds itself on the list of those that have come.
    """
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    prefixed: Any = torch.distributed.PrefixStore  # type: ignore[attr-defined]
    return prefixed(_agreed(store, rank, size, timeout), store), rank, size


def _agreed(store: Any, rank: int, size: int, timeout: timedelta) -> str:
    """The name of the meeting that all ranks of this start have come to."""
    own = token_hex(8)
    if rank == 0:
        store.set(MEETING, own)
        present = [own, *(store.get(f"scdd/{own}/{other}").decode() for other in range(1, size))]
        store.set(f"scdd/{own}/present", json.dumps(present))
        return own
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        name: str = store.get(MEETING).decode()
        store.set(f"scdd/{name}/{rank}", own)
        # An earlier start's list is complete as well, but does not have us.
        if store.check([f"scdd/{name}/present"]) and own in json.loads(store.get(f"scdd/{name}/present")):
            return name
        time.sleep(PAUSE)
    raise TimeoutError(f"rank {rank} of {size} met no rank 0 within {timeout}")
