"""What may be chosen of a network: a recipe's model section, and the shape that it stands for."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Literal

from scdd.core.errors import OptionError
from scdd.core.options import Count, Options


@dataclass(frozen=True)
class PresetOptions(Options):
    """The network's kind and size."""

    kind: Literal["dit"] = field(default="dit", kw_only=True, repr=False)
    size: Literal["nano", "mini", "tiny", "small", "medium", "custom"] = "small"
    """Preset of depth, width and heads (small: 12 × 768, 12 heads, the paper's); custom takes the three below."""
    depth: Count | None = None
    """Transformer blocks of a custom size."""
    width: Count | None = None
    """Hidden width of a custom size, a multiple of twice the heads."""
    heads: Count | None = None
    """Attention heads of a custom size."""


@dataclass(frozen=True, kw_only=True)
class InputOptions(Options):
    """What the network reads besides tokens."""

    cond_width: Count = 128
    """Width of the time conditioning."""
    time_conditioning: bool = False
    """Tell the network the time; without it the network must see the noise level in the text."""
    time_input: Literal["sigma", "t"] = "sigma"
    """What the conditioning is made of: the total noise sigma, or the time t."""
    input_bias: bool = False
    """Learn one number that is added to the logit of each input token, as GIDD does."""


@dataclass(frozen=True)
class DiTConfig(InputOptions):
    """The shape of a DiT, as checkpoints record it; `causal` makes the autoregressive variant.

    sigma is −log(1 − (1 − 1e-3) t), as SCDD and MDLM have it, and t is GIDD's; without time conditioning the time
    embedding reads zero for every row.
    """

    depth: Count
    width: Count
    heads: Count
    causal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.heads):
            raise OptionError(
                f"width {self.width} does not split into {self.heads} heads of an even number of channels: "
                f"choose a multiple of {2 * self.heads}.",
                "width",
            )
        if self.causal and self.time_conditioning:
            raise OptionError(
                "time_conditioning is on and an autoregressive network has no time: switch it off.", "time_conditioning"
            )

    @property
    def head_width(self) -> int:
        """Channels per attention head, Dh."""
        return self.width // self.heads


SIZES = {
    "nano": DiTConfig(depth=4, width=128, heads=4),
    "mini": DiTConfig(depth=6, width=384, heads=6),
    "tiny": DiTConfig(depth=8, width=512, heads=8),
    "small": DiTConfig(depth=12, width=768, heads=12),
    "medium": DiTConfig(depth=24, width=1024, heads=16),
}


@dataclass(frozen=True)
class DiTOptions(InputOptions, PresetOptions):
    """The denoising network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = {"depth": self.depth, "width": self.width, "heads": self.heads}
        given = [key for key, value in shape.items() if value is not None]
        absent = [key for key, value in shape.items() if value is None]
        if self.size != "custom" and given:
            raise OptionError(f"{given[0]} is given although size is {self.size}: set size to custom.", given[0])
        if self.size == "custom" and absent:
            raise OptionError(f"size custom needs {absent[0]}: give it, or name a preset.", absent[0])
        self.config()

    def config(self, causal: bool = False, input_bias: bool = False) -> DiTConfig:
        """The network's shape; `input_bias` if weights from elsewhere have one, whatever the options say."""
        if self.depth and self.width and self.heads:
            shape = DiTConfig(self.depth, self.width, self.heads)
        else:
            shape = SIZES[self.size]
        shared = {each.name: getattr(self, each.name) for each in fields(InputOptions)}
        return replace(shape, causal=causal, **shared | {"input_bias": self.input_bias or input_bias})
