"""A network whose large products are in 8 bits (`ops.int8`): the maps of its blocks, and its head.

All between them stays float32, as do embedding, norms, attention and softmax. It is for use on a CPU, not for training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from scdd.core.errors import UserError
from scdd.models.blocks import Linear
from scdd.models.network import Network
from scdd.ops import int8

NARROWEST = 16  # inputs of a map that is worth 8 bits


class EightBitLinear(nn.Module):
    """A linear map that is used and not trained."""

    scale: Tensor

    def __init__(self, matrix: int8.Matrix, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(matrix.codes, requires_grad=False)
        self.register_buffer("scale", matrix.scale)
        self.bias = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """W x + b, float32."""
        return int8.linear(x, int8.Matrix(self.weight, self.scale), self.bias)

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        """gate · (W x + b), gate [R, 1, D]: one row for all is folded into scales and bias."""
        if gate.shape[0] != 1:
            y: Tensor = self(x)
            return gate.to(y.dtype) * y
        row = gate.reshape(-1)
        bias = None if self.bias is None else self.bias * row
        return int8.linear(x, int8.Matrix(self.weight, self.scale * row), bias)


def set_eight_bits(network: nn.Module, wanted: bool, device: torch.device) -> None:
    """Bring a network into 8 bits or out of them, where it is not; refuses what cannot be."""
    if wanted and device.type != "cpu":
        raise UserError(f"dtype int8 is for CPUs, and the device is {device}: use bfloat16 there.", "dtype")
    if not isinstance(network, Network) or not network.takes_eight_bits:
        raise UserError(
            f"dtype int8 is for the networks dit and llama, and this one is a {type(network).__name__}: use float32.",
            "dtype",
        )
    if wanted and not int8.supported():
        raise UserError(
            "dtype int8 needs a torch and a CPU that multiply 8-bit matrices exactly (VNNI or AMX), and these do not: use float32.",
            "dtype",
        )
    if wanted != (network.eight_bit_head is not None):
        network.to(device="cpu", dtype=torch.float32)
        (to_eight_bits if wanted else to_floats)(network)


def to_eight_bits(network: Network) -> None:
    """Replace the maps from activations to activations, and the head, in place; the maps' float32 weights are gone then."""
    for path, linear in _maps(network):
        _put(network, path, EightBitLinear(int8.rounded(linear.weight), linear.bias))
    _set_head(network, int8.rounded(network.head.weight))


def load_eight_bits(network: Network, weights: Mapping[str, Tensor], matrices: Mapping[str, int8.Matrix]) -> None:
    """What `load_weights` with all weights and then `to_eight_bits` do, for matrices that were stored in 8 bits: those are used as
    they are, never widened only to be rounded again. RuntimeError where they do not fit."""
    known = {name: int8.stored(matrix) for name, matrix in matrices.items()}
    given = dict(weights)
    head = next(name for name, weight in network.named_parameters() if weight is network.head.weight)
    replaced = set()
    for path, linear in _maps(network):
        matrix = known.get(f"{path}.weight")
        if matrix is not None:
            _put(network, path, EightBitLinear(matrix, linear.bias))
            given |= {f"{path}.weight": matrix.codes, f"{path}.scale": matrix.scale}
            replaced.add(f"{path}.weight")
    for name in matrices.keys() - replaced:
        given[name] = int8.widened(matrices[name])
    network.load_weights(given)
    for path, linear in _maps(network):  # those that were stored otherwise
        _put(network, path, EightBitLinear(int8.rounded(linear.weight), linear.bias))
    _set_head(network, known[head] if head in known else int8.rounded(network.head.weight))


def _maps(network: Network) -> list[tuple[str, nn.Linear]]:
    """The maps from activations to activations that are worth 8 bits and are not in them, by their paths."""
    paths = [name.removesuffix(".weight") for name in network.hidden_matrices()]
    found = [(path, network.get_submodule(path)) for path in paths]
    return [(path, each) for path, each in found if isinstance(each, nn.Linear) and each.in_features >= NARROWEST]


def _put(network: nn.Module, path: str, module: nn.Module) -> None:
    place, _, last = path.rpartition(".")
    setattr(network.get_submodule(place), last, module)


def _set_head(network: Network, matrix: int8.Matrix) -> None:
    head = network.head
    bias = None if head.bias is None else head.bias.detach().float()
    network.eight_bit_head = replace(head, weight=matrix.codes, scale=matrix.scale, bias=bias)


def to_floats(network: Network) -> None:
    """The way back: float32 maps of what the 8 bits say, in place."""
    for path, module in list(network.named_modules()):
        if isinstance(module, EightBitLinear):
            rows, columns = module.weight.shape
            linear = Linear(columns, rows, bias=module.bias is not None)
            linear.weight = nn.Parameter(int8.widened(int8.Matrix(module.weight, module.scale)), requires_grad=False)
            if module.bias is not None:
                linear.bias = module.bias
            _put(network, path, linear.eval())
    network.eight_bit_head = None
