"""The networks that a recipe can name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from scdd.core.options import Count, Options


@dataclass(frozen=True)
class DiTOptions(Options):
    """The denoising network."""

    kind: Literal["dit"] = field(default="dit", kw_only=True, repr=False)
    size: Literal["nano", "mini", "tiny", "small", "medium", "custom"] = "small"
    """Preset of depth, width and heads (small: 12 × 768, 12 heads, the paper's); custom takes the three below."""
    depth: Count | None = None
    """Transformer blocks of a custom size."""
    width: Count | None = None
    """Hidden width of a custom size, a multiple of twice the heads."""
    heads: Count | None = None
    """Attention heads of a custom size."""
    cond_width: Count = 128
    """Width of the time conditioning."""
    time_conditioning: bool = False
    """Tell the network the time; without it the network must see the noise level in the text."""
    time_input: Literal["sigma", "t"] = "sigma"
    """What the conditioning is made of: the total noise sigma, or the time t."""
    input_bias: bool = False
    """Learn one number that is added to the logit of each input token, as GIDD does."""

    def __post_init__(self) -> None:
        shape = {"depth": self.depth, "width": self.width, "heads": self.heads}
        if self.size != "custom":
            given = [key for key, value in shape.items() if value is not None]
            if given:
                raise ValueError(f"{given[0]} is given although size is {self.size}: set size to custom")
        elif None in shape.values():
            absent = next(key for key, value in shape.items() if value is None)
            raise ValueError(f"size custom needs {absent}")
