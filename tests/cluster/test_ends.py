"""A command that starts a Ray of its own takes it along when it ends, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests import tiny

pytest.importorskip("ray", reason="needs ray: pip install -e '.[ray]'")
pytestmark = [pytest.mark.dist, pytest.mark.slow]


def descendants(parent: int) -> set[int]:
    shown = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(pid): int(above) for pid, above in (line.split() for line in shown.splitlines())}
    found, new = set(), {parent}
    while new:
        new = {pid for pid, above in parents.items() if above in new}
        found |= new
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda sign: sign.name)
def test_nothing_is_left_running(sign: signal.Signals, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"{number}. {tiny.TEXT * 40}" for number in range(20000)), encoding="utf-8")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as short:
        command = [
            "prepare",
            str(text),
            "--tokenizer",
            "bundled",
            "--out",
            str(tmp_path / "out"),
            "--workers",
            "2",
            "--ray",
        ]
        process = subprocess.Popen(
            [sys.executable, "-m", "scdd", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TMPDIR": short},
            start_new_session=True,
        )
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("tokenising"), said
        below = descendants(process.pid)
        assert len(below) > 4, "Ray's own, and workers"
        if sign is signal.SIGINT:
            os.killpg(process.pid, sign)  # as a terminal does it
        else:
            process.send_signal(sign)
        process.wait(120)
        limit = time.monotonic() + 180  # the last of Ray's own look after their parent now and then
        while left := [pid for pid in below if alive(pid)]:
            assert time.monotonic() < limit, left
            time.sleep(0.2)
        if sign is not signal.SIGKILL:
            assert not list(Path(short).iterdir())
            assert "Traceback" not in process.stdout.read()
    if sign is signal.SIGINT:
        assert process.returncode == 130
