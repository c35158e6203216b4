"""Attention that does not see the whole row: only a token's own document, only its surroundings, or both.

`window` w lets a token see those at most w places away, and the row's first token besides. A softmax has to sum to one even where
nothing is worth looking at, and trained networks put what is left on the first token: without it one that was trained on whole rows
reads some texts worse than in pieces (docs/adr/0014).
"""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.ops.common import HAS_TRITON, choose
from scdd.ops.documents import chunked, reference

WIDEST = 128  # heads that the kernel takes


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    documents: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    impl: str = "auto",
) -> Tensor:
    """Softmax attention of q [B, H, L, Dh] over k, v [B, Hk, Lk, Dh], where Hk divides H: neighbouring heads share keys.

    `documents` [B, L] are whole numbers: token i sees token j where theirs agree, and none that follows where `causal`. Padding
    has −1, a document of its own: no token sees it, and its rows of the softmax are not empty, hence finite.
    On a GPU without gradients one kernel takes the numbers as they are and copies no keys; a row's result there does not
    depend on the batch, bit for bit. With a window the cost is linear in the length, save in the reference. Without either the
    library's own kernels stay: they are as fast.
    """
    if documents is not None and not (documents.shape == (q.shape[0], q.shape[2]) == (k.shape[0], k.shape[2])):
        raise ValueError(
            f"documents {tuple(documents.shape)} do not fit queries {tuple(q.shape)}, keys {tuple(k.shape)}"
        )
    if window is not None and q.shape[2] != k.shape[2]:
        raise ValueError(f"a window is about whole rows: {q.shape[2]} queries, {k.shape[2]} keys")
    if not cuts(window, q.shape[2]):
        window = None
    known = (documents is not None or window is not None) and takes_documents(q, q.shape[-1])
    if impl == "triton" or (choose(impl, q) == "triton" and known):
        from scdd.ops.documents.triton import attention as fused

        return fused(q, k, v, documents, causal, window)
    if window is not None and impl != "reference":
        return chunked.attention(q, k, v, documents, causal, window)
    return reference.attention(q, k, v, documents, causal, window)


def cuts(window: int | None, length: int) -> bool:
    """Whether there are tokens in a row of this length that do not see each other."""
    return window is not None and length > window + 1


def takes_documents(x: Tensor, width: int) -> bool:
    """Whether the kernel is there for heads of this width and x's kind: on a GPU, in 16 bits, with nobody who wants
    gradients, or compiles."""
    free = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    half = x.dtype in (torch.bfloat16, torch.float16)
    return free and half and width <= WIDEST and x.is_cuda and HAS_TRITON
