"""Texts to measure on: read from files or shards, and cut into the framed rows that a model knows from training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from scdd.core.errors import UserError
from scdd.data.corpus import discover, documents
from scdd.data.shards import INDEX, MemoryTokens, Shards, TokenStream, read_manifest
from scdd.data.tokenizer import TextTokenizer


@dataclass(frozen=True)
class Rows:
    """Framed sequences, and how many bytes of text they hold between their frames."""

    rows: list[list[int]]
    bytes: int
    name: str = ""
    """What people call the text."""

    def __len__(self) -> int:
        return len(self.rows)


def split_name(text: str) -> tuple[str, str]:
    """(Name, path) of `[NAME=]PATH`. Without a name, the path's last part, and what a prepared folder holds out."""
    name, equals, path = text.partition("=")
    if equals and name and path and not Path(text).exists():
        return name, path
    folder = Path(text)
    if not (folder / INDEX).is_file():
        return (text if text.startswith("hf:") else folder.name or text), text
    sources = read_manifest(folder).get("preparation", {}).get("sources", [])
    held = [source["name"] for source in sources if source.get("split") == "valid"]
    return f"{folder.resolve().name} ({', '.join(held) or 'validation'})", text


def read(paths: Sequence[str | Path], limit: int | None = None, field: str = "text") -> list[str]:
    """Documents of text files, JSON lines, folders and hf:NAME datasets; the first `limit` of them."""
    found = list(islice(documents(discover([str(path) for path in paths], field=field)), limit))
    if not found:
        raise UserError(f"{', '.join(map(str, paths))} holds no text: give a file with some.")
    return found


def open_stream(
    paths: Sequence[str | Path], tokenizer: TextTokenizer, field: str = "text", limit: int | None = None
) -> TokenStream:
    """A folder that `scdd prepare` wrote (its validation split), or any texts, tokenised now."""
    if len(paths) == 1 and (Path(paths[0]) / INDEX).is_file():
        shards = Shards(paths[0], "valid")
        shards.require(tokenizer)
        return shards
    return stream(tokenizer, read(paths, limit, field))


def stream(tokenizer: TextTokenizer, texts: Iterable[str]) -> TokenStream:
    """Texts one after the other, [EOS] between them."""
    return MemoryTokens(tokenizer.encode_batch(list(texts)), tokenizer.bos_id, tokenizer.eos_id)


def rows(
    source: TokenStream, tokenizer: TextTokenizer, length: int, limit: int | None = None, whole: bool = False
) -> Rows:
    """[BOS] + up to length − 2 tokens + [EOS], in order; the last row may be shorter unless `whole`."""
    inner = length - 2
    if inner < 1:
        raise UserError(f"A length of {length} leaves no room for text between [BOS] and [EOS]: choose more.")
    count = source.n_tokens // inner if whole else -(-source.n_tokens // inner)
    count = count if limit is None else min(limit, count)
    if count < 1:
        raise UserError(
            f"The text has {source.n_tokens} tokens, too few for a row of {length}: give more text."
        )
    stop = min(count * inner, source.n_tokens)
    tokens = source.read(0, stop).tolist()
    made = [
        [tokenizer.bos_id, *tokens[start : start + inner], tokenizer.eos_id]
        for start in range(0, stop, inner)
    ]
    return Rows(made, len(tokenizer.decode(tokens).encode()))
