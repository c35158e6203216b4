"""The moving average, against its formula."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from scdd.core.errors import UserError
from scdd.models.ema import EMA


def module(value: float = 1.0, dtype: torch.dtype = torch.float32) -> nn.Module:
    layer = nn.Linear(3, 2).to(dtype)
    nn.init.constant_(layer.weight, value)
    nn.init.constant_(layer.bias, -value)
    layer.register_buffer("steady", torch.tensor(7.0))
    return layer


def test_the_ramp_and_then_the_decay() -> None:
    layer, expected = module(1.0), 1.0
    ema = EMA(layer, decay=0.7)
    for n in range(1, 40):
        nn.init.constant_(layer.weight, float(n))
        ema.update()
        d = min(0.7, (1 + n) / (10 + n))
        expected = d * expected + (1 - d) * n
        assert torch.allclose(ema.shadow["weight"], torch.full((2, 3), expected))
    assert (1 + 39) / (10 + 39) > 0.7  # both branches were taken
    assert ema.updates == 39


def test_the_shadow_of_bfloat16_weights_keeps_small_updates() -> None:
    layer = module(1.0, torch.bfloat16)
    ema = EMA(layer, decay=0.9999)
    ema.updates = 10**6
    nn.init.constant_(layer.weight, 2.0)
    for _ in range(100):
        ema.update()
    assert ema.shadow["weight"].dtype == torch.float32
    assert ema.shadow["weight"][0, 0].item() == pytest.approx(2 - 0.9999**100, abs=1e-5)


def test_swapping_in_and_out() -> None:
    layer = module(1.0)
    ema = EMA(layer)
    nn.init.constant_(layer.weight, 5.0)
    with contextlib.suppress(RuntimeError), ema.swap():
        assert (layer.weight == 1).all()
        raise RuntimeError("the weights come back even so")
    assert (layer.weight == 5).all()
    assert (ema.shadow["weight"] == 1).all()


def test_copying_and_the_state_for_a_bundle() -> None:
    layer, other = module(1.0), module(9.0)
    ema = EMA(layer)
    nn.init.constant_(layer.weight, 5.0)
    ema.copy_to(other)
    assert (other.weight == 1).all()
    weights = ema.weights(layer)
    assert set(weights) == {"weight", "bias", "steady"}
    assert (weights["weight"] == 1).all()
    with pytest.raises(UserError, match="bias"):
        ema.copy_to(nn.Linear(3, 2, bias=False))


def test_frozen_parameters_have_no_average() -> None:
    layer = module()
    layer.bias.requires_grad_(False)
    assert set(EMA(layer).shadow) == {"weight"}


def test_the_state_round_trips() -> None:
    layer = module(1.0)
    ema = EMA(layer, decay=0.5)
    nn.init.constant_(layer.weight, 3.0)
    ema.update()
    other = EMA(module(0.0), decay=0.9)
    other.load_state_dict(ema.state_dict())
    assert (other.decay, other.updates) == (0.5, 1)
    assert torch.equal(other.shadow["weight"], ema.shadow["weight"])
    with pytest.raises(UserError, match="same recipe"):
        EMA(nn.Linear(3, 2, bias=False)).load_state_dict(ema.state_dict())


def test_a_decay_out_of_range_is_refused() -> None:
    with pytest.raises(UserError, match="from 0 to 1"):
        EMA(module(), decay=1.5)
