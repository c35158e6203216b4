"""What this process may use of its machine, and how its threads wait. Nothing here imports torch.

OpenMP's threads spin for milliseconds between two products, which on a core that another process wants makes a text take fifteen
times as long. They are told not to before torch is loaded, by the environment (`calm_threads`, as `scdd` is imported), or after it by
libgomp's own rule (`settle_threads`, as the first model is loaded). Whoever has set these variables keeps them. Work that is too
small to be shared stays on one core (`alone`), and freed memory with the process (`keep_memory`).
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path("/")
# Enough for the gaps inside one evaluation; more gains nothing, and costs more if somebody comes.
SPINS = "10000"
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
COUNTING = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
MOST = 256  # threads that are started only to be counted
GRAIN = 1 << 15  # numbers that torch gives to one thread, at least
EIGHT_BITS = {"avx512_vnni", "avx_vnni", "amx_int8"}
TRIM, MAP = -1, -3  # mallopt's names: freed bytes that are kept, and the smallest tensor that gets pages of its own
KEPT, LARGEST = 256 << 20, 32 << 20  # the latter is the most that glibc allows

_late = False  # whether torch was there first, and nobody had said how threads wait


# -- cores -------------------------------------------------------------------------------------------------------------


def cores(root: Path = ROOT) -> int:
    """Whole cores that this process may use: those it may run on, within the quotas of its control groups."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(allowed, quota(root))))


def quota(root: Path = ROOT) -> float:
    """Cores' worth of time that the control groups leave, of both versions and with all groups above; ∞ where none says."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return math.inf
    least, mounts = math.inf, root / "sys/fs/cgroup"
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            read, places = _second, [mounts]
        elif "cpu" in controllers.split(","):
            read, places = _first, [mounts / controllers, mounts / "cpu"]
        else:
            continue
        for place in places:
            parts = [part for part in path.split("/") if part not in ("", ".", "..")]
            for depth in range(len(parts) + 1):  # a container may see its own group as the root, so all are tried
                least = min(least, read(place.joinpath(*parts[:depth])))
    return least


def _second(group: Path) -> float:
    """Version 2: "QUOTA PERIOD" or "max PERIOD" in one file."""
    return _share(*[*_read(group / "cpu.max").split(), "", ""][:2])


def _first(group: Path) -> float:
    """Version 1: two files, and a quota of −1 is none."""
    return _share(_read(group / "cpu.cfs_quota_us").strip(), _read(group / "cpu.cfs_period_us").strip())


def _share(quota: str, period: str) -> float:
    if not (quota.isdecimal() and period.isdecimal() and int(period) > 0):
        return math.inf
    return int(quota) / int(period)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def multiplies_eight_bits(root: Path = ROOT) -> bool:
    """Whether this CPU has instructions for sums of 8-bit products; only Linux on x86 is asked."""
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            return not EIGHT_BITS.isdisjoint(flags.split())
    return False


# -- threads -----------------------------------------------------------------------------------------------------------


def calm_threads(root: Path = ROOT) -> None:
    """Ask OpenMP, before it is loaded, to let waiting threads sleep; where nobody else runs, after some microseconds.

    Two threads that sleep at once draw a text of a small model (7 × 512) no sooner than one; those that spin so long, in half of the time. If
    others come later it takes half as long again as with threads that sleep at once, not fifteen times.
    """
    global _late
    if not set(WAITING).isdisjoint(os.environ):
        return
    if "torch" in sys.modules:
        _late = True
        return
    os.environ.update({"GOMP_SPINCOUNT": SPINS} if _alone(root) else {"OMP_WAIT_POLICY": "PASSIVE"})


def _alone(root: Path) -> bool:
    """Whether no other process wants to run just now; only Linux says so."""
    words = _read(root / "proc/loadavg").split()
    return len(words) > 3 and words[3].partition("/")[0] == "1"


def even(threads: int) -> int:
    """The largest power of two within a number of threads.

    Torch cuts a tensor into as many pieces as there are threads, and the ends of odd pieces are rounded otherwise: float32 texts
    with three threads are not those with one, those with two, four or eight are (`evenly`).
    """
    return 1 << (threads.bit_length() - 1)


def settle_threads() -> None:
    """Once torch is there: as many threads as there are cores (`even`), unless somebody chose; and asleep while they wait.

    libgomp reads its variables as it is loaded. But it spins 3,000 times less while it manages more threads than there are
    cores (GCC's manual, GOMP_SPINCOUNT), so where it is too late for the variables one thread starts some and sleeps.
    """
    global _late
    import torch

    allowed, usual = even(cores()), torch.get_num_threads()
    if usual > allowed and set(COUNTING).isdisjoint(os.environ):
        torch.set_num_threads(allowed)
    if _late:
        _late = False
        _outnumber(max(os.cpu_count() or 1, usual) + 1)


@cache
def _libgomp() -> Any:
    """The library that runs torch's threads; None where it is another one. Other packages bring a libgomp of their own, which may
    come first in the list: torch's lies beside torch, where it has one."""
    maps = _read(ROOT / "proc/self/maps").splitlines()
    found = [line.split(maxsplit=5)[5] for line in maps if "/libgomp" in line]
    path = min(found, key=lambda each: "/torch" not in each, default=None)
    try:
        return None if path is None else ctypes.CDLL(path)
    except OSError:
        return None


def _outnumber(count: int) -> bool:
    """Let libgomp manage so many threads more, all asleep; False where another library than libgomp runs the threads."""
    gomp = _libgomp()
    if gomp is None or count > MOST:
        return False
    try:
        nothing = ctypes.CDLL(None).free  # free(NULL) is what each of them does
        start = gomp.GOMP_parallel
    except (OSError, AttributeError):
        return False
    start.argtypes, start.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    started = threading.Event()

    def hold() -> None:
        start(ctypes.cast(nothing, ctypes.c_void_p), None, count, 0)
        started.set()
        threading.Event().wait()  # they end with the thread that began them

    threading.Thread(target=hold, name="scdd-outnumber", daemon=True).start()
    return started.wait(5.0)


class _Own(threading.local):
    """How many threads this one shares its work with, while it is `alone`; 0 otherwise."""

    many = 0


own = _Own()


@cache
def _asking() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    """Ask and tell libgomp with how many threads the calling one shares its work: a fraction of a microsecond each."""
    gomp = _libgomp()
    return None if gomp is None else (gomp.omp_get_max_threads, gomp.omp_set_num_threads)


class alone:
    """While it lasts, torch's operations of this thread run on one core, but for those within `together`.

    To wake the others takes as long as a pass over 100,000 numbers, and many times as long if they sleep. Results are the same
    (`even`). Where another library than libgomp runs the threads nothing changes.
    """

    __slots__ = ("_many",)

    def __enter__(self) -> None:
        asking = None if own.many else _asking()
        self._many = 0 if asking is None else asking[0]()
        if self._many > 1 and asking is not None:
            own.many = self._many
            asking[1](1)

    def __exit__(self, *_: object) -> None:
        if self._many > 1 and (asking := _asking()) is not None:
            own.many = 0
            asking[1](self._many)


class together:
    """Within `alone`: all threads again, for what is worth it."""

    __slots__ = ()

    def __enter__(self) -> None:
        if own.many and (asking := _asking()) is not None:
            asking[1](own.many)

    def __exit__(self, *_: object) -> None:
        if own.many and (asking := _asking()) is not None:
            asking[1](1)


class evenly:
    """While it lasts, torch cuts a tensor of so many numbers into one piece, or two, or four, …: where there are too few for all
    threads to have `GRAIN` of them it makes as many pieces as have, three or seven too, whose ends are rounded otherwise (`even`).

    For functions that torch computes in one way many at a time, and in another one by one: on a CPU that is silu alone.
    """

    __slots__ = ("_many", "_numbers")

    def __init__(self, numbers: int) -> None:
        self._numbers, self._many = numbers, 0

    def __enter__(self) -> None:
        if (asking := _asking()) is None:
            return
        many = asking[0]()
        pieces = min(many, -(-self._numbers // GRAIN))
        if even(pieces) < pieces:
            self._many = many
            asking[1](even(pieces))

    def __exit__(self, *_: object) -> None:
        if self._many and (asking := _asking()) is not None:
            asking[1](self._many)


# -- memory ------------------------------------------------------------------------------------------------------------


def keep_memory() -> bool:
    """Ask glibc to keep what is freed for what is asked for next; False where there is no glibc, or somebody has chosen.

    A step of a walk frees 40 MB and asks for as much again. Pages that went back to the system come back one fault at a time,
    each filled with zeros first: a quarter of a text's time.
    """
    chosen = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if chosen or not sys.platform.startswith("linux"):
        return False
    try:
        tell = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(tell(TRIM, KEPT)) and bool(tell(MAP, LARGEST))
