"""A tokenizer and checkpoints small enough to build in a moment, for tests of the front door."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from pathlib import Path

import torch

from scdd.bundle.folder import Identity, write
from scdd.data.tokenizer import TextTokenizer
from scdd.models.dit import DiT
from scdd.models.heads import QualityHead
from scdd.models.options import DiTConfig
from scdd.recipe import load as recipe

TEXT = "The river runs to the sea. The quick brown fox jumps over the lazy dog, and the falcon flies over the river. "
RECIPE = """
name: tiny
data: {kind: text, length: 40, vocab_size: 300}
model: {kind: dit, size: custom, depth: 2, width: 32, heads: 2}
process: {kind: scdd}
training: {steps: 1, batch_size: 1}
sampling: {steps: 6}
"""
MASKED = ("process.kind=mdlm", "process.schedule.kind=masked")


@cache
def tokenizer() -> TextTokenizer:
    return TextTokenizer.train([TEXT * 20], 300)


def network(causal: bool = False, seed: int = 0) -> DiT:
    generator = torch.Generator().manual_seed(seed)
    model = DiT(DiTConfig(2, 32, 2, causal=causal), tokenizer().vocab, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.15, generator=generator)
        model.norm.weight.fill_(1.0)
    return model


def checkpoint(folder: Path, *overrides: str, causal: bool = False, quality: bool = False) -> Path:
    """A bundle with random weights; `overrides` change its recipe."""
    model, spec = network(causal), recipe.loads(RECIPE, overrides=overrides)
    weights = dict(model.state_dict())
    if quality:
        head = QualityHead(32, generator=torch.Generator().manual_seed(3))
        weights |= {f"quality.{name}": value for name, value in head.state_dict().items()}
    identity = Identity(
        recipe=recipe.dumps(spec), vocab=tokenizer().vocab, tokenizer=tokenizer().to_str(), network=asdict(model.config)
    )
    return write(folder, identity, weights)
