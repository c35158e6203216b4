"""The teacher that a recipe names: read, checked, frozen, and put where the run is."""

from __future__ import annotations

import torch

from scdd.bundle import folder as bundle
from scdd.bundle.folder import Bundle
from scdd.core.errors import UserError, at
from scdd.data.tokenizer import TextTokenizer
from scdd.models.compiled import compile_network
from scdd.models.foreign import GIVEN
from scdd.models.network import Network, unfilled
from scdd.objectives.options import TeacherOptions
from scdd.objectives.teacher import Distillation


def distillation(
    options: TeacherOptions, tokenizer: TextTokenizer, device: torch.device, dtype: torch.dtype, compile: bool
) -> Distillation:
    """The teacher in `dtype`, compiled where the run is; refused unless it reads both sides with the run's tokenizer."""
    with at("objective.teacher.source"):
        found = bundle.read(options.source)
        network = _network(options.source, found, tokenizer).to(device=device, dtype=dtype)
    if compile and device.type == "cuda":
        compile_network(network, fullgraph=network.whole_graph)
    file = found.folder / bundle.WEIGHTS if found.folder.is_dir() else found.folder
    return Distillation(network, options, bundle.sha256_of(file) if file.is_file() else "")


def _network(source: str, found: Bundle, tokenizer: TextTokenizer) -> Network:
    try:
        found.check(tokenizer.vocab, tokenizer.to_str() if found.tokenizer is not None else None)
    except UserError as error:
        raise UserError(
            f"{source} has another tokenizer than the data, so that its predictions mean other tokens: prepare the data with its "
            "own, or name another teacher."
        ) from error
    description = found.network
    if description is None or description.get("kind") == GIVEN or (found.hub and description.get("kind") == "import"):
        raise UserError(f"{source} does not describe its network, or by code that is not run: name another teacher.")
    try:
        network = unfilled(description, found.vocab, len(found.network_weights))
    except UserError as error:
        raise UserError(f"{source}: {str(error).rstrip('.')}; {bundle.CURE}.") from error
    if network.causal:
        raise UserError(f"{source} reads from left to right, and a teacher must see both sides: adapt it first.")
    try:
        network.load_weights(found.network_weights)
    except RuntimeError as error:
        raise UserError(f"{source}'s weights do not fit its network: {bundle.CURE}.") from error
    return network.eval().requires_grad_(False)
