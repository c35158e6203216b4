"""Data, model and training sections, and the recipe that holds them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Interval
from pydantic import Discriminator

from scdd.recipe.base import (
    Amount,
    Count,
    Inside,
    NotNegative,
    Positive,
    Section,
    Share,
    ShareBelowOne,
    Text,
)
from scdd.recipe.objective import ElboObjective, Objective
from scdd.recipe.process import Process
from scdd.recipe.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class ShardsData(Section):
    """Token shards that `scdd prepare` wrote."""

    kind: Literal["shards"] = "shards"
    """Which kind of data."""
    path: Text
    """Folder of the shards."""
    length: Count = 512
    """Tokens in a sequence."""
    documents: bool = False
    """Keep attention inside each document of a packed sequence."""


@dataclass(frozen=True, kw_only=True)
class TextData(Section):
    """Plain text, tokenised when the run starts: for small texts and demonstrations."""

    kind: Literal["text"] = "text"
    """Which kind of data."""
    path: Text = "bundled"
    """A text file or a folder of them, documents apart by blank lines; bundled is the small text in the package."""
    tokenizer: Text | None = None
    """A tokenizer.json or a name on the hub; null trains a byte-level BPE on the text itself."""
    vocab_size: Annotated[int, Ge(259)] = 2048
    """Tokens of the BPE when it is trained here, special ones included."""
    length: Count = 128
    """Tokens in a sequence."""
    documents: bool = False
    """Keep attention inside each document of a packed sequence."""
    valid_fraction: Inside = 0.05
    """Share of the text kept for validation."""


Data = Annotated[ShardsData | TextData, Discriminator("kind")]


@dataclass(frozen=True, kw_only=True)
class Model(Section):
    """The denoising network."""

    kind: Literal["dit"] = "dit"
    """Which network: a diffusion transformer."""
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


@dataclass(frozen=True, kw_only=True)
class Training(Section):
    """The optimiser and the run. The defaults are the paper's where it names them."""

    steps: Count
    """Optimiser steps."""
    batch_size: Count
    """Sequences in an optimiser step, over all devices."""
    micro_batch_size: Count | None = None
    """Sequences on one device at a time, the rest is accumulated; null takes the whole share of the device."""
    learning_rate: Positive = 5e-4
    """Peak learning rate of AdamW."""
    initial_learning_rate: NotNegative = 1e-6
    """Learning rate from which the warm-up rises."""
    final_fraction: Share = 0.1
    """Learning rate at the end of the cosine decay, as a share of the peak."""
    warmup_steps: Amount = 10_000
    """Steps of linear warm-up."""
    weight_decay: NotNegative = 0.02
    """AdamW's decoupled weight decay."""
    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.999)
    """AdamW's two moment decays."""
    epsilon: Positive = 1e-9
    """AdamW's epsilon."""
    clip: Positive | None = 1.0
    """Largest gradient norm; null does not clip."""
    muon: Positive | None = None
    """Peak learning rate of Muon for the matrices inside the blocks, which learns faster; null: AdamW for all."""
    momentum: ShareBelowOne = 0.95
    """Muon's momentum."""
    ema: ShareBelowOne = 0.9999
    """Decay of the averaged weights that are saved for sampling; 0 saves the raw ones."""
    precision: Literal["bf16", "float32"] = "bf16"
    """Type of the activations; weights are always float32."""
    compile: bool = True
    """Compile the network."""
    deterministic: bool = False
    """Same bits from run to run, and after resuming, on a GPU as well; slower there. A CPU does so anyway."""
    parallel: Literal["auto", "none", "ddp", "fsdp"] = "auto"
    """How several devices share the work; auto is ddp under torchrun and none otherwise."""
    save_every: Count = 5000
    """Steps between checkpoints."""
    keep_last: Count = 2
    """Checkpoints kept."""
    validate_every: Count = 5000
    """Steps between validations."""
    validate_batches: Count = 50
    """Batches in a validation."""
    log_every: Count = 50
    """Steps between log lines."""
    sample_every: Count | None = None
    """Steps between logged samples; null logs none."""
    max_seconds: Positive | None = None
    """Stop and save after this much training time, whatever the step."""
    tensorboard: bool = True
    """Write TensorBoard events into the run folder."""
    wandb: Text | None = None
    """Weights & Biases project to log to."""
    start_from: Text | None = None
    """Checkpoint whose weights are taken over at the start; it may come from another process."""

    def __post_init__(self) -> None:
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of micro_batch_size {self.micro_batch_size}"
            )


@dataclass(frozen=True, kw_only=True)
class Recipe(Section):
    """Every choice of a run."""

    name: Text
    """Name of the run."""
    seed: Annotated[int, Interval(ge=0, lt=2**63)] = 0
    """Seed of everything random."""
    data: Data
    """What to train on."""
    model: Model = Model()
    """The network."""
    process: Process
    """The forward process."""
    objective: Objective = ElboObjective()
    """What training minimises."""
    training: Training
    """The optimiser and the run."""
    sampling: Sampling = Sampling()
    """How text is drawn from the trained model unless something else is asked for."""

    def __post_init__(self) -> None:
        process, objective = self.process.kind, self.objective.kind
        if (process == "ar") != (objective == "ar"):
            raise ValueError(
                f"objective.kind {objective} does not fit process.kind {process}: "
                "ar needs ar in both, and the other objectives need a diffusion process"
            )
        if objective == "prism" and process != "mdlm":
            raise ValueError(f"objective.kind prism needs process.kind mdlm, not {process}")
        if (process == "ar") != (self.sampling.sampler.kind == "ar"):
            raise ValueError(
                f"sampling.sampler.kind {self.sampling.sampler.kind} does not fit process.kind {process}: "
                "the sampler ar and the process ar go together"
            )
