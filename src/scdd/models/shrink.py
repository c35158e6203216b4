"""Smaller networks out of a larger one: some of its blocks, some of its ids. What is kept is kept as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from scdd.core.errors import UserError
from scdd.core.options import ALIGNMENT
from scdd.core.types import Vocab
from scdd.models.options import make_network

BLOCKS = "blocks."


def fewer_layers(
    description: Mapping[str, Any], weights: Mapping[str, Tensor], kept: Sequence[int]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(Description, weights) of the network with the blocks `kept`, in their order, renumbered from 0."""
    if description.get("kind", "dit") not in ("dit", "llama"):
        raise UserError(
            f"model.depth and model.layers choose blocks of a dit or a llama, and this network is of kind {description.get('kind')}: "
            "leave them out."
        )
    places = {old: new for new, old in enumerate(kept)}
    left: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        number, _, rest = name.removeprefix(BLOCKS).partition(".")
        if not name.startswith(BLOCKS) or not number.isdecimal():
            left[name] = tensor
        elif int(number) in places:
            left[f"{BLOCKS}{places[int(number)]}.{rest}"] = tensor
    return {**description, "depth": len(kept)}, left


def fewer_ids(
    description: Mapping[str, Any], weights: Mapping[str, Tensor], before: Vocab, after: Vocab, kept: Sequence[int]
) -> dict[str, Tensor]:
    """The weights with the rows of the ids `kept`, in that order: `after`'s ids, which were `before`'s.

    The tensors with a row for each id are those whose shapes follow the vocabulary; rows that fill up to the head's
    alignment are zero.
    """
    larger = Vocab(before.size + ALIGNMENT, 0)
    with torch.device("meta"):
        old, new, other = (make_network(description, vocab).state_dict() for vocab in (before, after, larger))
    ids = torch.tensor(kept)
    left = dict(weights)
    for name in (name for name in old if other[name].shape != old[name].shape):
        if name not in weights or not weights[name].dim() or len(weights[name]) < before.size:
            raise UserError(f"{name} is missing, or has no row for each of {before.size} ids: the weights are damaged.")
        rows = weights[name][ids]
        left[name] = torch.cat([rows, rows.new_zeros(len(new[name]) - len(ids), *rows.shape[1:])])
    return left
