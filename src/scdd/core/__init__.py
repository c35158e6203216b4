"""Small frozen types that every room shares.

They are imported on first use: `scdd --help` and recipes need the errors from here, and must not pay for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scdd.core.errors import UserError
    from scdd.core.types import CLEAN, ElboCoefficients, Head, Kernel, Levels, Transition, Vocab

__all__ = ["CLEAN", "ElboCoefficients", "Head", "Kernel", "Levels", "Transition", "UserError", "Vocab"]

_HOMES = {"UserError": "errors"}  # everything else lives in types


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'types')}"), name)
