"""Options: what may be chosen of a component, with its limits, defaults and descriptions. Nothing here imports torch.

A component's options are a frozen dataclass, and the component derives from it. Recipe sections, the JSON schema, the
command line's choices and the playground's pickers are all read off these classes, so an option is written down once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal, cast, get_args, get_origin, get_type_hints

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
Positive = Annotated[float, Gt(0.0), AllowInfNan(False)]
NotNegative = Annotated[float, Ge(0.0), AllowInfNan(False)]
Text = Annotated[str, MinLen(1)]


class Options:
    """A component's options. The string under a field is its description, in the JSON schema too.

    Built in Python, they check their own limits; read from a recipe, pydantic has checked them before.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    def __post_init__(self) -> None:
        """Refuse what is out of range; a class whose options must agree with each other goes on from here."""
        owner = type(self).__name__
        for name, choices, limits in _rules_of(cast(Any, type(self))):
            value, place = getattr(self, name), name if owner.endswith("Options") else f"{owner}.{name}"
            if choices and value not in choices:
                raise OptionError(
                    f"{place} is {value!r}: choose one of {', '.join(map(str, choices))}.", name
                )
            numbers = value if isinstance(value, tuple) else (value,)
            if limits is not None and value is not None and not all(map(limits.hold, numbers)):
                raise OptionError(f"{place} is {value!r}: choose one {limits}.", name)

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


def component(options: Any, homes: Mapping[str, str]) -> Any:
    """The component of these options: `homes` says, by kind, where it lives ("module:Class"). It is imported now.

    Components derive from their options, so a component handed in is its own.
    """
    module, _, name = homes[options.kind].partition(":")
    made = getattr(import_module(module), name)
    if isinstance(options, made):
        return options
    return made(**{each.name: getattr(options, each.name) for each in fields(options)})


@dataclass(frozen=True)
class Limits:
    """An interval of numbers, with or without its ends."""

    low: float
    high: float
    open_low: bool
    open_high: bool

    def hold(self, value: float) -> bool:
        """Whether `value` lies inside; NaN never does."""
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"above {self.low:g}, and finite" if self.open_low else f"of {self.low:g} or more"
        return (
            f"in {'(' if self.open_low else '['}{self.low:g}, {self.high:g}{')' if self.open_high else ']'}"
        )


@cache
def _rules_of(options: Any) -> list[tuple[str, tuple[Any, ...], Limits | None]]:
    """(Field, its choices, its limits) of every field that has any, as its annotation says."""
    hints = get_type_hints(options, include_extras=True)
    rules = [(field.name, *_rules(hints[field.name])) for field in fields(options)]
    return [rule for rule in rules if rule[1] or rule[2]]


def _rules(hint: Any) -> tuple[tuple[Any, ...], Limits | None]:
    parts = [hint, *get_args(hint)]
    choices = next((get_args(part) for part in parts if get_origin(part) is Literal), ())
    optional = (None,) if choices and type(None) in parts else ()
    marks = [mark for part in parts for mark in getattr(part, "__metadata__", ())]
    bounds: dict[str, float] = {
        name: bound
        for mark in marks
        for name in ("ge", "gt", "le", "lt")
        if isinstance(bound := getattr(mark, name, None), int | float)
    }
    limits = Limits(
        low=bounds.get("gt", bounds.get("ge", -math.inf)),
        high=bounds.get("lt", bounds.get("le", math.inf)),
        open_low="gt" in bounds,
        open_high="lt" in bounds or any(isinstance(mark, AllowInfNan) for mark in marks),
    )
    return (*choices, *optional), limits if bounds else None
