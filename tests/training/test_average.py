"""The moving average, against its formula."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from scdd.training.optim import MovingAverage


def module(value: float = 1.0, dtype: torch.dtype = torch.float32) -> nn.Module:
    layer = nn.Linear(3, 2).to(dtype)
    nn.init.constant_(layer.weight, value)
    nn.init.constant_(layer.bias, -value)
    layer.register_buffer("steady", torch.tensor(7.0))
    return layer


def updated(average: MovingAverage, layer: nn.Module) -> None:
    average.update(dict(layer.named_parameters()), average.next_share(), torch.tensor(True))


def test_the_ramp_and_then_the_decay() -> None:
    layer, expected = module(1.0), 1.0
    average = MovingAverage(layer, decay=0.7)
    for n in range(1, 40):
        nn.init.constant_(layer.weight, float(n))
        updated(average, layer)
        d = min(0.7, (1 + n) / (10 + n))
        expected = d * expected + (1 - d) * n
        assert torch.allclose(average.shadow["weight"], torch.full((2, 3), expected))
    assert (1 + 39) / (10 + 39) > 0.7  # both branches were taken
    assert average.updates == 39


def test_the_shadow_of_bfloat16_weights_keeps_small_updates() -> None:
    layer = module(1.0, torch.bfloat16)
    average = MovingAverage(layer, decay=0.9999)
    average.updates = 10**6
    nn.init.constant_(layer.weight, 2.0)
    for _ in range(100):
        updated(average, layer)
    assert average.shadow["weight"].dtype == torch.float32
    assert average.shadow["weight"][0, 0].item() == pytest.approx(2 - 0.9999**100, abs=1e-5)


def test_swapping_in_and_out() -> None:
    layer = module(1.0)
    average = MovingAverage(layer)
    nn.init.constant_(layer.weight, 5.0)
    with contextlib.suppress(RuntimeError), average.swapped_in():
        assert (layer.weight == 1).all()
        raise RuntimeError("the weights come back even so")
    assert (layer.weight == 5).all()
    assert (average.shadow["weight"] == 1).all()


def test_frozen_parameters_have_no_average() -> None:
    layer = module()
    layer.bias.requires_grad_(False)
    assert set(MovingAverage(layer).shadow) == {"weight"}
