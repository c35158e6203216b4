"""HTML for notebooks: any text comes out as text, and nothing is fetched."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scdd.core.errors import UserError
from scdd.lm.results import Change, Correction, Moment, Sample, Score, TokenScore, Trajectory
from scdd.trace.html import diff, heat_map
from scdd.trace.output import check_path
from scdd.trace.page import page, player

from . import tiny

NASTY = ["<script>alert(1)</script>", "&lt;", '"', "' onmouseover='x", "</del>", "\n\n", "naïve 東京", ""]
TEXTS = st.lists(st.one_of(st.sampled_from(NASTY), st.text(max_size=5)), min_size=1, max_size=8)


class Parsed(HTMLParser):
    """The text under each tag, the tags themselves, and every attribute's value."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.inside: list[str] = []
        self.text = {"del": "", "ins": "", "span": "", "div": ""}
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(content)
        self.close()
        assert not self.inside, "every tag is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in (*self.text, "iframe")
        self.inside.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.inside.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text[self.inside[-1]] += data


def scores(texts: list[str]) -> tuple[TokenScore, ...]:
    return tuple(
        TokenScore(i, i, text, p=0.25, best="<b>", p_best=0.5, doubt=(i % 3) / 2) for i, text in enumerate(texts)
    )


def correction(texts: list[str], changed: set[int]) -> Correction:
    changes = tuple(Change(i, texts[i], f"<{i}>", 0.1, 0.9, 0.8) for i in sorted(changed))
    facts = ("reverse", 0.5, 0, 4, 4, "ancestral", "greedy", "scdd")
    return Correction("new", "old", *facts, (1,), len(changes), changes, (), scores(texts))


@given(TEXTS, st.sets(st.integers(0, 7)))
def test_a_diff_shows_both_texts_and_nothing_else(texts: list[str], positions: set[int]) -> None:
    changed = {i for i in positions if i < len(texts)}
    parsed = Parsed(diff(correction(texts, changed)))
    assert parsed.text["del"] == "".join(text for i, text in enumerate(texts) if i in changed)
    assert parsed.text["ins"] == "".join(f"<{i}>" for i in sorted(changed))
    same = "".join(text for i, text in enumerate(texts) if i not in changed)
    assert parsed.text["div"].startswith(same)
    assert parsed.text["div"].endswith("4 evaluations · reverse")
    assert {name for _, name, _ in parsed.attributes} == {"style"}


@given(TEXTS)
def test_a_heat_map_shows_every_token_as_red_as_its_doubt(texts: list[str]) -> None:
    parsed = Parsed(heat_map(Score("".join(texts), 0.1, 1, scores(texts))))
    assert parsed.text["span"] == "".join(texts)
    styles = [value for tag, name, value in parsed.attributes if (tag, name) == ("span", "style")]
    reds = {0: "", 1: "background:rgba(218,54,51,0.35)", 2: "background:rgba(218,54,51,0.70)"}
    assert styles == [reds[i % 3] for i in range(len(texts))]
    titles = [value for _, name, value in parsed.attributes if name == "title"]
    assert len(titles) == len(texts)
    assert all("'<b>'" in title for title in titles)


def sample(recorded: bool = True) -> Sample:
    tokenizer = tiny.tokenizer()
    tokens = torch.tensor(tokenizer.encode('</script>"><b> & fox'))
    start = torch.full_like(tokens, tokenizer.mask_id)
    log_p, moved = torch.zeros(1, len(tokens)), torch.ones(1, len(tokens), dtype=torch.int8)
    trajectory = Trajectory(start, tokens[None], moved, log_p, (Moment(1, 1.0, 0.0),), tokenizer)
    facts = ("ancestral", "greedy", "scdd", True)
    counts = (0, 0, 1, 1, len(tokens), 0, 0)
    return Sample("x", tuple(tokens.tolist()), *counts, *facts, trajectory=trajectory if recorded else None)


def test_a_player_holds_the_whole_page_in_one_attribute() -> None:
    tokenizer = tiny.tokenizer()
    parsed = Parsed(player(sample(), tokenizer, title='"><script>'))
    attributes = {name: value for _, name, value in parsed.attributes}
    assert attributes["sandbox"] == "allow-scripts"
    content = attributes["srcdoc"]
    assert content == page([sample()], tokenizer, '"><script>')
    assert not re.search(r"(src|href)\s*=|https?://|@import|url\(", content), "nothing may be fetched"
    assert content.count("</script>") == 1
    match = re.search(r"const data = (\{.*\});\n", content)
    assert match is not None
    assert json.loads(match[1])["title"] == '"><script>'
    with pytest.raises(UserError, match="not recorded"):
        player(sample(recorded=False), tokenizer)


def test_what_a_gif_needs_is_told_before_anything_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scdd.trace.output.find_spec", lambda name: None)
    with pytest.raises(UserError, match="Pillow"):
        check_path(tmp_path / "way.gif")
    check_path(tmp_path / "way.html")
