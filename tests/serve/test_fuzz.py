"""schemathesis over the OpenAPI document: whatever is sent, the answer is one that the document names, and no 5xx."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.client import Client
from tests.serve.conftest import Serving

pytest.importorskip("schemathesis", reason="needs schemathesis: pip install schemathesis")


def schemathesis(
    client: Client, place: Path, seed: int, examples: int, phases: str = "examples,coverage,fuzzing"
) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("schemathesis")
    found = str(program) if program.exists() else shutil.which("schemathesis")
    assert found is not None
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    return subprocess.run(
        [found, "run", f"{client.url}/openapi.json", "--checks", checks, "--max-examples", str(examples), "--seed", str(seed),
         "--phases", phases, "--no-color"],
        capture_output=True, text=True, timeout=240, cwd=place,  # it keeps notes of its own
    )  # fmt: skip


def test_nothing_that_is_sent_breaks_the_server(serving: Serving, tmp_path: Path) -> None:
    with serving({"steps": 12, "length": 60, "seconds": 20.0}) as client:
        done = schemathesis(client, tmp_path, seed=1, examples=6, phases="examples,fuzzing")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
