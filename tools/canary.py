"""Each extra with the newest versions that resolve: `make canary`, or `python tools/canary.py [EXTRA…]`.

The suite runs with pinned versions; people install what is newest. For each extra a fresh environment is made below
`build/canary`, the package is installed with that extra and nothing pinned but torch, and the extra's own tests run there,
without a network. An extra whose tests are all skipped has failed: it was not there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "canary"
TOOLS = ("pytest", "pytest-timeout", "hypothesis")
TESTS: dict[str, tuple[str, ...]] = {
    "train": ("tests/data/test_corpus.py", "tests/data/test_tables.py", "tests/training/test_train_command.py"),
    "remote": ("tests/data/test_address.py", "tests/data/test_far.py", "tests/training/test_far.py"),
    "wandb": ("tests/training", "-k", "wandb"),
    "lora": ("tests/training/test_lora.py",),
    "eval": ("tests/evals/test_zero_shot.py", "tests/evals/test_gen_ppl.py", "tests/evals/test_report.py"),
    "gguf": ("tests/test_convert_decoders.py", "-k", "gguf"),
    "mauve": ("tests/evals/test_gen_ppl.py", "-k", "mauve_tells"),
    "gif": ("tests/test_cli_sample.py", "-k", "gif"),
    "serve": ("tests/serve/test_rest.py", "tests/serve/test_stream.py", "tests/serve/test_process.py"),
    "ray": ("tests/cluster/test_pool.py", "tests/cluster/test_serving.py"),
    "docs": ("tests/docs/test_site.py",),
}
BESIDE: dict[str, tuple[str, ...]] = {"gguf": ("transformers",)}
"""What an extra's tests compare with, and the extra does not need."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "offline"}


def pins() -> str:
    """torch alone stays as it is: another one is a matter of its own, and large."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return "".join(f"{line}\n" for line in lines if line.partition("==")[0] == "torch")


def passed(report: Path) -> int:
    """Tests that passed, and were not skipped."""
    suite = ET.parse(report).getroot().find("testsuite")
    assert suite is not None
    return int(suite.attrib["tests"]) - sum(int(suite.attrib[name]) for name in ("errors", "failures", "skipped"))


def try_out(extra: str) -> str:
    """One extra's verdict, a word or a few."""
    place = FOLDER / extra
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    python = str(place / "bin" / "python")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(pins())
        file.flush()
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", file.name]
        if subprocess.run([*pip, f"{ROOT}[{extra}]", *TOOLS, *BESIDE.get(extra, ())]).returncode:
            return "FAILED to install"
    report = place / "report.xml"
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *TESTS[extra]]
    status = subprocess.run(pytest, cwd=ROOT, env={**os.environ, **OFFLINE}).returncode
    if status:
        return f"FAILED (pytest says {status})"
    return f"ok, {passed(report)} tests" if passed(report) else "FAILED: every test was skipped"


def main(*extras: str) -> int:
    """Try these extras, or all; the exit status is 1 where one fails."""
    if unknown := [extra for extra in extras if extra not in TESTS]:
        sys.stderr.write(f"There is no extra {', '.join(unknown)}: choose from {', '.join(TESTS)}.\n")
        return 2
    verdicts = {extra: try_out(extra) for extra in extras or TESTS}
    for extra, verdict in verdicts.items():
        sys.stdout.write(f"{extra:8}{verdict}\n")
    return int(any(verdict.startswith("FAILED") for verdict in verdicts.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
