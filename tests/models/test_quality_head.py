"""PRISM's quality head."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from scdd.models.heads import QualityHead


def test_it_starts_undecided_and_learns_a_rule() -> None:
    generator = torch.Generator().manual_seed(0)
    head = QualityHead(16, generator=generator)
    hidden = torch.randn(4, 32, 16, generator=generator)
    right = (hidden[..., 0] * hidden[..., 1] > 0).float()  # no linear head could
    assert head(hidden).shape == (4, 32)
    assert (head(hidden) == 0).all()
    optimiser = torch.optim.Adam(head.parameters(), lr=0.03)
    for _ in range(200):
        optimiser.zero_grad()
        F.binary_cross_entropy_with_logits(head(hidden), right).backward()
        optimiser.step()
    assert ((head(hidden) > 0) == right.bool()).float().mean() > 0.95


def test_its_logits_are_float32_under_autocast() -> None:
    head = QualityHead(8, inner=4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert head(torch.randn(2, 3, 8)).dtype == torch.float32
