"""Whether the Hugging Face Hub can be reached at all.

Its library asks six times before it looks at its cache, and transformers does so twice: without a network that is most of a minute
for what lies on the disk, or for saying that it does not.
"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

from scdd.core.errors import reason

PATIENCE = 5.0  # seconds


def why(error: Exception, cached: bool) -> str:
    """Why the Hub did not give something, in some words; `cached`: only its cache was asked."""
    return "it cannot be reached, and the cache does not have it" if cached else reason(error)


def cached_only() -> bool:
    """Whether files can come from the cache alone. Behind a proxy nobody here can tell, so the Hub is asked."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return True
    if getproxies():
        return False
    place = urlsplit(constants.ENDPOINT)
    port = place.port or (80 if place.scheme == "http" else 443)
    try:
        socket.create_connection((place.hostname or "", port), PATIENCE).close()
    except OSError:
        return True
    return False
