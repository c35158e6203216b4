"""From a drawn row of tokens to a completion: where it begins, where it ends, and what of it is final already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scdd.data.tokenizer import TextTokenizer
from scdd.lm import Sample
from scdd.serve.openai_shapes import Choice
from scdd.serve.replies import finite


class Cutter:
    """The completion inside a row: after the prompt's tokens, before the suffix's, up to an end-of-text or a stop."""

    def __init__(
        self, tokenizer: TextTokenizer, start: int, room: int, stops: Sequence[str], echo: str, ends: bool
    ) -> None:
        """`ends`: whether an end-of-text ends it; before a suffix it does not."""
        self.tokenizer, self.start, self.stop = tokenizer, start, start + room
        self.stops, self.echo, self.ends = list(stops), echo, ends
        self.sent = ""
        self._row: list[int] = []

    def inside(self, row: Sequence[int]) -> list[int]:
        """The completion's tokens."""
        tokens = list(row[self.start : self.stop])
        if self.ends and self.tokenizer.eos_id in tokens:
            tokens = tokens[: tokens.index(self.tokenizer.eos_id)]
        return tokens

    def written(self, row: Sequence[int]) -> int:
        """How many tokens were written."""
        return len(self.inside(row))

    def text(self, row: Sequence[int]) -> tuple[str, bool]:
        """(The completion, whether it ended by itself)."""
        tokens = self.inside(row)
        text, stopped = self._cut(tokens)
        return self.echo + text, stopped or len(tokens) < self.stop - self.start

    def fed(self, offset: int, window: Sequence[int]) -> str:
        """What a window that has just become final adds to the text that can be sent."""
        self._row[offset:] = window
        tokens = self.inside(self._row)
        text, stopped = self._cut(tokens)
        if not stopped and len(tokens) == len(self._row) - self.start < self.stop - self.start:
            # A stop may begin here and end in the next window; so may a character, of which bytes are missing.
            held = max((len(stop) for stop in self.stops), default=1) - 1
            text = text[: len(text) - held].rstrip("\ufffd")
        fresh = (self.echo + text)[len(self.sent) :]
        self.sent += fresh
        return fresh

    def _cut(self, tokens: Sequence[int]) -> tuple[str, bool]:
        """(Text up to the first stop, whether there was one)."""
        frame = (self.tokenizer.bos_id, self.tokenizer.eos_id)
        text = self.tokenizer.decode([i for i in tokens if i not in frame], skip_special=False)
        found = [at for at in (text.find(stop) for stop in self.stops) if at >= 0]
        return (text[: min(found)], True) if found else (text, False)


def choice(index: int, cutter: Cutter, sample: Sample, logs: dict[str, Any] | None) -> Choice:
    """The completion of one sample."""
    row = sample.tokens
    text, ended = cutter.text(row)
    return Choice(index=index, text=text, finish_reason="stop" if ended else "length", logprobs=logs)


def logprobs(cutter: Cutter, sample: Sample) -> dict[str, Any]:
    """log x_θ of each token as the last step left it; null where it is not known."""
    tokens = cutter.inside(sample.tokens)
    way = sample.trajectory
    known = way.log_p[-1].tolist() if way is not None and len(way.moments) else []
    words = [cutter.tokenizer.token(token) for token in tokens]
    logs = [finite(round(value, 6)) for value in known[cutter.start : cutter.start + len(tokens)]]
    logs += [None] * (len(tokens) - len(logs))
    offsets, at = [], len(cutter.echo)
    for word in words:
        offsets.append(at)
        at += len(word)
    best = [{word: log} if log is not None else {} for word, log in zip(words, logs, strict=True)]
    return {"tokens": words, "token_logprobs": logs, "top_logprobs": best, "text_offset": offsets}
