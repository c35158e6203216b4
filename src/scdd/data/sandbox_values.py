"""What a stranger's template may do with its values: each thing is paid for out of one budget before it is done.

A unit of the budget is about a byte, and about ten nanoseconds. Whatever has no price here is not done at all: values are
texts, numbers, None, lists, tuples, dictionaries, ranges, and what Jinja itself makes (namespaces, loops, macros).
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import Undefined

MOST_BITS = 4096  # of a whole number
STEP = 128  # units that anything costs
ELEMENT = 8  # of a list that is copied
OBJECT = 80  # that is made anew, such as a piece of a text
_NUMBERS = (int, float)
_PLAIN = (str, int, float, type(None), Undefined)

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
}
_ASKED = (
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
)
_TURNED = ("capitalize", "casefold", "lower", "removeprefix", "removesuffix", "swapcase", "title", "upper")
_FORWARD = ("count", "find", "index", "partition", "split")  # these look for a text in theirs
_BACKWARD = ("rfind", "rindex", "rpartition", "rsplit")
_STRIPS = ("lstrip", "rstrip", "strip")
_STRINGS = frozenset(
    (*_ASKED, *_TURNED, *_FORWARD, *_BACKWARD, *_STRIPS, "endswith", "join", "replace", "splitlines", "startswith")
)
_METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, _STRINGS),
    (dict, frozenset(("get", "items", "keys", "values"))),
    ((list, tuple), frozenset(("count", "index"))),
)


class Budget(threading.local):
    """What is left to a rendering; each thread has its own."""

    left = 0

    def spend(self, units: int) -> None:
        """ValueError once it is used up."""
        self.left -= units
        if self.left < 0:
            raise ValueError("it takes more time or memory than the template of such a chat may")


class Method:
    """A method of a value, to be called."""

    def __init__(self, function: Callable[..., Any], *given: Any) -> None:
        self.function, self.given = function, given

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self.function(*self.given, *args, **kwargs)


def weight(text: str) -> int:
    """Bytes of a text, at most."""
    return len(text) if text.isascii() else 4 * len(text)


class Values:
    """The operations; `spend` is the budget's."""

    def __init__(self, spend: Callable[[int], None]) -> None:
        self.spend = spend

    def walk(self, value: Any, character: int = 1, level: int = 0) -> None:
        """Pays for going through all of a value, what it holds twice twice; `level` is the price of one level of depth."""
        todo = [(value, 1)]
        while todo:
            node, depth = todo.pop()
            self.spend(STEP + level * depth + (character * weight(node) if isinstance(node, str) else 0))
            if isinstance(node, (list, tuple)):
                self.spend(OBJECT * len(node))
                todo.extend((each, depth + 1) for each in node)
            elif isinstance(node, dict):
                self.spend(2 * OBJECT * len(node))
                todo.extend((each, depth + 1) for pair in node.items() for each in pair)
            elif not isinstance(node, (*_PLAIN, range)):  # a namespace shows what it holds
                raise TypeError(f"a {type(node).__name__} is in a value that is shown or compared")

    def text(self, value: Any) -> str:
        """A value as it is written."""
        self.spend(STEP)
        if isinstance(value, str):
            return value
        if isinstance(value, (list, tuple, dict)):
            self.walk(value, 12)  # a letter that cannot be shown takes ten
        elif not isinstance(value, (*_PLAIN, range)):
            return f"<{type(value).__name__}>"
        return str(value)

    def joined(self, parts: Iterable[str], separator: str = "") -> str:
        """Texts put together."""
        whole = parts if isinstance(parts, list) else list(parts)
        wide = 1 if separator.isascii() and all(map(str.isascii, whole)) else 4
        between = len(separator) * max(0, len(whole) - 1)
        self.spend(STEP + ELEMENT * len(whole) + wide * (between + sum(map(len, whole))))
        return separator.join(whole)

    def elements(self, value: Any) -> list[Any]:
        """What a value holds, as a list."""
        if isinstance(value, Undefined):
            return []
        if not isinstance(value, (str, list, tuple, dict, range)):
            raise TypeError(f"a {type(value).__name__} has no elements")
        self.spend(STEP + (OBJECT if isinstance(value, (str, range)) else ELEMENT) * len(value))
        return list(value)

    def items(self, value: Any) -> list[Any]:
        """The pairs of a dictionary."""
        if isinstance(value, Undefined):
            return []
        if not isinstance(value, dict):
            raise TypeError(f"a {type(value).__name__} has no pairs")
        self.spend(STEP + OBJECT * len(value))
        return list(value.items())

    def mapping(self, pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        """A dictionary. Numbers as keys can be chosen to fall together, so many of them cost their square."""
        made: dict[Any, Any] = {}
        numbers = 0
        for key, value in pairs:
            numbers += isinstance(key, _NUMBERS)
            self.spend(OBJECT + 8 * numbers)
            made[self.key(key)] = value
        return made

    def key(self, value: Any) -> Any:
        """A key: the hash of a tuple of tuples would not end."""
        if not isinstance(value, _PLAIN):
            raise TypeError(f"a {type(value).__name__} is no key")
        self.spend(STEP + (weight(value) if isinstance(value, str) else 0))
        return value

    def cut(self, value: Any, part: slice) -> Any:
        """value[a:b:c]."""
        if isinstance(value, Undefined):
            return value[part]
        if not isinstance(value, (str, list, tuple, range)):
            raise TypeError(f"a {type(value).__name__} has no slices")
        size = len(range(*part.indices(len(value))))
        each = (1 if value.isascii() else 4) if isinstance(value, str) else ELEMENT
        self.spend(STEP + (0 if isinstance(value, range) else each * size))
        return value[part]

    def compute(self, name: str, left: Any, right: Any) -> Any:
        """left + right and the like."""
        self.spend(STEP)
        for each in (left, right):
            if isinstance(each, Undefined):
                return each + 0  # which says what is undefined
        if isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS):
            return self._number(name, left, right)
        if name == "*" and isinstance(left, int):
            left, right = right, left
        if name == "*" and isinstance(left, (str, list, tuple)) and isinstance(right, int):
            self.spend((weight(left) if isinstance(left, str) else ELEMENT * len(left)) * max(0, right))
            return operator.mul(left, right)
        if name == "+" and isinstance(left, str) and isinstance(right, str):
            return self.joined([left, right])
        for kind in (list, tuple):
            if name == "+" and isinstance(left, kind) and isinstance(right, kind):
                self.spend(ELEMENT * (len(left) + len(right)))
                return operator.add(left, right)
        raise TypeError(f"{type(left).__name__} {name} {type(right).__name__} is nothing that a template may compute")

    def _number(self, name: str, left: Any, right: Any) -> Any:
        sizes = [each.bit_length() if isinstance(each, int) else 0 for each in (left, right)]
        bits = max(sizes)
        if name == "*":
            bits = sum(sizes)
        elif name == "**" and isinstance(left, int) and isinstance(right, int):
            bits = max(bits, sizes[0] * abs(right) if sizes[1] < 16 else MOST_BITS + 1)
        if bits > MOST_BITS:
            raise ValueError(f"it computes a number of more than {MOST_BITS} bits with {name}")
        return _ARITHMETIC[name](left, right)

    def compare(self, first: Any, *others: tuple[str, Any]) -> bool:
        """first < second <= third and so on."""
        for name, second in others:
            if name in ("in", "notin"):
                result = self.contains(first, second) == (name == "in")
            else:
                self._pay_to_compare(first, second)
                result = bool(_COMPARED[name](first, second))
            if not result:
                return False
            first = second
        return True

    def _pay_to_compare(self, left: Any, right: Any) -> None:
        if isinstance(left, (list, tuple, dict)) and isinstance(right, (list, tuple, dict)):
            self.walk(left)
        elif isinstance(left, str) and isinstance(right, str):
            self.spend(STEP + min(weight(left), weight(right)))
        else:
            self.spend(STEP)

    def contains(self, value: Any, inside: Any) -> bool:
        """value in inside."""
        if isinstance(inside, Undefined):
            return False
        if isinstance(inside, str) and isinstance(value, str):
            self.look_for(value, inside)
            return value in inside
        if isinstance(inside, dict):
            return self.key(value) in inside
        if isinstance(inside, range):
            return isinstance(value, int) and value in inside  # anything else would be compared with each
        if not isinstance(inside, (list, tuple)):
            raise TypeError(f"a {type(inside).__name__} contains no {type(value).__name__}")
        self.walk(inside)
        return value in inside

    def look_for(self, sought: Any, text: str, backward: bool = False) -> None:
        """Pays for it: Python's way takes the product of both sizes for short texts, and backwards always."""
        if not isinstance(sought, str):
            raise TypeError(f"a {type(sought).__name__} is sought in a text")
        self.spend(STEP + 2 * (len(text) + len(sought)))
        if backward or len(text) < 2500 or (len(sought) < 100 and len(text) < 30_000):
            self.spend(len(text) * len(sought) // 8)

    def method(self, value: Any, name: str) -> Method | None:
        """A value's method; None if it has none of that name."""
        for kind, names in _METHODS:
            if isinstance(value, kind):
                if name not in names:
                    return None
                if isinstance(value, str):
                    return Method(self.replaced if name == "replace" else self.string, value, *_named(name))
                return Method(self._of_dict if isinstance(value, dict) else self._of_list, value, name)
        return None

    def string(self, text: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """A method of a text but `replace`."""
        self.spend(STEP + 2 * weight(text))
        if name == "join":
            return self.joined(self._texts(*args), text)
        given = [*args, *kwargs.values()]
        for each in given:
            if not isinstance(each, (*_PLAIN, tuple)):
                raise TypeError(f"a {type(each).__name__} is given to {name}")
            self.walk(each)
        first = kwargs.get("sep", args[0] if args else None)
        if name in (*_FORWARD, *_BACKWARD) and first is not None:
            self.look_for(first, text, name in _BACKWARD)
        if name in _STRIPS and isinstance(first, str):
            self.spend(len(text) * len(first) // 8)
        if name in ("split", "rsplit", "splitlines"):
            pieces = text.count(first) + 1 if isinstance(first, str) and first else len(text) // 2
            self.spend(OBJECT * pieces)
        return getattr(text, name)(*args, **kwargs)

    def _texts(self, parts: Any) -> list[str]:
        whole = self.elements(parts)
        if not all(isinstance(each, str) for each in whole):
            raise TypeError("what is joined is no text")
        return whole

    def replaced(self, text: str, old: Any, new: Any, count: Any = -1) -> str:
        """text.replace(old, new, count)."""
        self.look_for(old, text)
        if not isinstance(new, str) or not isinstance(count, int):
            raise TypeError("replace takes two texts and a number")
        times = text.count(old)
        size = len(text) + (times if count < 0 else min(times, count)) * max(0, len(new) - len(old))
        self.spend(size if text.isascii() and new.isascii() else 4 * size)
        return text.replace(old, new, count)

    def _of_dict(self, value: dict[Any, Any], name: str, *args: Any) -> Any:
        self.spend(STEP)
        if name == "get":
            return value.get(self.key(args[0]), *args[1:])
        self.spend(OBJECT * len(value))
        return list(getattr(value, name)(*args))

    def _of_list(self, value: Any, name: str, *args: Any) -> Any:
        self.walk(value)
        return getattr(value, name)(*args)


def _named(name: str) -> tuple[str, ...]:
    return () if name == "replace" else (name,)
