"""Compiling a network, without what the compiler is known to get wrong."""

from __future__ import annotations

from typing import Any

from torch import nn

CAREFUL = "triton.mix_order_reduction"
"""PyTorch 2.10 fuses a norm's gradient with sums over tokens; where those sums are slices of one tensor (an adaptive
norm's shift and scale, one row for the whole batch) they are never written, and the gradients are whatever memory held
(pytorch#193061). The fusion is switched off wherever the compiler has it."""


def compile_network(module: nn.Module, **options: Any) -> None:
    """`module.compile(fullgraph=True, …)`: what is behind the module's call is compiled at its next use."""
    settings = dict(options.pop("options", None) or {})
    if "mode" not in options and _known(CAREFUL):
        settings.setdefault(CAREFUL, False)
    if settings:
        options["options"] = settings
    module.compile(**{"fullgraph": True, **options})


def _known(name: str) -> bool:
    """Whether this PyTorch's compiler has that setting."""
    import torch._inductor.config

    holder: Any = torch._inductor.config
    *path, last = name.split(".")
    for part in path:
        holder = getattr(holder, part, None)
    return hasattr(holder, last)
