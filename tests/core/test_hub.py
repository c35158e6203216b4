"""Without a network the Hub's cache is asked at once."""

from __future__ import annotations

import socket

import pytest
from huggingface_hub import constants

from scdd.core import hub


def test_the_hub_is_asked_where_something_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as here:
        address = f"http://127.0.0.1:{here.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        assert not hub.cached_only()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert hub.cached_only()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert hub.cached_only(), "nobody listens any more"
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    assert not hub.cached_only(), "a proxy may reach it"
