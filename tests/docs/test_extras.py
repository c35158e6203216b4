"""Every extra is listed where people look, has its canary, and is advised by one sentence that works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scdd.core.errors import missing_extra
from tests.docs.pages import PAGES, ROOT, name_of, tool

NAMED = re.compile(r"^(\w+) = \[", re.M)
HISTORY = ("CHANGELOG.md", "docs/adr")
TEXTS = [
    *(page for page in PAGES if not name_of(page).startswith(HISTORY)),
    *sorted((ROOT / "src").rglob("*.py")),
    *sorted((ROOT / "tools").glob("*.py")),
]


def extras() -> list[str]:
    """As pyproject.toml has them; read by hand, since Python 3.10 has no tomllib."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return NAMED.findall(text.partition("[project.optional-dependencies]")[2].partition("\n[project.scripts]")[0])


def test_the_readme_lists_every_extra() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| extra |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.M) == sorted(extras(), key=lambda name: table.find(f"`{name}`"))
    assert "tensorboard" in table


def test_every_extra_has_a_canary() -> None:
    canary = tool("canary")
    assert set(canary.TESTS) == set(extras()) - {"dev"}
    assert re.fullmatch(r"torch==[\d.]+\n", canary.pins())
    workflow = (ROOT / ".github" / "workflows" / "canary.yml").read_text(encoding="utf-8")
    assert f"extra: [{', '.join(canary.TESTS)}]" in workflow
    for words in canary.TESTS.values():
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))


def test_an_unknown_extra_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool("canary").main("nothing") == 2
    assert "There is no extra nothing: choose from train, " in capsys.readouterr().err


def test_the_advice_works() -> None:
    assert missing_extra("x needs y", "gif") == "x needs y: in a checkout of scdd, pip install -e '.[gif]'."


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_nobody_is_sent_to_an_index_that_has_no_scdd(path: Path) -> None:
    assert not re.search(r"pip install ['\"]?scdd", path.read_text(encoding="utf-8"))
    named = re.findall(r"missing_extra\([^)]*?\"(\w+)\"(?:, \"[^\"]*\")?\)", path.read_text(encoding="utf-8"))
    assert set(named) <= set(extras())


def test_a_lock_has_hashes() -> None:
    package = {
        "metadata": {"name": "Some_Thing", "version": "1.0", "license": "MIT"},
        "download_info": {"archive_info": {"hashes": {"sha256": "ab"}}},
    }
    lock = tool("lock")
    assert lock.lock([package]).splitlines()[1] == "some-thing==1.0 --hash=sha256:ab"
    [component] = lock.sbom([package])["components"]
    assert component["purl"] == "pkg:pypi/some-thing@1.0"
    del package["download_info"]["archive_info"]
    with pytest.raises(SystemExit, match="some-thing comes without a SHA-256"):
        lock.lock([package])
