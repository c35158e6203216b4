"""From a drawn row of tokens to a completion: where it begins, where it ends, and what of it is final already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scdd.data.tokenizer import TextTokenizer
from scdd.lm.results import Sample
from scdd.serve.openai_shapes import Choice
from scdd.serve.replies import finite


class Cutter:
    """The completion inside a row: after the prompt's tokens, before the suffix's, up to an end-of-text or a stop."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        row: Sequence[int],
        start: int,
        room: int,
        stops: Sequence[str],
        echo: str,
        ends: bool,
    ) -> None:
        """`row`: before the first step. `ends`: whether an end-of-text ends it; before a suffix it does not."""
        self.tokenizer, self.start, self.stop = tokenizer, start, start + room
        self.stops, self.echo, self.ends = list(stops), echo, ends
        self.sent = ""
        self._row = list(row[:start])  # what is final: a window that the prompt fills never arrives

    def inside(self, row: Sequence[int]) -> list[int]:
        """The completion's tokens."""
        tokens = list(row[self.start : self.stop])
        if self.ends and self.tokenizer.eos_id in tokens:
            tokens = tokens[: tokens.index(self.tokenizer.eos_id)]
        return tokens

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
            text = text[: max(0, len(text) - held)].rstrip("\ufffd")
        fresh = (self.echo + text)[len(self.sent) :]
        self.sent += fresh
        return fresh

    def decoded(self, tokens: Sequence[int]) -> str:
        """Tokens as text, but for the frame's own two."""
        frame = (self.tokenizer.bos_id, self.tokenizer.eos_id)
        return self.tokenizer.decode([i for i in tokens if i not in frame], skip_special=False)

    def _cut(self, tokens: Sequence[int]) -> tuple[str, bool]:
        """(Text up to the first stop, whether there was one)."""
        text = self.decoded(tokens)
        found = [at for at in (text.find(stop) for stop in self.stops) if at >= 0]
        return (text[: min(found)], True) if found else (text, False)


def choice(index: int, cutter: Cutter, sample: Sample, logs: bool) -> Choice:
    """The completion of one sample."""
    text, ended = cutter.text(sample.tokens)
    known = _logprobs(cutter, sample, len(text)) if logs else None
    return Choice(index=index, text=text, finish_reason="stop" if ended else "length", logprobs=known)


def _places(cutter: Cutter, tokens: Sequence[int]) -> list[int]:
    """Where each token begins in the text; the bytes of one character begin where it does."""
    places: list[int] = []
    at, begun = 0, 0  # of the text, and of the tokens: where whole characters end
    for i in range(len(tokens)):
        places.append(at)
        piece = cutter.decoded(tokens[begun : i + 1])
        if not piece.endswith("\ufffd"):
            at, begun = at + len(piece), i + 1
    return places


def _logprobs(cutter: Cutter, sample: Sample, end: int) -> dict[str, Any]:
    """log x_θ, as it was drawn from, of each token of the text, as the last step that saw it left it; null where it is not known."""
    tokens, start = cutter.inside(sample.tokens), len(cutter.echo)
    offsets = [start + place for place in _places(cutter, tokens)]
    if start + len(cutter.decoded(tokens)) > end:  # a stop has cut the text
        offsets = [at for at in offsets if at < end]
    words = [cutter.tokenizer.token(token) for token in tokens[: len(offsets)]]
    way = sample.trajectory
    known = [] if way is None else way.last_log_p.tolist()
    logs = [finite(round(value, 6)) for value in known[cutter.start : cutter.start + len(words)]]
    logs += [None] * (len(words) - len(logs))
    best = [{word: log} if log is not None else {} for word, log in zip(words, logs, strict=True)]
    return {"tokens": words, "token_logprobs": logs, "top_logprobs": best, "text_offset": offsets}
