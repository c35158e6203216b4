"""What every section of a recipe shares: the number types, and refusing keys that it does not know."""

from __future__ import annotations

from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Interval, MinLen
from pydantic import AllowInfNan, ConfigDict

Count = Annotated[int, Ge(1)]
Amount = Annotated[int, Ge(0)]
Share = Annotated[float, Interval(ge=0.0, le=1.0)]
ShareBelowOne = Annotated[float, Interval(ge=0.0, lt=1.0)]
Inside = Annotated[float, Interval(gt=0.0, lt=1.0)]
Positive = Annotated[float, Gt(0.0), AllowInfNan(False)]
NotNegative = Annotated[float, Ge(0.0), AllowInfNan(False)]
Text = Annotated[str, MinLen(1)]


class Section:
    """A part of a recipe. The string under a field is its description, in the JSON schema too."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", use_attribute_docstrings=True)
