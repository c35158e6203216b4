"""One Ray for all tests of the room: its start takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """The cluster that RAY_ADDRESS names, or a new one of this machine's. This process has joined; others may, there."""
    pytest.importorskip("ray", reason="needs ray: pip install -e '.[ray]'")
    from scdd.cluster.connect import LOCAL, connected

    with connected(os.environ.get("RAY_ADDRESS", LOCAL), cores=2) as ray:
        yield ray.get_runtime_context().gcs_address
