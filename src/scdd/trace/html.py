"""HTML fragments for notebooks: a correction as a diff, a score as a heat map. Inline styles, nothing is fetched.

Colours are translucent and text keeps the page's own, so that both read well on light and on dark ground.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scdd.lm.results import Correction, Score, TokenScore

_BOX = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:ui-monospace,monospace;line-height:1.7"
_BEFORE = "background:rgba(218,54,51,.22);text-decoration:line-through"
_AFTER = "background:rgba(46,160,67,.30);text-decoration:none;font-weight:600"
_CAPTION = "opacity:.65;font-size:85%"
FAINTEST = 0.02  # doubts below it are not coloured


def diff(correction: Correction) -> str:
    """The text as it was given, with what was changed struck through and what took its place highlighted."""
    if correction.mode == "edit":
        return _edits(correction)
    changes = {change.position: change for change in correction.changes}
    parts = []
    for changed, tokens in groupby(correction.doubts, key=lambda token: token.position in changes):
        if not changed:
            parts.append(escape("".join(token.text for token in tokens)))
            continue
        run = [changes[token.position] for token in tokens]
        before, after = "".join(each.before for each in run), "".join(each.after for each in run)
        parts.append(_changed(before, after))
    count = f"{len(changes)} changed of {len(correction.doubts)} tokens"
    return _framed("".join(parts), f"{count} · {correction.nfe} evaluations · {correction.mode}")


def _changed(before: str, after: str) -> str:
    return f'<del style="{_BEFORE}">{escape(before)}</del><ins style="{_AFTER}">{escape(after)}</ins>'


def _edits(correction: Correction) -> str:
    """The diff of edits by characters; pointing at one shows its kind and log-odds."""
    parts, place = [], 0
    for edit in correction.edits:
        title = escape(f"{edit.kind}, log-odds {edit.log_odds:.1f}")
        shown = f'<span title="{title}">{_changed(edit.before, edit.after)}</span>'
        parts += [escape(correction.before[place : edit.start]), shown]
        place = edit.end
    parts.append(escape(correction.before[place:]))
    return _framed("".join(parts), f"{len(correction.edits)} edits · {correction.nfe} evaluations · {correction.mode}")


def heat_map(score: Score) -> str:
    """The text with every token as red as it is doubted; pointing at one shows its numbers."""
    caption = f"noise level {score.strength:g} · mean log x_θ {score.log_p:.2f}"
    return _framed("".join(_heated(score.tokens)), caption)


def _heated(tokens: tuple[TokenScore, ...]) -> Iterator[str]:
    for token in tokens:
        numbers = f"doubt {token.doubt:.2f}, x_θ {token.p:.2g}; likeliest: {token.best!r} {token.p_best:.2g}"
        style = f"background:rgba(218,54,51,{0.7 * token.doubt:.2f})" if token.doubt >= FAINTEST else ""
        yield f'<span style="{style}" title="{escape(numbers)}">{escape(token.text)}</span>'


def _framed(content: str, caption: str) -> str:
    return f'<div style="{_BOX}">{content}</div><div style="{_CAPTION}">{escape(caption)}</div>'
