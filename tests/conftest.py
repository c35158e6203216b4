"""Skips with a reason what this machine cannot run, and keeps Hypothesis quick and repeatable."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings


def _interpret_triton() -> None:
    """Kernels run in Triton's interpreter where there is no GPU; it must be said before Triton is imported."""
    if _without_gpu() is not None:
        os.environ.setdefault("TRITON_INTERPRET", "1")


settings.register_profile("default", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def _without_gpu() -> str | None:
    if find_spec("torch") is None:
        return "torch is not installed"
    import torch

    return None if torch.cuda.is_available() else "needs a CUDA device, and torch sees none"


def _without_data() -> str | None:
    folder = os.environ.get("SCDD_DATA")
    if not folder:
        return "needs real data: set SCDD_DATA to its folder"
    return None if Path(folder).is_dir() else f"SCDD_DATA names {folder}, which is not a folder"


def pytest_configure() -> None:
    _interpret_triton()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes are named by their length: content may hold a time of day, and two test processes must agree on names."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for name, lack in (("gpu", _without_gpu), ("data", _without_data)):
        marked = [item for item in items if item.get_closest_marker(name)]
        reason = lack() if marked else None
        for item in marked if reason else ():
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def data_folder() -> Path:
    """The folder of real data; for tests marked `data`."""
    return Path(os.environ["SCDD_DATA"])
