"""Pairs to fine-tune on: a prompt, which is given, and a response, which is learnt; or chats with several of both.

In memory, as tokens with a flag each. Rows are [BOS] prompt response [EOS] …, packed or one to a row, every pair a document
of its own; padding has the document −1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scdd.core.errors import UserError
from scdd.data import corpus
from scdd.data.chat import ASSISTANT, ChatTemplate, check_messages
from scdd.data.loader import Permutation
from scdd.data.pack import Flags, Packing, Tokens
from scdd.data.tokenizer import TextTokenizer

OPEN_ROWS = 64  # that a pair may still be put into


class Pair(NamedTuple):
    """One example in pieces: (text or rendered text, whether it is learnt)."""

    pieces: tuple[tuple[str, bool], ...]
    chat: bool  # rendered by a template, whose special tokens are to be recognised


def read_pairs(path: str | Path, template: ChatTemplate | None) -> Iterator[Pair]:
    """Every pair of JSON lines with `prompt` and `response`, or with `messages`; a folder's files in order."""
    sources = corpus.discover([path])
    for source in sources:
        if source.kind != "json":
            raise UserError(
                f"{source.shown} holds no JSON lines: give files ending in .jsonl, maybe with .gz, .xz or .zst."
            )
    for batch in corpus.batches(sources):
        for record in batch.records:
            yield _pair(record.raw, f"{sources[batch.source].shown}, line {record.line}", template)


def _pair(raw: bytes, place: str, template: ChatTemplate | None) -> Pair:
    try:
        value = json.loads(raw)
        if not isinstance(value, dict):
            raise ValueError(f"it holds a {type(value).__name__}")
        raw.decode("utf-8")
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not a JSON object in UTF-8 ({error}); mend or remove the line.") from error
    if "messages" in value:
        return _chat(value["messages"], place, template)
    texts = value.get("prompt"), value.get("response")
    if not all(isinstance(text, str) for text in texts):
        has = ", ".join(map(str, value)) or "nothing"
        raise UserError(
            f"{place}: no text in fields prompt and response, and no messages (it has: {has}); name them so."
        )
    return Pair(((str(texts[0]), False), (str(texts[1]), True)), chat=False)


def _chat(value: Any, place: str, template: ChatTemplate | None) -> Pair:
    try:
        messages = check_messages(value)
    except ValueError as error:
        raise UserError(f"{place}: {error}; mend or remove the line.") from error
    if template is None:
        raise UserError(
            f"chat_template is missing, and {place} holds messages: name a file with the model's template.",
            "chat_template",
        )
    if not any(message["role"] == ASSISTANT for message in messages):
        raise UserError(f"{place}: a chat in which the role {ASSISTANT} says nothing; mend or remove the line.")
    try:
        return Pair(tuple(template.turns(messages)), chat=True)
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')} (at {place}).", error.option) from error


@dataclass
class Pairs:
    """Encoded pairs, one after the other: tokens, whether each is learnt, and where each pair ends."""

    tokens: NDArray[np.int32]
    flags: Flags
    ends: NDArray[np.int64]
    eos_id: int
    cut: int = 0  # pairs whose prompt lost its beginning
    skipped: int = 0  # pairs left out: a response that does not fit, or none

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Tokens of each pair."""
        return np.diff(self.ends, prepend=0)


def encode_pairs(
    pairs: Iterable[Pair], tokenizer: TextTokenizer, template: ChatTemplate | None, length: int, fill: int
) -> Pairs:
    """[BOS] prompt response [EOS] … of each pair, at most `length` tokens.

    [EOS], which is learnt, fills the response up to a multiple of `fill` tokens, or to the row's end. A prompt that is too
    long loses its beginning; a pair whose response leaves no room for any of it, or is empty, is left out.
    """
    tokens: list[NDArray[np.int32]] = []
    flags: list[Flags] = []
    cut = skipped = 0
    for pair in pairs:
        encode = template.encode if pair.chat and template is not None else tokenizer.encode
        pieces = [(encode(text) if text else [], learnt) for text, learnt in pair.pieces]
        ids = [i for piece, _ in pieces for i in piece]
        learnt = [flag for piece, flag in pieces for _ in piece]
        if ids and ids[0] == tokenizer.bos_id:  # a template's own
            ids, learnt = ids[1:], learnt[1:]
        given = learnt.index(True) if True in learnt else -1
        excess = len(ids) + 2 - length
        if given < 0 or 0 < excess >= given:
            skipped += 1
            continue
        if excess > 0:
            cut += 1
            ids, learnt = ids[excess:], learnt[excess:]
        last = len(pieces[-1][0]) + 1
        ends = min(1 + -last % fill, length - 1 - len(ids))
        tokens.append(np.array([tokenizer.bos_id, *ids, *[tokenizer.eos_id] * ends], dtype=np.int32))
        flags.append(np.array([False, *learnt, *[True] * ends], dtype=np.bool_))
    sizes = np.array([len(each) for each in tokens], dtype=np.int64)
    flat = np.concatenate([np.empty(0, np.int32), *tokens]), np.concatenate([np.empty(0, np.bool_), *flags])
    return Pairs(flat[0], flat[1], np.cumsum(sizes), tokenizer.eos_id, cut, skipped)


def split_pairs(pairs: Sequence[Pair], share: float) -> tuple[list[Pair], list[Pair]]:
    """(validation, training), as texts are split."""
    if len(pairs) < 2:
        return [], list(pairs)
    held = min(max(1, round(len(pairs) * share)), len(pairs) - 1)
    chosen = set(Permutation(len(pairs), 0)(np.arange(held)).tolist())
    return [pairs[i] for i in sorted(chosen)], [pair for i, pair in enumerate(pairs) if i not in chosen]


@dataclass
class PairBlocks:
    """Rows of L tokens with one pair each, or as many as fit."""

    pairs: Pairs
    length: int
    pack: bool
    packing: ClassVar[Packing] = "pairs"
    _members: NDArray[np.int64] = field(init=False, repr=False)  # pairs, row by row
    _starts: NDArray[np.int64] = field(init=False, repr=False)  # where each row's members begin, and the end

    def __post_init__(self) -> None:
        if not len(self.pairs):
            raise UserError(
                f"no pair fits into {self.length} tokens, or no response is there to learn: choose a larger length, or "
                "other pairs.",
                "length",
            )
        rows = _packed(self.pairs.sizes.tolist(), self.length) if self.pack else [[i] for i in range(len(self.pairs))]
        self._members = np.array([i for row in rows for i in row], dtype=np.int64)
        self._starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def take(self, indices: Tokens) -> tuple[Tokens, Tokens]:
        """Tokens [n, L], [EOS] where there is none, and the number of each one's pair in its row, −1 for padding."""
        tokens = np.full((len(indices), self.length), self.pairs.eos_id, dtype=np.int64)
        documents = np.full_like(tokens, -1)
        for row, owner, index in zip(tokens, documents, indices.tolist(), strict=True):
            for number, (place, source) in enumerate(self._places(index)):
                row[place] = self.pairs.tokens[source]
                owner[place] = number
        return tokens, documents

    def learnt(self, indices: Tokens) -> Flags:
        """True at the tokens [n, L] of responses."""
        flags = np.zeros((len(indices), self.length), dtype=np.bool_)
        for row, index in zip(flags, indices.tolist(), strict=True):
            for place, source in self._places(index):
                row[place] = self.pairs.flags[source]
        return flags

    def _places(self, index: int) -> Iterator[tuple[slice, slice]]:
        """Where each pair of a row stands in it, and where it comes from."""
        at = 0
        for pair in self._members[self._starts[index] : self._starts[index + 1]].tolist():
            stop = int(self.pairs.ends[pair])
            start = int(self.pairs.ends[pair - 1]) if pair else 0
            yield slice(at, at + stop - start), slice(start, stop)
            at += stop - start


def _packed(sizes: list[int], length: int) -> list[list[int]]:
    """Rows of pairs that fit: each goes to the first row with room, among the last ones that are open."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (row, tokens left), oldest first
    for pair, size in enumerate(sizes):
        for place, (row, left) in enumerate(room):
            if size <= left:
                rows[row].append(pair)
                room[place] = row, left - size
                break
        else:
            rows.append([pair])
            room = [*room[-(OPEN_ROWS - 1) :], (len(rows) - 1, length - size)]
    return rows
