"""LoRA (Hu et al., 2021) through peft: W + (alpha / rank) · B A, of which only A and B are trained.

The network that is published has the sum as its weights, under its usual names; what a run needs to go on is the frozen
weights and the two factors, as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from scdd.core.errors import UserError, missing_extra
from scdd.models.network import Network
from scdd.training.options import LoraOptions

NAME = "default"  # of the one adapter
BASE, DOWN, UP = ".base_layer.", f".lora_A.{NAME}.weight", f".lora_B.{NAME}.weight"


def adapt(network: Network, options: LoraOptions, generator: torch.Generator) -> None:
    """Freeze the network and put adapters beside its matrices, in place; they start as no change at all.

    A is drawn from the generator, on the CPU: every rank draws the same.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UserError(missing_extra("lora needs the peft package", "lora"), "lora") from error
    names = _targets(network, options)
    network.requires_grad_(False)
    config = LoraConfig(r=options.rank, lora_alpha=cast(int, options.alpha), target_modules=names)
    inject_adapter_in_model(config, cast(Any, network), adapter_name=NAME)
    for name in names:
        layer: Any = network.get_submodule(name)
        down, up = layer.lora_A[NAME].weight, layer.lora_B[NAME].weight
        bound = 1 / math.sqrt(down.shape[1])  # PyTorch's own default for a linear map, and peft's
        with torch.no_grad():
            down.copy_(torch.empty(down.shape).uniform_(-bound, bound, generator=generator))
            up.zero_()


def _targets(network: Network, options: LoraOptions) -> list[str]:
    """The linear layers to adapt, by their whole names."""
    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    own = {name.removesuffix(".weight") for name in network.hidden_matrices()}
    offered = [name for name in linear if name in own] or linear
    if not offered:
        raise UserError("lora adapts linear layers, and this network has none: train it as a whole.", "lora")
    if options.targets is None:
        return offered
    for target in options.targets:
        if not any(_matches(name, target) for name in offered):
            known = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in offered))
            raise UserError(f"lora.targets names {target}, which is no layer to adapt here: choose of {known}.", "lora")
    return [name for name in offered if any(_matches(name, target) for target in options.targets)]


def _matches(name: str, target: str) -> bool:
    """Whether a layer's name is the target or ends in it."""
    return f".{name}".endswith(f".{target}")


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """The names of the network that an adapted one stands for, and under which name each is found in it."""
    return {name.replace(BASE, "."): name for name in names if not name.endswith((DOWN, UP))}


def merged(name: str, read: Callable[[str], Tensor], options: LoraOptions) -> Tensor:
    """One of the tensors that `plain_names` lists, as the network without adapters has it; `read` gives the adapted one's."""
    value = read(name)
    stem, base, kind = name.rpartition(BASE)
    if not base or kind != "weight":
        return value
    change = read(stem + UP).float() @ read(stem + DOWN).float()
    return change.mul_(options.scale).add_(value.float()).to(value.dtype)
