"""Small blocks for Triton's interpreter, so that small rows still take several."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import pytest
import torch


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available() or find_spec("triton") is None:
        return
    for name in ("elbo.triton", "head.triton", "head.triton_draw", "update.triton", "swiglu.triton", "gelu.triton"):
        monkeypatch.setattr(import_module(f"scdd.ops.{name}"), "BLOCK", 128)
    monkeypatch.setattr(import_module("scdd.ops.norm.triton"), "_shares", lambda width: 6)
    monkeypatch.setattr(import_module("scdd.ops.gelu.triton"), "PROGRAMS", 6)
