"""Where the tokens of byte-level tokenizers end in the text that they decode to."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

_SHOWN = (*range(33, 127), *range(161, 173), *range(174, 256))
_HIDDEN = tuple(byte for byte in range(256) if byte not in _SHOWN)
BYTES = {chr(byte): byte for byte in _SHOWN} | {chr(256 + n): byte for n, byte in enumerate(_HIDDEN)}
"""The byte that each character of a byte-level token stands for."""


def byte_ends(tokens: Iterable[str]) -> list[int]:
    """For each token the characters of the text up to its end, where a character that is not yet whole counts as one, U+FFFD."""
    reader = codecs.getincrementaldecoder("utf-8")("replace")
    ends, count = [], 0
    for token in tokens:
        count += len(reader.decode(_bytes(token)))
        ends.append(count + bool(reader.getstate()[0]))
    return ends


def _bytes(token: str) -> bytes:
    try:
        return bytes([BYTES[character] for character in token])
    except KeyError:  # a token that was added stands for itself
        return token.encode()
