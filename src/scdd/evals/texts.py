"""Texts to measure on: read from files or shards, and cut into the framed rows that a model knows from training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from scdd.core.errors import UserError
from scdd.data.corpus import discover, documents
from scdd.data.shards import MemoryTokens, Shards, TokenStream
from scdd.data.tokenizer import TextTokenizer


@dataclass(frozen=True)
class Rows:
    """Framed sequences, and how many bytes of text they hold between their frames."""

    rows: list[list[int]]
    bytes: int

    def __len__(self) -> int:
        return len(self.rows)


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
    if len(paths) == 1 and (Path(paths[0]) / "index.json").is_file():
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
