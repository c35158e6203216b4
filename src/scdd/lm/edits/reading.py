"""What the model says of masked places of a text: many questions, few evaluations.

Rows of one length go through the network together. All of them belong to one text, so that what a text is answered does not
depend on who else is being read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from scdd.lm.run import Engine
from scdd.ops.common import compute_weights, raw_logits

TIME = 0.1  # told to networks that want a time: one token in ten is unknown
TOKENS = 2048  # that go through the network together


class Query(NamedTuple):
    """A row of tokens with masks, one of its places, and the tokens whose probability there is wanted."""

    row: tuple[int, ...]
    place: int
    wanted: tuple[int, ...]
    top: int = 0
    """So many of the likeliest tokens as well."""


class Answer(NamedTuple):
    """log x_θ of the wanted tokens, and the likeliest ones."""

    log_p: tuple[float, ...]
    top: tuple[tuple[int, float], ...] = ()


class Reader:
    """A model that is asked about masked places; it counts its evaluations."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.nfe = engine, 0
        self._tokens: dict[str, tuple[int, ...]] = {}

    @property
    def mask(self) -> int:
        """The mask's id."""
        return self.engine.tokenizer.mask_id

    def tokens(self, piece: str) -> tuple[int, ...]:
        """Tokens of a word with the white space before it."""
        if piece not in self._tokens:
            self._tokens[piece] = tuple(self.engine.tokenizer.encode(piece))
        return self._tokens[piece]

    def learn(self, pieces: Sequence[str]) -> None:
        """Cut many words at once, which is faster."""
        new = [piece for piece in dict.fromkeys(pieces) if piece not in self._tokens]
        self._tokens |= dict(zip(new, map(tuple, self.engine.tokenizer.encode_batch(new)), strict=True))

    @torch.no_grad()
    def ask(self, queries: Sequence[Query]) -> list[Answer]:
        """The answers, in the order of the questions; equal rows are evaluated once."""
        by_row: dict[tuple[int, ...], list[int]] = {}
        for i, query in enumerate(queries):
            by_row.setdefault(query.row, []).append(i)
        rows = sorted(by_row, key=lambda row: (len(row), row))
        answers: list[Answer] = [Answer(())] * len(queries)
        start = 0
        while start < len(rows):
            length = len(rows[start])
            most = max(1, TOKENS // (length + 2))
            stop = start
            while stop < len(rows) and stop - start < most and len(rows[stop]) == length:
                stop += 1
            self._evaluate(rows[start:stop], queries, [by_row[row] for row in rows[start:stop]], answers)
            start = stop
        return answers

    def _evaluate(
        self,
        rows: Sequence[tuple[int, ...]],
        queries: Sequence[Query],
        asked: Sequence[Sequence[int]],
        answers: list[Answer],
    ) -> None:
        """Fill in the answers of the questions `asked` about each of these rows of one length."""
        denoiser = self.engine.model.denoiser
        z, _ = self.engine.framed_tensors(rows)
        times = torch.full((len(rows),), TIME, dtype=torch.float64, device=z.device)
        hidden = denoiser.hidden(z, times, None)
        self.nfe += len(rows)
        numbers = [(r, i) for r, mine in enumerate(asked) for i in mine]
        at = torch.tensor([[r, 1 + queries[i].place] for r, i in numbers], device=z.device)
        chosen = hidden[at[:, 0], at[:, 1]]
        log_p = raw_logits(chosen, *compute_weights(chosen, denoiser.head)).float().log_softmax(-1)
        for n, (_, i) in enumerate(numbers):
            query = queries[i]
            values = log_p[n, list(query.wanted)].tolist() if query.wanted else []
            best: tuple[tuple[int, float], ...] = ()
            if query.top:
                found = log_p[n].topk(query.top)
                best = tuple(zip(found.indices.tolist(), found.values.tolist(), strict=True))
            answers[i] = Answer(tuple(values), best)
