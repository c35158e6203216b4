"""Options: what may be chosen of a component, with its limits, defaults and descriptions. Nothing here imports torch.

A component's options are a frozen dataclass, and the component derives from it. Recipe sections, the JSON schema, the
command line's choices and the playground's pickers are all read off these classes, so an option is written down once.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from numbers import Integral, Real
from operator import ge, gt, le, lt
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Interval, MinLen
from pydantic import AllowInfNan, ConfigDict, GetJsonSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema

from scdd.core.errors import OptionError

Count = Annotated[int, Ge(1)]
Amount = Annotated[int, Ge(0)]
Share = Annotated[float, Interval(ge=0.0, le=1.0)]
ShareBelowOne = Annotated[float, Interval(ge=0.0, lt=1.0)]
ShareAboveZero = Annotated[float, Interval(gt=0.0, le=1.0)]
Inside = Annotated[float, Interval(gt=0.0, lt=1.0)]
Temperature = Annotated[float, Interval(ge=1e-30, le=1e30)]  # beyond it logits over it are no numbers any more
BatchSize = Annotated[int, Interval(ge=1, le=1 << 20)]
VocabSize = Annotated[int, Interval(ge=259, le=1 << 20)]  # every byte, three special tokens; several times any in use
Positive = Annotated[float, Gt(0.0), AllowInfNan(False)]
NotNegative = Annotated[float, Ge(0.0), AllowInfNan(False)]
Text = Annotated[str, MinLen(1)]
# Tensor cores want the head's rows in multiples of this; V = 50,258 itself runs at a third of the speed.
ALIGNMENT = 128


def padded(size: int) -> int:
    """A vocabulary's `size` rounded up to the head's alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Options:
    """A component's options. The string under a field is its description, in the JSON schema too.

    Built in Python, they check their own limits; read from a recipe, pydantic has checked them before.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    def __post_init__(self) -> None:
        """Refuse what is out of range; a class whose options must agree with each other goes on from here."""
        for name, rule in _rules_of(cast(Any, type(self))).items():
            value = getattr(self, name)
            if (why := rule.refusal(value)) is not None:
                named = hasattr(self, "kind") and not type(self).__name__.endswith("Options")
                place = f"{type(self).__name__}.{name}" if named else name
                raise OptionError(f"{place} is {value!r}: {why}.", name)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Pydantic finds the descriptions under a class's own fields; those of inherited fields are added here."""
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for base in filter(is_dataclass, cls.__mro__[1:]):
            for name, described in TypeAdapter(base).json_schema()["properties"].items():
                if "description" in described:
                    properties[name].setdefault("description", described["description"])
        return schema


Some = TypeVar("Some", bound=Options)


def altered(options: Some, **changes: Any) -> Some:
    """`dataclasses.replace`, where it happens often and what changes needs no checking."""
    made = object.__new__(type(options))
    made.__dict__.update(options.__dict__, **changes)
    return made


def component(options: Any, homes: Mapping[str, str]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """(The component's class, its arguments): `homes` says, by kind, where it lives ("module:Class"). It is imported now.

    Components derive from their options, so all that is left to do is to call the one with the others.
    """
    module, _, name = homes[options.kind].partition(":")
    return getattr(import_module(module), name), {each.name: getattr(options, each.name) for each in fields(options)}


@dataclass(frozen=True)
class Rule:
    """What a field's annotation asks of its value: one of some choices, or a number inside an interval."""

    choices: tuple[Any, ...]
    number: type | None  # int or float, or bool for what is true or false
    bounds: dict[str, float]  # by annotated_types' names: ge, gt, le, lt
    optional: bool

    def refusal(self, value: Any) -> str | None:
        """Why a value is refused, as a cure; None where it is not."""
        if value is None and self.optional:
            return None
        if self.choices and value not in self.choices:
            return f"choose one of {', '.join(map(str, self.choices))}"
        if self.number is None:
            return None
        if self.number is bool:
            return None if isinstance(value, bool) else "give true or false"
        if not isinstance(value, Integral if self.number is int else Real) or isinstance(value, bool):
            return "give a whole number" if self.number is int else "give a number"
        if self.number is float and isinstance(value, int) and abs(value) > sys.float_info.max:
            return "give a number of fewer digits"
        return None if all(_HOLDS[name](value, bound) for name, bound in self.bounds.items()) else self._range()

    def _range(self) -> str:
        low, high = (
            next((self.bounds[n] for n in names if n in self.bounds), None) for names in (("gt", "ge"), ("lt", "le"))
        )
        if high is None or high == math.inf:
            return f"choose a finite one above {low:g}" if "gt" in self.bounds else f"choose {low:g} or more"
        ends = "(" if "gt" in self.bounds else "[", ")" if "lt" in self.bounds else "]"
        shown = (f"{bound:,}" if isinstance(bound, int) else f"{bound:g}" for bound in (low, high))
        return f"choose one in {ends[0]}{', '.join(shown)}{ends[1]}"


_HOLDS: dict[str, Callable[[Any, float], bool]] = {"ge": ge, "gt": gt, "le": le, "lt": lt}  # NaN holds nowhere


def refusal_of(options: Any, name: str, value: Any) -> str | None:
    """Why an option refuses a value, as a cure; None where it does not."""
    rule = _rules_of(options).get(name)
    return None if rule is None or rule.number is bool else rule.refusal(value)


def number_type(options: Any, name: str) -> type | None:
    """int or float, where an option is a number."""
    rule = _rules_of(options).get(name)
    return None if rule is None or rule.number is bool else rule.number


@cache
def _rules_of(options: Any) -> dict[str, Rule]:
    """The rule of every field that has one."""
    hints = get_type_hints(options, include_extras=True)
    rules = {each.name: _rule(hints[each.name]) for each in fields(options)}
    return {name: rule for name, rule in rules.items() if rule.choices or rule.number}


def _rule(hint: Any) -> Rule:
    parts = list(_alternatives(hint))
    marks = [mark for part in parts for mark in getattr(part, "__metadata__", ())]
    bounds: dict[str, float] = {
        name: bound for mark in marks for name in _HOLDS if isinstance(bound := getattr(mark, name, None), int | float)
    }
    if any(isinstance(mark, AllowInfNan) for mark in marks):
        bounds["lt"] = math.inf
    return Rule(
        choices=next((get_args(part) for part in parts if get_origin(part) is Literal), ()),
        number=next((part for part in parts if part in (int, float, bool)), None),
        bounds=bounds,
        optional=type(None) in parts,
    )


def _alternatives(hint: Any) -> Iterator[Any]:
    """The hint, and what it may be: the members of a union, and what annotations are about."""
    yield hint
    if get_origin(hint) is Annotated:
        yield from _alternatives(get_args(hint)[0])
    elif get_origin(hint) in (Union, UnionType):
        for member in get_args(hint):
            yield from _alternatives(member)
