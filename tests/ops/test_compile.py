"""The Triton kernels pass through the real compiler, GPU or not."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest


@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
def test_every_kernel_compiles_for_hopper() -> None:
    """In a process of its own: this one may have Triton in its interpreter."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    script = os.path.join(os.path.dirname(__file__), "compile_kernels.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
