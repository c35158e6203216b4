"""Nobody has to hand over more than eight things at once, but where people choose among many options; no line is torn."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scdd.cli.main import VERBS, import_verb
from tests.docs.pages import ROOT

SOURCE = ROOT / "src" / "scdd"
MOST = 8
SPLIT = re.compile(r"\s*[])}]+:?  # (?!fmt: skip|type: |noqa)")
VERBS_OF_A_MODEL = {("lm/model.py", f"LM.{name}") for name in ("generate", "infill", "correct")}


def functions(node: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.FunctionDef, int]]:
    """(Dotted name, definition, number of parameters without self) of every function."""
    for child in ast.iter_child_nodes(node):
        name = f"{inside}{getattr(child, 'name', '')}"
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            given = child.args
            names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            names += [each.arg for each in (given.vararg, given.kwarg) if each is not None]
            bound = isinstance(node, ast.ClassDef) and names[:1] in (["self"], ["cls"])
            yield name, child, len(names) - bound  # type: ignore[misc]
        is_scope = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from functions(child, f"{name}." if is_scope else inside)


def commands(command: Any) -> Iterator[Any]:
    """A verb and the verbs inside it."""
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from commands(inner)


def commands_of_the_terminal() -> set[tuple[str, str]]:
    """(File, name) of every function that is a command."""
    callbacks = [each.callback for verb in VERBS for each in commands(import_verb(verb)) if each.callback]
    plain = [inspect.unwrap(callback) for callback in callbacks]
    return {(Path(inspect.getfile(each)).relative_to(SOURCE).as_posix(), each.__name__) for each in plain}


def test_no_comment_splits_an_expression() -> None:
    """A comment that makes a line too long has the formatter take the expression apart; it belongs above."""
    files = [
        path for folder in ("src", "tests", "tools", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    split = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if SPLIT.match(line)
    ]
    assert split == []


def test_no_function_takes_more_than_eight_parameters() -> None:
    # options that all verbs of `scdd eval` have are declared as one function's parameters
    allowed = VERBS_OF_A_MODEL | commands_of_the_terminal() | {("cli/eval_session.py", "shared_options")}
    assert len(allowed) > 20, "commands are looked up"
    too_many = {
        f"{file}: {name} ({count})"
        for path in sorted(SOURCE.rglob("*.py"))
        for file in [path.relative_to(SOURCE).as_posix()]
        for name, node, count in functions(ast.parse(path.read_text(encoding="utf-8")))
        if count > MOST
        and (file, name) not in allowed
        and not any("triton.jit" in ast.unparse(mark) for mark in node.decorator_list)
    }
    assert too_many == set()


def test_the_library_names_no_flags() -> None:
    """Whoever spells an option as a flag is the command line; a whole command (`scdd …`) may be a cure."""
    named = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        if SOURCE / "cli" not in path.parents
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") in ("UserError", "OptionError", "ApiError")
        and re.search(r"(?<![\w-])--[a-z]", re.sub(r"`[^`]*`", "", ast.unparse(node)))
    ]
    assert named == []


def test_class_attributes_have_types_that_every_python_can_evaluate() -> None:
    """A bare ClassVar among a class's annotations is a TypeError for pydantic on Python 3.10, whatever later ones say."""
    bare = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.annotation, ast.Name)
        and node.annotation.id == "ClassVar"
    ]
    assert bare == []
