"""Self-Correcting Discrete Diffusion language models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scdd.lm import LM, load

__all__ = ["LM", "__version__", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`scdd.load` and `scdd.LM`, imported on first use: `import scdd` must not pay for torch."""
    if name not in ("LM", "load"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("scdd.lm"), name)
