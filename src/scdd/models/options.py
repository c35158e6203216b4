"""What may be chosen of a network: a recipe's model section, and the shape that it stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Interval
from pydantic import Discriminator

from scdd.core.errors import OptionError, UserError, reason
from scdd.core.options import Amount, Count, Options, Positive, Text

if TYPE_CHECKING:
    import torch

    from scdd.core.types import Vocab
    from scdd.models.network import Network

# What a network of a hundred times today's size would have; a file that says more is refused before anything is built.
Depth = Annotated[int, Interval(ge=1, le=1 << 12)]
Width = Annotated[int, Interval(ge=1, le=1 << 20)]
RowLength = Annotated[int, Interval(ge=4, le=1 << 20)]
FREQUENCIES = 256  # cosine and sine features of the time that a DiT reads
MLP_RATIO = 4  # of a DiT: the MLP's width over the stream's
NETWORKS = {"dit": "scdd.models.dit:DiT", "llama": "scdd.models.llama:Llama", "import": "scdd.models.foreign:imported"}
"""Who builds a network, by the kind that its description names: called with the description's other entries."""


@dataclass(frozen=True)
class PresetOptions(Options):
    """The network's kind and size."""

    kind: Literal["dit"] = field(default="dit", kw_only=True, repr=False)
    size: Literal["nano", "mini", "tiny", "small", "medium", "custom"] = "small"
    """Preset of depth, width and heads (small: 12 × 768, 12 heads, the paper's); custom takes the three below."""
    depth: Depth | None = None
    """Transformer blocks of a custom size."""
    width: Width | None = None
    """Hidden width of a custom size, a multiple of twice the heads."""
    heads: Width | None = None
    """Attention heads of a custom size."""


@dataclass(frozen=True, kw_only=True)
class InputOptions(Options):
    """What the network reads besides tokens."""

    cond_width: Width = 128
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

    depth: Depth
    width: Width
    heads: Width
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

    def description(self, causal: bool = False) -> dict[str, Any]:
        """What `make_network` builds it from."""
        return {"kind": "dit", **asdict(self.config(causal))}

    def config(self, causal: bool = False, input_bias: bool = False) -> DiTConfig:
        """The network's shape; `input_bias` if weights from elsewhere have one, whatever the options say."""
        if self.depth and self.width and self.heads:
            shape = DiTConfig(self.depth, self.width, self.heads)
        else:
            shape = SIZES[self.size]
        shared = {each.name: getattr(self, each.name) for each in fields(InputOptions)}
        return replace(shape, causal=causal, **shared | {"input_bias": self.input_bias or input_bias})


# -- the Llama family ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RotaryScaling(Options):
    """How rotary frequencies are stretched for texts longer than the ones a model began with."""

    kind: Literal["linear", "llama3"]
    """linear: all by the factor; llama3: long waves by the factor, short ones not, those between in part."""
    factor: Positive
    """By how much."""
    low_freq_factor: Positive = 1.0
    """llama3: waves longer than original_length over this are stretched."""
    high_freq_factor: Positive = 4.0
    """llama3: waves shorter than original_length over this are not."""
    original_length: Count = 8192
    """llama3: the length of the texts that the model began with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise OptionError(
                f"high_freq_factor {self.high_freq_factor} is not above low_freq_factor {self.low_freq_factor}: "
                "choose a larger one.",
                "high_freq_factor",
            )


@dataclass(frozen=True, kw_only=True)
class DecoderOptions(Options):
    """What members of the Llama family differ in besides their size."""

    rotary_base: Positive = 10_000.0
    """Base of the rotary frequencies."""
    rotary_scaling: RotaryScaling | None = None
    """How those are stretched; null: not at all."""
    eps: Positive = 1e-5
    """Added to the mean square in every norm."""
    qkv_bias: bool = False
    """Biases of queries, keys and values, as Qwen2 has them."""
    out_bias: bool = False
    """A bias of attention's output."""
    mlp_bias: bool = False
    """Biases of the MLP."""
    qk_norm: bool = False
    """A norm for each head's queries and keys, as Qwen3 has it."""
    tied: bool = True
    """Embedding and head share their weights."""


@dataclass(frozen=True, kw_only=True)
class RowOptions(Options):
    """How far a token sees, and how long a row may be."""

    attention_window: Count | None = None
    """How many tokens to either side a token sees, and the row's first one besides; null: the whole row. data.length − 1 changes
    nothing in training, and lets the model read longer rows than it was trained on."""
    context: RowLength | None = None
    """Tokens of the longest row that it is used with; null: data.length. Longer texts are gone through in pieces."""


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(DecoderOptions, RowOptions):
    """The shape of a decoder of the Llama family (Llama, SmolLM2, Mistral, Qwen2, Qwen3), as checkpoints record it.

    `causal` leaves it the left-to-right model that it was; without it every token sees the whole row.
    """

    depth: Depth
    width: Width
    heads: Width
    kv_heads: Width
    head_width: Width
    mlp_width: Width
    causal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads * self.head_width > 1 << 20:
            raise OptionError(
                f"heads {self.heads} of {self.head_width} channels are {self.heads * self.head_width} in all: choose fewer.",
                "heads",
            )
        if self.heads % self.kv_heads:
            raise OptionError(
                f"kv_heads {self.kv_heads} does not divide the {self.heads} heads: choose a divisor.", "kv_heads"
            )
        if self.causal and self.attention_window is not None:
            raise OptionError(
                f"attention_window {self.attention_window} is for networks that read both sides, and this one is causal: take it without.",
                "attention_window",
            )
        if self.head_width % 2:
            raise OptionError(
                f"head_width {self.head_width} is odd, and rotary attention turns pairs of channels: choose an even one.",
                "head_width",
            )


def _smollm2(depth: int, width: int, heads: int, kv_heads: int, mlp_width: int, base: float) -> LlamaConfig:
    return LlamaConfig(
        depth=depth, width=width, heads=heads, kv_heads=kv_heads, head_width=width // heads, mlp_width=mlp_width,
        rotary_base=base,
    )  # fmt: skip


DECODERS = {
    "smollm2-135m": _smollm2(30, 576, 9, 3, 1536, 100_000.0),
    "smollm2-360m": _smollm2(32, 960, 15, 5, 2560, 100_000.0),
    "smollm2-1.7b": _smollm2(24, 2048, 32, 32, 8192, 130_000.0),
}


@dataclass(frozen=True)
class LlamaOptions(DecoderOptions, RowOptions):
    """A network of the Llama family, from random weights or from those of training.start_from."""

    SHAPE: ClassVar[tuple[str, ...]] = ("depth", "width", "heads", "kv_heads", "mlp_width")
    kind: Literal["llama"] = field(default="llama", kw_only=True, repr=False)
    size: Literal["smollm2-135m", "smollm2-360m", "smollm2-1.7b", "custom"] = "smollm2-135m"
    """A published shape; custom takes the five below."""
    depth: Depth | None = None
    """Transformer blocks of a custom size."""
    width: Width | None = None
    """Hidden width of a custom size."""
    heads: Width | None = None
    """Attention heads of a custom size."""
    kv_heads: Width | None = None
    """Heads of keys and values of a custom size, a divisor of heads."""
    mlp_width: Width | None = None
    """Width inside the MLP of a custom size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = {name: getattr(self, name) for name in self.SHAPE}
        given = [name for name, value in shape.items() if value is not None]
        absent = [name for name, value in shape.items() if value is None]
        if self.size != "custom":
            own = [each.name for each in fields(DecoderOptions) if getattr(self, each.name) != each.default]
            if given or own:
                name = (given or own)[0]
                raise OptionError(f"{name} is given although size is {self.size}: set size to custom.", name)
        elif absent:
            raise OptionError(f"size custom needs {absent[0]}: give it, or name a preset.", absent[0])
        elif self.width and self.heads and self.width % self.heads:
            raise OptionError(f"width {self.width} does not split into {self.heads} heads: choose a multiple.", "width")
        self.config()

    def config(self, causal: bool = False) -> LlamaConfig:
        """The network's shape."""
        rows = {each.name: getattr(self, each.name) for each in fields(RowOptions)}
        if self.size != "custom":
            return replace(DECODERS[self.size], causal=causal, **rows)
        depth, width, heads, kv_heads, mlp_width = (getattr(self, name) for name in self.SHAPE)
        return LlamaConfig(
            depth=depth, width=width, heads=heads, kv_heads=kv_heads, head_width=width // heads, mlp_width=mlp_width,
            causal=causal, **rows, **{each.name: getattr(self, each.name) for each in fields(DecoderOptions)},
        )  # fmt: skip

    def description(self, causal: bool = False) -> dict[str, Any]:
        """What `make_network` builds it from."""
        return {"kind": "llama", **asdict(self.config(causal))}


# -- networks from elsewhere --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImportOptions(Options):
    """A network of your own: a Python function that makes it."""

    kind: Literal["import"] = field(default="import", kw_only=True, repr=False)
    target: Text
    """What to import, "package.module:factory"; called as factory(vocab, **options), and its result is a `Denoiser`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The factory's keyword arguments."""

    def description(self, causal: bool = False) -> dict[str, Any]:
        """What `make_network` builds it from; whether it is causal is the factory's own business."""
        return {"kind": "import", "target": self.target, "options": dict(self.options)}


@dataclass(frozen=True)
class PretrainedOptions(Options):
    """The network that training.start_from holds, whatever its kind and shape; causal or not as the process needs it."""

    kind: Literal["pretrained"] = field(default="pretrained", kw_only=True, repr=False)
    depth: Depth | None = None
    """Keep so many of its blocks, evenly chosen, the first and the last among them; null: all."""
    layers: tuple[Amount, ...] | None = None
    """Keep exactly these of its blocks, numbered from 0, in ascending order."""
    attention_window: Amount | None = field(default=None, kw_only=True)
    """How many tokens to either side a token sees, and the row's first one besides; 0: the whole row, null: as the model has it.
    Of kind llama."""
    context: RowLength | None = field(default=None, kw_only=True)
    """Tokens of the longest row that it is used with; null: as the model has it, or data.length. Of kind llama."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers is None:
            return
        if self.depth is not None:
            raise OptionError("depth and layers both say which blocks are kept: set one to null.", "depth")
        if not self.layers or any(a >= b for a, b in pairwise(self.layers)):
            raise OptionError(
                f"layers is {list(self.layers)}: name some blocks, each once, in ascending order.", "layers"
            )

    def reread(self, description: Mapping[str, Any]) -> Mapping[str, Any]:
        """A network's description with what is given here of how far it sees and how long its rows may be."""
        given = {each.name: getattr(self, each.name) for each in fields(RowOptions)}
        given = {name: value for name, value in given.items() if value is not None}
        if given and description.get("kind") != "llama":
            name, kind = next(iter(given)), description.get("kind", "dit")
            raise OptionError(
                f"{name} is for networks of kind llama, and this one is of kind {kind}: leave it out.", name
            )
        return {**description, **{name: value or None for name, value in given.items()}}

    def kept(self, depth: int) -> tuple[int, ...]:
        """The blocks that are kept of `depth`."""
        last = depth - 1
        if self.layers is not None:
            if self.layers[-1] > last:
                raise OptionError(f"layers names block {self.layers[-1]}, and the model has 0 to {last}.", "layers")
            return self.layers
        count = self.depth or depth
        if count > depth:
            raise OptionError(f"depth is {count}, and the model has {depth} blocks: choose fewer.", "depth")
        return tuple((2 * i * last + count - 1) // (2 * max(1, count - 1)) for i in range(count))


ModelOptions = Annotated[DiTOptions | LlamaOptions | ImportOptions | PretrainedOptions, Discriminator("kind")]


def make_network(description: Mapping[str, Any], vocab: Vocab, generator: torch.Generator | None = None) -> Network:
    """The network that plain data describes, its weights drawn from `generator`: what recipes ask for and bundles record.

    A description has a kind and what that kind needs; those of older bundles have none and mean a DiT.
    """
    values = dict(description)
    kind = values.pop("kind", "dit")
    if not isinstance(kind, str) or kind not in NETWORKS:
        raise UserError(f"there is no network of kind {kind!r:.60}: this version of scdd builds {', '.join(NETWORKS)}.")
    module, _, name = NETWORKS[kind].partition(":")
    build: Callable[..., Network] = getattr(import_module(module), name)
    try:
        if kind == "import":
            own = ImportOptions(**values)
            if not isinstance(own.target, str) or not isinstance(own.options, Mapping):
                raise TypeError("its target is no text, or its options are no mapping")
            return build(vocab, generator, own.target, own.options)
        if kind == "dit":
            return build(DiTConfig(**values), vocab, generator)
        if values.get("rotary_scaling") is not None:
            values["rotary_scaling"] = RotaryScaling(**values["rotary_scaling"])
        return build(LlamaConfig(**values), vocab, generator)
    except TypeError as error:
        raise UserError(
            f"the network's description does not fit its kind {kind} ({reason(error)[:200]}): mend it, or use the version of "
            "scdd that wrote it."
        ) from error
