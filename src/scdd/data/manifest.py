"""The manifest of a prepared folder, `index.json`: which shards there are, and what they were made with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scdd.core.errors import UserError
from scdd.core.files import TOKENIZER_LIMIT
from scdd.data.address import Address, Place, place
from scdd.data.files import read_json, write_atomically, write_json
from scdd.data.tokenizer import MOST_IDS, TextTokenizer

SCHEMA = 1
INDEX = "index.json"
TOKENIZER = "tokenizer.json"
CURE = "restore it, or prepare the data again"


@dataclass(frozen=True)
class ShardInfo:
    """One line of the manifest."""

    file: str
    documents: int
    tokens: int
    size: int
    blake2b: str


@dataclass
class SplitInfo:
    """What a split holds. `bytes` and `characters` count the text that was tokenised; `tokens` counts each [EOS]."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    characters: int = 0
    shards: list[ShardInfo] = field(default_factory=list)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SplitInfo:
        """The inverse of `asdict`; ValueError where a field is missing, unknown or no count."""
        try:
            made = cls(**{**value, "shards": [ShardInfo(**shard) for shard in value["shards"]]})
        except (TypeError, KeyError) as error:
            raise ValueError(f"a split has other fields: {error}") from error
        counts: list[Any] = [made.documents, made.tokens, made.bytes, made.characters]
        for shard in made.shards:
            counts += [shard.documents, shard.tokens, shard.size]
            if not isinstance(shard.file, str) or Path(shard.file).name != shard.file or "\0" in shard.file:
                raise ValueError(f"a shard's file is {shard.file!r:.60}, which does not lie beside it")
            if not isinstance(shard.blake2b, str):
                raise ValueError("a shard has no checksum")
        if not all(map(_is_count, counts)):
            raise ValueError("one of its counts is no whole number from 0 on")
        return made


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 48


def write_manifest(
    folder: Place, tokenizer: TextTokenizer, preparation: dict[str, Any], splits: dict[str, SplitInfo]
) -> None:
    """Write index.json, last of all: a folder that has one is complete."""
    value = {
        "format": "scdd-shards",
        "schema": SCHEMA,
        "tokenizer": {
            "file": TOKENIZER,
            "hash": tokenizer.hash,
            "vocab_size": tokenizer.size,
            "mask_id": tokenizer.mask_id,
            "bos_id": tokenizer.bos_id,
            "eos_id": tokenizer.eos_id,
        },
        "preparation": preparation,
        "splits": {name: asdict(info) for name, info in splits.items() if info.shards},
    }
    write_json(folder / INDEX, value)


def write_tokenizer(folder: Place, tokenizer: TextTokenizer) -> None:
    """Write tokenizer.json beside the shards."""
    write_atomically(folder / TOKENIZER, (tokenizer.to_str() + "\n").encode())


def read_tokenizer(folder: Place) -> TextTokenizer:
    """The tokenizer.json beside the shards."""
    file = folder / TOKENIZER
    if not isinstance(file, Address):
        return TextTokenizer.from_file(file)
    try:
        return TextTokenizer.completed(file.read(TOKENIZER_LIMIT).decode("utf-8"), str(file))
    except (FileNotFoundError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({error}): {CURE}.") from error


def read_manifest(folder: str | Place) -> dict[str, Any]:
    """The contents of index.json; refuses a folder that has none or another schema."""
    folder = place(folder)
    if not (folder / INDEX).is_file():
        begun = (folder / "progress.json").exists()
        cure = "its preparation was interrupted, run the same one again" if begun else "prepare it first"
        raise UserError(f"{folder} holds no prepared data, {INDEX} is missing: {cure} (`scdd prepare`).")
    value = read_json(folder / INDEX)
    if not isinstance(value, dict) or value.get("format") != "scdd-shards" or value.get("schema") != SCHEMA:
        raise UserError(
            f"{folder / INDEX} is not a manifest of schema {SCHEMA}: prepare the data again with this version."
        )
    try:
        _check_manifest(value)
    except ValueError as error:
        raise UserError(f"{folder / INDEX} is damaged ({error}): {CURE}.") from error
    return value


def _check_manifest(value: dict[str, Any]) -> None:
    """ValueError where a field that something is built from is missing, or not what `write_manifest` writes."""
    about, splits, made = value.get("tokenizer"), value.get("splits"), value.get("preparation")
    if not isinstance(about, dict) or not isinstance(about.get("hash"), str):
        raise ValueError("it does not name its tokenizer")
    size: Any = about.get("vocab_size")
    if not _is_count(size) or not 3 <= size <= MOST_IDS:
        raise ValueError("its tokenizer's vocab_size is no number of ids")
    for name in ("mask_id", "bos_id", "eos_id"):
        if not _is_count(about.get(name)) or about[name] >= size:
            raise ValueError(f"its tokenizer's {name} is none of the ids")
    if not isinstance(splits, dict) or not all(isinstance(split, dict) for split in splits.values()):
        raise ValueError("it has no splits")
    for split in splits.values():
        SplitInfo.from_json(split)
    sources = made.get("sources", []) if isinstance(made, dict) else None
    if not isinstance(sources, list) or not all(
        isinstance(s, dict) and isinstance(s.get("name"), str) for s in sources
    ):
        raise ValueError("it does not say what it was prepared from")
