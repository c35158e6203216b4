"""Portable checkpoints: read, write, fetch from the Hub, convert from and to the authors' formats."""

from scdd.bundle.convert import convert, load
from scdd.bundle.folder import (
    CARD,
    FILES,
    META,
    WEIGHTS,
    Bundle,
    locate,
    read,
    staged,
    vocabulary_hash,
    write,
)
from scdd.bundle.layouts import from_gidd, from_reference, to_gidd, to_reference, with_averages
from scdd.bundle.packed import KINDS, largest_change, pack, unpack
from scdd.bundle.unpickle import Inert, StoredTensor, read_checkpoint

__all__ = [
    "CARD",
    "FILES",
    "KINDS",
    "META",
    "WEIGHTS",
    "Bundle",
    "Inert",
    "StoredTensor",
    "convert",
    "from_gidd",
    "from_reference",
    "largest_change",
    "load",
    "locate",
    "pack",
    "read",
    "read_checkpoint",
    "staged",
    "to_gidd",
    "to_reference",
    "unpack",
    "vocabulary_hash",
    "with_averages",
    "write",
]
