"""The commit of the code that is running, where it runs from a git checkout: versions alone do not tell two days of work apart."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path

PATIENCE = 10  # seconds that git is given
DESCRIBE = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


@lru_cache(maxsize=8)
def commit(folder: Path = Path(__file__).parent) -> str | None:
    """The commit of the checkout that tracks this folder, “-dirty” where files differ from it; None without one, or without git."""
    # an installed package may lie inside somebody else's checkout, which does not track it
    if not _git(folder, "ls-files", "--", "."):
        return None
    return _git(folder, *DESCRIBE)


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
