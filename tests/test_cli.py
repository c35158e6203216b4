from __future__ import annotations

import json
import subprocess
import sys
import time
from types import ModuleType

import pytest

from scdd import __version__
from scdd.cli import main as cli
from scdd.core.errors import UserError
from scdd.recipe import load, loads


@pytest.fixture
def failing_verb(monkeypatch: pytest.MonkeyPatch):
    """A verb `recipe` whose body raises what the test wants."""

    def install(error: BaseException) -> None:
        module = ModuleType("recipe")

        def recipe() -> None:
            raise error

        module.recipe = recipe
        monkeypatch.setattr(cli, "import_module", lambda name: module)

    return install


def scdd(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "scdd", *args], capture_output=True, text=True, check=False)


def test_help_is_quick_and_lists_the_verbs_that_exist():
    start = time.perf_counter()
    result = scdd("--help")
    assert time.perf_counter() - start < 1.0 or min(_seconds("--help") for _ in range(3)) < 1.0
    assert result.returncode == 0
    listed = {
        line.split()[0] for line in result.stdout.partition("Commands:")[2].splitlines() if line.strip()
    }
    assert "recipe" in listed
    assert listed <= set(cli.VERBS)


def _seconds(*args: str) -> float:
    start = time.perf_counter()
    scdd(*args)
    return time.perf_counter() - start


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["recipe", "list"], ["recipe", "show", "nano"]])
def test_torch_is_not_imported(args: list[str]):
    code = f"import sys; from scdd.cli.main import main; assert main({args}) == 0; assert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_every_verb_whose_file_exists_has_help(capsys: pytest.CaptureFixture[str]):
    for verb in cli.LazyGroup(name="scdd").commands:
        assert cli.main([verb, "--help"]) == 0
        assert f"scdd {verb}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"scdd {__version__}\n"


def test_unknown_verb_is_a_usage_error_with_a_suggestion(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["recip"]) == 2
    assert "recipe" in capsys.readouterr().err


def test_user_error_is_one_line_a_mistake_and_exit_2(failing_verb, capsys: pytest.CaptureFixture[str]):
    failing_verb(UserError("first mistake.\nsecond mistake."))
    assert cli.main(["recipe"]) == 2
    assert capsys.readouterr().err == "error: first mistake.\nerror: second mistake.\n"


def test_interrupt_exits_130(failing_verb):
    failing_verb(KeyboardInterrupt())
    assert cli.main(["recipe"]) == 130


def test_a_bug_keeps_its_traceback(failing_verb):
    failing_verb(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main(["recipe"])


def test_a_missing_optional_dependency_names_its_extra(monkeypatch: pytest.MonkeyPatch):
    def lacks(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'fastapi'", name="fastapi")

    monkeypatch.setattr(cli, "import_module", lacks)
    with pytest.raises(UserError, match=r"scdd serve needs fastapi: pip install 'scdd\[serve\]'"):
        cli.import_verb("serve")


def test_recipe_show_prints_a_recipe_that_reads_back(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["recipe", "show", "nano", "--set", "training.steps=7"]) == 0
    assert loads(capsys.readouterr().out) == load("nano", ["training.steps=7"])


def test_recipe_check(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["recipe", "check", "nano"]) == 0
    assert cli.main(["recipe", "check", "nano", "--set", "training.stepz=7"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "nano: ok (nano)\n"
    assert (
        captured.err
        == "error: --set training.stepz=7: training.stepz is not a known key; did you mean steps?\n"
    )


def test_recipe_schema_is_json_and_list_names_nano(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["recipe", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Recipe"
    assert cli.main(["recipe", "list"]) == 0
    assert "nano" in capsys.readouterr().out.split()
