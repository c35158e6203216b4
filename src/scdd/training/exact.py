"""The same bits from every run on the same hardware, at some cost in speed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.deterministic

CUDA: Any = torch.backends.cuda
SETTINGS: Any = torch.utils.deterministic


@contextlib.contextmanager
def same_bits(wanted: bool = True) -> Iterator[None]:
    """Inside, a GPU sums in a fixed order wherever PyTorch knows how to: matrix products, embeddings, attention.

    A CPU does so anyway. Of the attention kernels the flash one can; cuDNN's and the memory-efficient one add up the
    queries' gradients in whatever order blocks finish. The products' workspace must be fixed before the first of them
    (CUBLAS_WORKSPACE_CONFIG), so enter this before anything runs on the GPU.
    """
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = (
        torch.are_deterministic_algorithms_enabled(),
        SETTINGS.fill_uninitialized_memory,
        CUDA.cudnn_sdp_enabled(),
        CUDA.mem_efficient_sdp_enabled(),
    )
    _set(True, False, False, False)
    try:
        yield
    finally:
        _set(*before)


def _set(deterministic: bool, filled: bool, cudnn: bool, efficient: bool) -> None:
    torch.use_deterministic_algorithms(deterministic)
    SETTINGS.fill_uninitialized_memory = filled  # nothing here reads what it has not written
    CUDA.enable_cudnn_sdp(cudnn)
    CUDA.enable_mem_efficient_sdp(efficient)
