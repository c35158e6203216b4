"""A network that trains with its blocks' products in FP8 (`ops.fp8`): the same parameters under the same names, float32 as ever."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from scdd.core.errors import UserError
from scdd.models.blocks import Linear
from scdd.models.network import Network
from scdd.ops import fp8


class NarrowLinear(Linear):
    """A linear map in FP8 while gradients are wanted. Without them, validating and sampling, it is what a checkpoint of it will be."""

    wgrad: ClassVar[fp8.Wgrad] = "fp8"

    def forward(self, x: Tensor) -> Tensor:
        """W x + b, in x's dtype."""
        return self.product(x, self.weight, self.bias)

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See `Linear.product`; batches of odd sizes stay as they are."""
        if torch.is_grad_enabled() and fp8.fits(x, weight):
            return fp8.linear(x, weight, bias, self.wgrad)
        return F.linear(x, weight, bias)


def to_fp8(network: Network) -> int:
    """Replace the maps from activations to activations whose sizes the products take, in place; how many there were."""
    paths = [name.removesuffix(".weight") for name in network.hidden_matrices()]
    maps = [(path, network.get_submodule(path)) for path in paths]
    taken = [(path, each) for path, each in maps if type(each) is Linear and _even(each)]
    for path, linear in taken:
        with torch.device("meta"):
            narrow = NarrowLinear(linear.in_features, linear.out_features, bias=linear.bias is not None)
        narrow.weight, narrow.bias = linear.weight, linear.bias
        network.set_submodule(path, narrow)
    return len(taken)


def set_fp8(network: Network, device: torch.device) -> None:
    """`to_fp8`; refuses what cannot be."""
    if not fp8.supported(device):
        raise UserError(
            f"precision fp8 needs a GPU that multiplies FP8 (NVIDIA's, 8.9 or later) and Triton, and the device is {device}: use bf16.",
            "precision",
        )
    if not to_fp8(network):
        raise UserError(
            f"precision fp8 is for networks of kind dit or llama whose widths are multiples of {fp8.EVEN}, and this one "
            f"({type(network).__name__}) has no such matrix: use bf16.",
            "precision",
        )


def _even(linear: Linear) -> bool:
    return not (linear.in_features % fp8.EVEN or linear.out_features % fp8.EVEN)
