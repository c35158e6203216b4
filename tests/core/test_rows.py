from __future__ import annotations

import torch

from scdd.core import CLEAN, ElboCoefficients, Levels


def test_times_grow_axes_until_they_meet_positions() -> None:
    levels = Levels(*(torch.arange(3.0) for _ in range(6)))
    assert levels.like(torch.zeros(3, 5)).gamma.shape == (3, 1)
    assert levels.like(torch.zeros(3, 5, 7)).drho.shape == (3, 1, 1)
    assert levels.like(torch.zeros(3)).gamma.shape == (3,)
    assert CLEAN.like(torch.zeros(3, 5)).rho.shape == (1, 1)


def test_clean_levels() -> None:
    assert [float(field) for field in CLEAN] == [1, 1, 0, 0, 0, 0]


def test_scaled_rows_scale_every_weight_and_nothing_else() -> None:
    rows = ElboCoefficients(*(torch.tensor(float(i + 1)) for i in range(7)))
    assert [float(field) for field in rows.scaled(10.0)] == [1, 2, 30, 40, 50, 60, 70]


def test_flattened_rows_follow_the_positions() -> None:
    rows = ElboCoefficients(*(torch.tensor([[1.0], [2.0]]) for _ in range(6)), torch.arange(6.0).reshape(2, 3))
    flat = rows.flatten(torch.Size((2, 3)))
    assert flat.log_r.tolist() == [1, 1, 1, 2, 2, 2]
    assert flat.w_e.tolist() == [0, 1, 2, 3, 4, 5]
