from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from scdd.data.files import write_atomically


def test_a_full_disk_leaves_the_old_file_and_no_half_of_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "index.json"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as the system says it: without a name

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(path, b"new")
    assert caught.value.filename == str(path)
    assert [each.name for each in tmp_path.iterdir()] == ["index.json"]
    assert path.read_bytes() == b"old"
