"""The commands that the pages show are commands: their verbs exist and take these arguments. None is carried out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from scdd.cli.main import VERBS, import_verb
from scdd.recipe import load as recipe
from tests.docs.pages import PAGES, blocks, name_of, prose, tool

SEPARATORS = re.compile(r"[();<>|&]+")
Mistake: Any = typer.BadParameter.__base__  # of the click that typer brings
ROOT_FLAGS = ("--version", "--help", "--install-completion", "--show-completion")
INLINE = re.compile(r"`scdd ([^`]+)`")


def commands(script: str) -> Iterator[list[str]]:
    """The arguments of every `scdd` in a shell script."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        part: list[str] = []
        for token in (*lexer, ";"):
            if not SEPARATORS.fullmatch(token):
                part.append(token)
                continue
            if (arguments := arguments_of(part)) is not None:
                yield arguments
            part = []


def arguments_of(part: list[str]) -> list[str] | None:
    """What follows `scdd`, or `torchrun … -m scdd`; None for other commands."""
    words = part
    while words and (words[0] in ("do", "{", "time", "then") or re.match(r"\w+=", words[0])):
        words = words[1:]
    if words[:1] == ["torchrun"] and "-m" in words:
        words = words[words.index("-m") + 1 :]
    return words[1:] if words and Path(words[0]).name == "scdd" else None


def verb_of(arguments: list[str]) -> tuple[Any, list[str]]:
    """(The command, the arguments that are left for it)."""
    assert arguments, "scdd alone shows its help"
    assert arguments[0] in VERBS, f"there is no verb {arguments[0]}"
    command, rest = import_verb(arguments[0]), arguments[1:]
    while getattr(command, "commands", None) and rest and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def parse(arguments: list[str]) -> None:
    """Fail unless the command takes these arguments."""
    if arguments and arguments[0].startswith("--"):
        [flag] = arguments
        assert flag in ROOT_FLAGS, f"scdd takes no {flag}"
        return
    command, rest = verb_of(arguments)
    assert not getattr(command, "commands", None), f"{command.name} needs one of {', '.join(command.commands)}"
    try:
        command.make_context(command.name, rest)
    except Mistake as error:
        raise AssertionError(f"scdd {shlex.join(arguments)}: {error.format_message()}") from error


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_understood(page: Path) -> None:
    for block in blocks(page, "console", "sh"):
        lines = block.code.splitlines(keepends=True)
        script = "".join(line for line in lines if block.language == "sh" or line.startswith("$ "))
        for arguments in commands(script):
            parse(arguments)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_flags_that_are_named_exist(page: Path) -> None:
    """In running text commands are often shortened; their flags are looked up nevertheless."""
    for shown in INLINE.findall(prose(page)):
        words = shown.replace("…", "").split()
        if not words or not words[0].isalpha() or words[0] not in VERBS:
            assert not words or words[0].isupper() or words[0].startswith("-"), f"there is no scdd {words[0]}"
            continue
        command, rest = verb_of(words)
        inner = getattr(command, "commands", {}).values()
        flags = {flag for each in (command, *inner) for option in each.params for flag in option.opts}
        named = {word.partition("=")[0] for word in rest if word.startswith("--")}
        secondary = {flag for each in (command, *inner) for o in each.params for flag in o.secondary_opts}
        assert named <= flags | secondary | {"--help"}, f"scdd {shown}"


def test_goldens_carries_out_commands_and_recipes_that_there_are() -> None:
    goldens = tool("goldens")
    for name, case in goldens.CASES.items():
        parse(shlex.split(goldens.command(name)))
        assert "$" not in goldens.command(name), case
    for changes in goldens.RUNS.values():
        recipe.load("nano", f"{goldens.PLAN['common']} {changes}".split())


def test_mistakes_are_found() -> None:
    script = "for x in a; do scdd sample --stepz 3; done\n$ scdd eval likelihood --text a | head\nU=1 scdd nothing"
    first, second, third = commands(script)
    with pytest.raises(AssertionError, match="--stepz"):
        parse(first)
    parse(second)
    with pytest.raises(AssertionError, match="nothing"):
        parse(third)
