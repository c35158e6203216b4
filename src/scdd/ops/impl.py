"""Which implementation of an op runs: named by the caller, or chosen by where the tensors live."""

from __future__ import annotations

from torch import Tensor

from scdd.core import UserError

IMPLS = ("auto", "reference", "chunked", "triton")


def choose(impl: str, where: Tensor) -> str:
    """The implementation meant by `impl` for tensors like `where`: Triton on CUDA, chunked torch elsewhere."""
    if impl not in IMPLS:
        raise UserError(f"impl is {impl!r}: choose one of {', '.join(IMPLS)}.")
    if impl != "auto":
        return impl
    return "triton" if where.is_cuda and _has_triton() else "chunked"


def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True
