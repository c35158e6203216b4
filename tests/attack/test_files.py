"""Writing where others may write too: no link is followed, and rights are those of the umask, for every file alike."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scdd.bundle.folder import staged
from scdd.data.files import clear_leftovers, write_atomically
from tests.tiny import checkpoint


def test_a_planted_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    out = tmp_path / "shared"
    out.mkdir()
    (out / ".page.html.tmp").symlink_to(victim)  # what the name was once
    write_atomically(out / "page.html", b"new")
    assert (victim.read_text(), (out / "page.html").read_bytes()) == ("mine", b"new")
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (out / ".page.html.guessed.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_atomically(out / "page.html", b"newer")
    assert (victim.read_text(), (out / "page.html").read_bytes()) == ("mine", b"new")


def test_a_planted_folder_is_not_staged_in(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").write_text("mine")
    (tmp_path / ".model.writing").symlink_to(victim)
    with staged(tmp_path / "model") as folder:
        assert not folder.is_symlink()
        (folder / "file").write_text("x")
    assert [each.name for each in victim.iterdir()] == ["kept"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_rights_follow_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        folder = checkpoint(tmp_path / "model")
        write_atomically(tmp_path / "page.html", b"x")
    finally:
        os.umask(before)
    files = [*folder.iterdir(), tmp_path / "page.html"]
    assert {each.stat().st_mode & 0o777 for each in files} == {0o666 & ~mask}
    assert folder.stat().st_mode & 0o777 == 0o777 & ~mask


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".index.json.0123456789abcdef.tmp").write_text("half")
    (tmp_path / ".model.0123456789abcdef.writing").mkdir()
    clear_leftovers(tmp_path)
    with staged(tmp_path / "model"):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["model"]
