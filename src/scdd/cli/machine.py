"""How the process gets on with its machine: threads, memory, encodings, full disks. Nothing here imports torch."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from pathlib import Path

LOAD = Path("/proc/loadavg")
BRIEF = ("sample", "infill", "correct", "score", "demo")  # verbs that are over before the load changes
# Enough for the gaps inside one evaluation; more gains nothing, and costs more if somebody comes.
SPINS = "10000"

# What the machine refuses and its user can mend, with the cure.
CURES = {
    errno.ENOSPC: "make room, or write elsewhere",
    errno.EDQUOT: "make room, or write elsewhere",
    errno.EFBIG: "make room, or write elsewhere",
    errno.EACCES: "change its permissions, or choose another place",
    errno.EPERM: "change its permissions, or choose another place",
    errno.EROFS: "choose another place",
    errno.ENOTDIR: "choose another place",
    errno.EISDIR: "name a file",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def calm_threads(verb: str = "") -> None:
    """Idle OpenMP threads sleep instead of spinning: on a shared CPU spinning costs many times what waking does.

    A brief verb that is alone on the machine lets them spin for some microseconds first, which makes the bundled model a
    quarter faster on two cores. It must be said before torch is imported, and whoever has set it keeps it.
    """
    if {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}.isdisjoint(os.environ):
        spin = verb in BRIEF and _alone()
        os.environ.update({"GOMP_SPINCOUNT": SPINS} if spin else {"OMP_WAIT_POLICY": "PASSIVE"})


def _alone() -> bool:
    """Whether no other process wants to run just now; only Linux says so."""
    try:
        running = LOAD.read_text(encoding="ascii").split()[3].partition("/")[0]
    except (OSError, IndexError):
        return False
    return running == "1"


def collect_rarely() -> None:
    """Importing torch makes very many objects that stay; looking through them again and again is a tenth of its time."""
    gc.set_threshold(50_000, 20, 20)


def show_every_character() -> None:
    """Characters that the output's encoding lacks are written as escapes, where Python would give up."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def flush() -> None:
    """Write what is still held back, so that a full disk is noticed here and not by the interpreter as it ends."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # what is left would fail again at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:
            raise
