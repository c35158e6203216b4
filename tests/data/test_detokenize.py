from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from scdd.core.errors import UserError
from scdd.data.detokenize import detokenizer, lm1b, wikitext


@pytest.mark.parametrize(
    ("published", "text"),
    [
        (" = = Career = = ", "== Career =="),
        (" = = = 2000 – 2005 = = = ", "=== 2000 – 2005 ==="),
        (" a guest @-@ starring role , 1 @,@ 234 or 3 @.@ 5 . ", "a guest-starring role, 1,234 or 3.5."),
        (' role as " Craig " in " Teddy \'s Story " ; he ', 'role as "Craig" in "Teddy\'s Story"; he'),
        (" Whishaw ( now unrecognisable ) , Boulter . ", "Whishaw (now unrecognisable), Boulter."),
        (" the actors ' roles [ sic ] : fine ! ", "the actors' roles [sic]: fine!"),
        (" at 32 ° 22 ' ", "at 32°22 '"),
    ],
)
def test_wikitext_reads_as_ordinary_text(published: str, text: str) -> None:
    assert wikitext(published) == text


def test_wikitext_quotes_pair_within_a_line_only() -> None:
    assert wikitext(' he said " no . \n she said " yes " . ') == 'he said " no.\nshe said "yes".'


@pytest.mark.parametrize(
    ("published", "text"),
    [
        ("He 's , well , fine .", "He's, well, fine."),
        ('" We won , " she said ; ( twice ) !', '"We won," she said; (twice)!'),
        ("It costs $ 5 or £ 3 and / or nothing ?", "It costs $5 or £3 and/or nothing?"),
        ("See http : / / example.org : it works .", "See http://example.org: it works."),
        ("A ' quoted ' word [ here ] .", "A 'quoted' word [here] ."),
    ],
)
def test_lm1b_reads_as_ordinary_text(published: str, text: str) -> None:
    assert lm1b(published) == text


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UserError, match="lm1b, wikitext"):
        detokenizer("ptb")
    assert detokenizer(None) is None


@pytest.mark.data
def test_wikitext_103_keeps_no_published_spacing(data_folder: Path) -> None:
    with lzma.open(data_folder / "wikitext-103" / "wiki.test.tokens.xz", "rt", encoding="utf-8") as file:
        published = file.read()
    text = wikitext(published)
    for mark in (" @-@ ", " @,@ ", " @.@ ", " , ", " . ", " ; ", "= =", " 's "):
        assert published.count(mark) > 10
        assert text.count(mark) == 0, mark
    assert "Robert Boulter is an English film, television and theatre actor. He had a guest-starring role" in text
    assert '"Craig" in the episode "Teddy\'s Story" of the television series The Long Firm; he' in text
    assert text.count("<unk>") == published.count("<unk>")
