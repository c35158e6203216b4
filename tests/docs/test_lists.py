"""Lists in the pages that the code has too are whole."""

from __future__ import annotations

import re

from scdd.lm.training import RESUMED
from scdd.samplers.options import DRAWING
from tests.docs.pages import ROOT


def between(page: str, first: str, last: str) -> set[str]:
    """The names in code of a piece of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert text.count(first) == 1
    return set(re.findall(r"`([a-z_.]+)`", text.partition(first)[2].partition(last)[0]))


def test_requests_may_choose_what_the_page_says() -> None:
    named = between("serving.md", "Generate and infill take what `LM.generate` takes:", "another reverse")
    assert named == {*DRAWING, "seed", "process"}


def test_a_run_that_goes_on_may_differ_in_what_the_page_says() -> None:
    named = between("training.md", "may differ when a run goes on:", "Three things to know")
    assert named == {re.sub(r"(training\.guard)\..*", r"\1", key) for key in RESUMED}
