"""Who knows how an option was spelt says so."""

from __future__ import annotations

import pickle

import pytest

from scdd.core.errors import OptionError, UserError, at, reason


@pytest.mark.parametrize(
    ("message", "option", "told"),
    [
        ("path is 3: choose more.", "path", "data.path is 3: choose more."),
        ("path: there is none.", "path", "data.path: there is none."),
        ("x.txt does not exist: make it.", "path", "data.path: x.txt does not exist: make it."),
        ("paths are many: choose one.", "path", "data.path: paths are many: choose one."),
        ("path_of is 3: choose more.", "path", "data.path: path_of is 3: choose more."),
        ("x.txt is damaged: mend it.", None, "data: x.txt is damaged: mend it."),
        ("x.txt is long: read it in parts (path).", "path", "x.txt is long: read it in parts (data.path)."),
    ],
)
def test_a_place_is_told_once(message: str, option: str | None, told: str) -> None:
    with pytest.raises(OptionError) as caught, at("data"):
        raise OptionError(message, option)
    assert str(caught.value) == told
    assert caught.value.option == ("data.path" if option else "data")


def test_places_nest() -> None:
    with pytest.raises(UserError) as caught, at("data"), at("path"):
        raise UserError("x.txt does not exist: make it.")
    assert str(caught.value) == "data.path: x.txt does not exist: make it."


def test_other_errors_and_workers_keep_what_they_say() -> None:
    with pytest.raises(ZeroDivisionError), at("data"):
        1 / 0  # noqa: B018
    copy = pickle.loads(pickle.dumps(UserError("size is 3: choose more.", "size")))
    assert (str(copy), copy.option) == ("size is 3: choose more.", "size")


def test_the_first_line_is_the_reason() -> None:
    assert reason(OSError("no route\nlong story")) == "no route"
    assert reason(KeyError()) == "KeyError"
