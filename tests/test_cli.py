from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Annotated

import pytest
import typer

from scdd import __version__
from scdd.cli import main as cli
from scdd.core.errors import UserError
from scdd.recipe.load import dumps, load, loads


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
    listed = {line.split()[0] for line in result.stdout.partition("Commands:")[2].splitlines() if line.strip()}
    assert "recipe" in listed
    assert listed <= set(cli.VERBS)


def _seconds(*args: str) -> float:
    start = time.perf_counter()
    scdd(*args)
    return time.perf_counter() - start


@pytest.mark.parametrize(
    "args", [["--help"], ["--version"], ["recipe", "list"], ["recipe", "show", "nano"], ["plan", "nano"]]
)
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


TYPED = ("--top-p=2", "--at", "here", "--blocks")


@pytest.mark.parametrize(
    ("message", "option", "told"),
    [
        ("top_p is 2: choose one in (0, 1].", "top_p", "--top-p is 2: choose one in (0, 1]."),
        ("blocks and files: keep one.", "blocks", "--blocks and files: keep one."),
        ("gone.txt is missing: restore it.", "place", "--at: gone.txt is missing: restore it."),
        ("steps is 0: choose 1 or more.", "steps", "steps is 0: choose 1 or more."),
        ("text is empty: give a word.", "text", "text is empty: give a word."),
        ("top_p is 2: choose less.", None, "top_p is 2: choose less."),
        ("data.path: there is none.", "data.path", "data.path: there is none."),
    ],
)
def test_options_are_spelt_as_they_are_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], message: str, option: str | None, told: str
):
    module, app = ModuleType("recipe"), typer.Typer()

    def show(
        text: str, top_p: float = 1.0, place: Annotated[str, typer.Option("-a", "--at")] = "", blocks: bool = False
    ) -> None:
        raise UserError(message, option)

    module.recipe = show
    monkeypatch.setattr(cli, "import_module", lambda name: module)
    assert cli.main(["recipe", "x", *TYPED]) == 2
    assert capsys.readouterr().err == f"error: {told}\n"
    app.command("show")(show)
    app.command("hide")(lambda: None)
    module.app = app  # a verb with verbs of its own
    assert cli.main(["recipe", "show", "x", *TYPED]) == 2
    assert capsys.readouterr().err == f"error: {told}\n"


def test_what_the_machine_refuses_is_a_sentence_too(failing_verb, capsys: pytest.CaptureFixture[str]):
    failing_verb(OSError(errno.ENOSPC, "No space left on device", "run/model.safetensors"))
    assert cli.main(["recipe"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: run/model.safetensors cannot be used (No space left on device)")
    failing_verb(OSError(errno.EIO, "Input/output error"))
    with pytest.raises(OSError, match="Input/output"):
        cli.main(["recipe"])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("args", [["recipe", "list"], ["recipe", "schema"]])
def test_a_full_disk_behind_standard_output(args: list[str]):
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "scdd", *args], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 2
    assert result.stderr.startswith("error: the output cannot be used (No space left")
    assert len(result.stderr.splitlines()) == 1


def test_a_reader_that_leaves_early_is_no_error():
    command = [sys.executable, "-m", "scdd", "recipe", "schema"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_characters_that_the_output_lacks_are_escaped(tmp_path: Path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(dumps(load("nano", ["name=Zütz"])), encoding="utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": "iso8859-5"}
    command = [sys.executable, "-m", "scdd", "recipe", "check", str(recipe)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    assert r"Z\xfctz" in result.stdout


def test_interrupt_exits_130(failing_verb):
    failing_verb(KeyboardInterrupt())
    assert cli.main(["recipe"]) == 130


def test_a_bug_keeps_its_traceback(failing_verb):
    failing_verb(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main(["recipe"])


def test_a_missing_optional_dependency_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def lacks(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'fastapi'", name="fastapi")

    monkeypatch.setattr(cli, "import_module", lacks)
    assert cli.main(["serve"]) == 2
    assert (
        capsys.readouterr().err
        == "error: scdd serve needs fastapi: in a checkout of scdd, pip install -e '.[serve]'.\n"
    )


def test_help_needs_no_extra():
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('fastapi', 'starlette', 'uvicorn', 'h11', 'prometheus_client')));"
        "from scdd.cli.main import main; print(main(['serve', '--help']), main(['serve', '--port', '0']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "--max-queue" in done.stdout
    assert done.stdout.endswith("0 2\n")
    assert done.stderr == "error: scdd serve needs fastapi: in a checkout of scdd, pip install -e '.[serve]'.\n"


def test_recipe_show_prints_a_recipe_that_reads_back(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["recipe", "show", "nano", "--set", "training.steps=7"]) == 0
    assert loads(capsys.readouterr().out) == load("nano", ["training.steps=7"])


def test_recipe_check(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["recipe", "check", "nano"]) == 0
    assert cli.main(["recipe", "check", "nano", "--set", "training.stepz=7"]) == 2
    captured = capsys.readouterr()
    assert captured.out.startswith("nano: ok")
    [line] = captured.err.splitlines()
    assert line.startswith("error: ")
    for said in ("training.stepz=7", "did you mean steps?"):
        assert said in line


def test_recipe_schema_is_json_and_list_names_nano(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["recipe", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Recipe"
    assert cli.main(["recipe", "list"]) == 0
    assert "nano" in capsys.readouterr().out.split()


def test_the_face_is_whole() -> None:
    """Every name that the package promises is there, and `dir` shows no others."""
    import scdd

    assert all(getattr(scdd, name) is not None for name in scdd.__all__)
    assert dir(scdd) == sorted(scdd.__all__)
