"""What tests do inside of the ranks that they start: die at a chosen step, count the memory that saving takes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any


def die_in_step(rank: int, step: int) -> None:
    """SIGKILL that rank between the backward pass and the update of a step, unless it has been restarted already."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        before_update(rank, step, lambda: os.kill(os.getpid(), signal.SIGKILL))


def sleep_in_step(rank: int, step: int) -> None:
    """That rank says nothing more, neither where it trains nor where it writes its first checkpoint."""
    from scdd.bundle import stream

    if os.environ.get("RANK", "0") == str(rank):
        stream.write = lambda *_: time.sleep(600)  # type: ignore[assignment]
    before_update(rank, step, lambda: time.sleep(600))


def before_update(rank: int, step: int, work: Callable[[], object]) -> None:
    if os.environ.get("RANK", "0") != str(rank):
        return
    from scdd.training.optim import Optimiser

    update = Optimiser.update_and_average

    def late(self: Optimiser, number: int, *more: Any) -> Any:
        if number == step:
            work()
        return update(self, number, *more)

    Optimiser.update_and_average = late  # type: ignore[method-assign]


def count_memory(file: str) -> None:
    """Note what saving the first checkpoint takes on each rank, in bytes of tensors that were not there before it."""
    import gc
    import json

    import torch

    from scdd.bundle import stream
    from scdd.training import resume

    save, write, rank = resume.Checkpoints.save, stream.write, os.environ.get("RANK", "0")
    most = 0

    def count() -> None:
        nonlocal most
        fresh = [
            each for each in gc.get_objects() if isinstance(each, torch.Tensor) and not hasattr(each, "placements")
        ]
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in fresh}
        most = max(most, sum(storages.values()))

    def counted_write(path: Any, shapes: Any, read: Any, *more: Any) -> str:
        def counted_read(name: str) -> Any:
            tensor = read(name)
            count()
            return tensor

        return write(path, shapes, counted_read, *more)

    def counted_save(self: Any, step: int, tensors: Any, *more: Any) -> None:
        from scdd.training.shards import piece

        own = [piece(each).tensor for each in tensors.values()]
        shard = sum(each.nbytes for each in own)
        largest = max(each.numel() * each.element_size() for each in tensors.values())
        del own
        gc.collect()
        gc.freeze()  # what is there already is not looked at again
        save(self, step, tensors, *more)
        count()
        self.wait()
        with open(f"{file}.{rank}", "w", encoding="utf-8") as out:
            json.dump({"most": most, "shard": shard, "largest": largest}, out)
        resume.Checkpoints.save = save  # type: ignore[method-assign]
        stream.write = write

    resume.Checkpoints.save = counted_save  # type: ignore[method-assign, assignment]
    stream.write = counted_write


def watch_memory(file: str) -> None:
    """Note by how much this process's own memory grows while its first checkpoint is saved; files that are mapped do not count."""
    import ctypes
    import json
    import threading

    from scdd.training import resume
    from scdd.training.shards import piece

    save, rank = resume.Checkpoints.save, os.environ.get("RANK", "0")

    def resident() -> int:
        with open("/proc/self/status", encoding="utf-8") as status:
            line = next(line for line in status if line.startswith("RssAnon"))
        return int(line.split()[1]) * 1024

    def watched(self: Any, step: int, tensors: Any, *more: Any) -> None:
        shard = sum(piece(each).tensor.nbytes for each in tensors.values())
        largest = max(each.numel() * each.element_size() for each in tensors.values())
        ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back, or it would be used again without being seen
        before, seen, done = resident(), [0], threading.Event()

        def look() -> None:
            while not done.wait(0.001):
                seen.append(resident())

        watcher = threading.Thread(target=look)
        watcher.start()
        save(self, step, tensors, *more)
        self.wait()
        done.set()
        watcher.join()
        with open(f"{file}.{rank}", "w", encoding="utf-8") as out:
            json.dump({"most": max(seen) - before, "shard": shard, "largest": largest}, out)
        resume.Checkpoints.save = save  # type: ignore[method-assign]

    resume.Checkpoints.save = watched  # type: ignore[method-assign, assignment]
