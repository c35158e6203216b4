"""The filters and tests that a stranger's template may use: those of chat templates, each paid for as `Values` does."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jinja2 import Undefined
from jinja2.filters import do_title

from scdd.data.sandbox_values import OBJECT, STEP, Values

if TYPE_CHECKING:
    from scdd.data.sandbox import Sandbox

Function = Callable[..., Any]
WIDEST = 16  # characters of JSON's indents and separators
LONGEST_NUMBER = 400  # characters that are read as a number


def _paid(values: Values, function: Function) -> Function:
    def used(*args: Any, **kwargs: Any) -> Any:
        values.spend(STEP * (1 + len(args) + len(kwargs)))
        return function(*args, **kwargs)

    return used


def filters(sandbox: Sandbox) -> dict[str, Function]:
    """By their names in Jinja."""
    values = sandbox.values
    every = {**_of_texts(values), **_of_numbers(values), **_of_lists(sandbox), **_by_tests(sandbox)}
    every |= {
        "default": _default,
        "d": _default,
        "safe": lambda value: value,
        "string": values.text,
        "tojson": lambda value, **how: _json(values, value, **how),
    }
    return {name: _paid(values, function) for name, function in every.items()}


def _default(value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    return default_value if isinstance(value, Undefined) or (boolean and not value) else value


def _of_texts(values: Values) -> dict[str, Function]:
    def method(name: str) -> Function:
        return lambda value, *args: values.string(values.text(value), name, *args)

    def replaced(value: Any, old: Any, new: Any, count: Any = None) -> str:
        whole, before, after = (values.text(each) for each in (value, old, new))
        return values.replaced(whole, before, after, -1 if count is None else count)

    def titled(value: Any) -> str:
        text = values.text(value)
        values.spend(OBJECT * len(text))  # it is cut into words
        return do_title(text)

    names = {name: method(name) for name in ("capitalize", "lower", "upper")}
    return {
        **names,
        "title": titled,
        "trim": lambda value, chars=None: values.string(values.text(value), "strip", chars),
        "replace": replaced,
    }


def _of_numbers(values: Values) -> dict[str, Function]:
    def short(value: Any) -> bool:
        if isinstance(value, Undefined):
            values.compute("+", value, 0)  # which says what is undefined
        return isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= LONGEST_NUMBER)

    def whole(value: Any, default: Any = 0, base: int = 10) -> Any:
        try:
            if isinstance(value, str) and base != 10 and short(value):
                return int(value, base)
            return int(value) if short(value) else default
        except (ValueError, OverflowError):
            try:
                return int(float(value))
            except (ValueError, OverflowError):
                return default

    def broken(value: Any, default: Any = 0.0) -> Any:
        try:
            return float(value) if short(value) else default
        except (ValueError, OverflowError):
            return default

    def rounded(value: Any, precision: int = 0, method: str = "common") -> float:
        if not (short(value) and isinstance(value, (int, float))):
            raise ValueError("round takes a number")
        if method == "common":
            return round(value, max(-LONGEST_NUMBER, min(precision, LONGEST_NUMBER)))  # whole numbers stay whole
        if method not in ("ceil", "floor") or not 0 <= precision <= WIDEST:
            raise ValueError("round takes common, ceil or floor, and a few digits")
        turn = math.ceil if method == "ceil" else math.floor
        return float(turn(value * 10**precision) / 10**precision)

    def absolute(value: Any) -> Any:
        return abs(value) if isinstance(value, (int, float)) else values.compute("*", value, None)

    return {"int": whole, "float": broken, "round": rounded, "abs": absolute}


def _getter(sandbox: Sandbox, attribute: Any, default: Any = None) -> Function:
    parts = [int(part) if part.isdecimal() else part for part in sandbox.values.text(attribute)[:1000].split(".")]

    def get(item: Any) -> Any:
        for part in parts:
            item = sandbox.getitem(item, part)
            if default is not None and isinstance(item, Undefined):
                item = default
        return item

    return get


def _of_lists(sandbox: Sandbox) -> dict[str, Function]:
    values = sandbox.values

    def each_of(value: Any, attribute: Any) -> list[Any]:
        found = values.elements(value)
        return found if attribute is None else list(map(_getter(sandbox, attribute), found))

    def joined(value: Any, d: Any = "", attribute: Any = None) -> str:
        return values.joined([values.text(each) for each in each_of(value, attribute)], values.text(d))

    def length(value: Any) -> int:
        return len(values.elements(value)) if not isinstance(value, (str, list, tuple, dict, range)) else len(value)

    def at_end(value: Any, place: int) -> Any:
        if not isinstance(value, (str, list, tuple, range)):
            value = values.elements(value)
        return sandbox.getitem(value, place)

    def folded(value: Any, case_sensitive: bool) -> Any:
        return values.string(value, "lower") if isinstance(value, str) and not case_sensitive else value

    def ordered(value: Any, reverse: bool = False, case_sensitive: bool = False, attribute: Any = None) -> list[Any]:
        found = values.elements(value)
        keys = [folded(each, case_sensitive) for each in each_of(found, attribute)]
        for _ in range(1 + len(keys).bit_length()):
            values.walk(keys)
        places = sorted(range(len(keys)), key=keys.__getitem__, reverse=bool(reverse))
        return [found[place] for place in places]

    def most(value: Any, case_sensitive: bool = False, attribute: Any = None, last: bool = False) -> Any:
        found = ordered(value, last, case_sensitive, attribute)
        return found[0] if found else sandbox.undefined("No aggregated item, sequence was empty.")

    def by_key(value: Any, case_sensitive: bool = False, by: str = "key", reverse: bool = False) -> list[Any]:
        if not isinstance(by, str) or by not in ("key", "value"):
            raise ValueError("dictsort sorts by key or value")
        return ordered(values.items(value), reverse, case_sensitive, int(by == "value"))

    def summed(value: Any, attribute: Any = None, start: Any = 0) -> Any:
        for each in each_of(value, attribute):
            start = values.compute("+", start, each)
        return start

    def turned(value: Any) -> Any:
        return values.cut(value if isinstance(value, str) else values.elements(value), slice(None, None, -1))

    return {
        "join": joined,
        "length": length,
        "count": length,
        "first": lambda value: at_end(value, 0),
        "last": lambda value: at_end(value, -1),
        "list": values.elements,
        "items": values.items,
        "sort": ordered,
        "min": most,
        "max": lambda value, case_sensitive=False, attribute=None: most(value, case_sensitive, attribute, True),
        "dictsort": by_key,
        "sum": summed,
        "reverse": turned,
    }


def _by_tests(sandbox: Sandbox) -> dict[str, Function]:
    values = sandbox.values

    def called(kind: str, known: Mapping[str, Function], name: Any) -> Function:
        if not isinstance(name, str) or name not in known:
            raise TypeError(f"No {kind} named {values.text(name)[:60]!r}")
        return known[name]

    def chosen(value: Any, wanted: bool, get: Function, args: tuple[Any, ...]) -> list[Any]:
        test = called("test", sandbox.tests, args[0]) if args else bool
        return [each for each in values.elements(value) if bool(test(get(each), *args[1:])) == wanted]

    def mapped(value: Any, *args: Any, attribute: Any = None, default: Any = None) -> list[Any]:
        if attribute is not None:
            return list(map(_getter(sandbox, attribute, default), values.elements(value)))
        function = called("filter", sandbox.filters, args[0])
        return [function(each, *args[1:]) for each in values.elements(value)]

    def itself(value: Any) -> Any:
        return value

    return {
        "map": mapped,
        "select": lambda value, *args: chosen(value, True, itself, args),
        "reject": lambda value, *args: chosen(value, False, itself, args),
        "selectattr": lambda value, name, *args: chosen(value, True, _getter(sandbox, name), args),
        "rejectattr": lambda value, name, *args: chosen(value, False, _getter(sandbox, name), args),
    }


def _json(
    values: Values,
    value: Any,
    indent: int | str | None = None,
    ensure_ascii: bool = False,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    wide = len(indent) if isinstance(indent, str) else indent or 0
    if wide > WIDEST or (separators is not None and any(len(each) > WIDEST for each in separators)):
        raise ValueError(f"tojson takes indents and separators of at most {WIDEST} characters")
    values.walk(value, 12, max(0, wide))  # a letter may be written as two escapes of six
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def tests(sandbox: Sandbox) -> dict[str, Function]:
    """By their names in Jinja."""
    values = sandbox.values

    def compared(name: str) -> Function:
        return lambda left, right: values.compare(left, (name, right))

    def whole(value: Any, by: int) -> bool:
        if not isinstance(value, (int, float)) or not isinstance(by, int):
            raise TypeError(f"a {type(value).__name__} is not divided")
        return bool(values.compute("%", value, by) == 0)

    names = {"eq": ("==", "equalto"), "ne": ("!=",), "gt": (">", "greaterthan"), "gteq": (">=", "ge")}
    names |= {"lt": ("<", "lessthan"), "lteq": ("<=", "le"), "in": ()}
    every: dict[str, Function] = {each: compared(name) for name, others in names.items() for each in (name, *others)}
    every |= {
        "defined": lambda value: not isinstance(value, Undefined),
        "undefined": lambda value: isinstance(value, Undefined),
        "none": lambda value: value is None,
        "boolean": lambda value: isinstance(value, bool),
        "true": lambda value: value is True,
        "false": lambda value: value is False,
        "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
        "float": lambda value: isinstance(value, float),
        "number": lambda value: isinstance(value, (int, float)),
        "string": lambda value: isinstance(value, str),
        "mapping": lambda value: isinstance(value, dict),
        "sequence": lambda value: isinstance(value, (str, list, tuple, dict, range, Undefined)),
        "iterable": lambda value: isinstance(value, (str, list, tuple, dict, range, Undefined)),
        "callable": callable,
        "sameas": lambda value, other: value is other,
        "odd": lambda value: not whole(value, 2),
        "even": lambda value: whole(value, 2),
        "divisibleby": whole,
        "lower": lambda value: values.string(values.text(value), "islower"),
        "upper": lambda value: values.string(values.text(value), "isupper"),
    }
    return {name: _paid(values, function) for name, function in every.items()}
