"""What may be chosen of a training run: how long, how much at a time, the optimiser, and what happens on the way."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from annotated_types import Interval

from scdd.core.errors import OptionError
from scdd.core.options import Amount, BatchSize, Count, NotNegative, Options, Positive, Share, ShareBelowOne, Text


@dataclass(frozen=True, kw_only=True, repr=False)
class LengthOptions(Options):
    """How long a run is."""

    steps: Count
    """Optimiser steps."""


@dataclass(frozen=True, kw_only=True, repr=False)
class BatchOptions(LengthOptions):
    """How much it sees at a time."""

    batch_size: BatchSize
    """Sequences in an optimiser step, over all devices."""
    micro_batch_size: Count | None = None
    """Sequences on one device at a time, the rest is accumulated; null takes the whole share of the device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            raise OptionError(
                f"batch_size {self.batch_size} is not a multiple of micro_batch_size {self.micro_batch_size}: "
                "change one of them.",
                "micro_batch_size",
            )


@dataclass(frozen=True, kw_only=True, repr=False)
class OptimiserOptions(LengthOptions):
    """AdamW as in the paper (appendix "Training Details"), or Muon with AdamW around it."""

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


@dataclass(frozen=True)
class LoraOptions(Options):
    """LoRA: the weights stay as they are, and a product of two thin matrices is learnt beside each; needs peft."""

    rank: Count = 16
    """Width between the two."""
    alpha: Positive = 32.0
    """The product counts alpha / rank times."""
    targets: tuple[Text, ...] | None = None
    """Names of the linear layers to adapt, or their ends (qkv, out); null: all that map activations to activations."""

    @property
    def scale(self) -> float:
        """What the product is multiplied with."""
        return self.alpha / self.rank


@dataclass(frozen=True)
class GuardOptions(Options):
    """What happens when a loss or a gradient is not finite, or when the loss leaps.

    A step whose loss or gradient is NaN or infinite is always left out: weights, moments and average stay as they are.
    Rolling back returns to the last checkpoint and skips the batches from there up to the one at fault.
    """

    not_finite: Count = 10
    """So many such steps one after the other roll the run back, since weights that stay the same will not mend; weights
    that are not finite themselves do so at once."""
    spike: Positive | None = None
    """A step's loss is a spike if it is above the median of the last ones by this many times their median absolute
    deviation; null: spikes are not looked for. Losses of noisy objectives need 10 or more."""
    spike_steps: Count = 5
    """So many spikes one after the other roll the run back."""
    window: Annotated[int, Interval(ge=8, le=10_000)] = 200
    """Losses over which the median is taken; spikes are looked for once half of them are there."""
    rollbacks: Amount = 3
    """How often a run may be rolled back; the next time it stops. 0: it stops at once."""


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingOptions(OptimiserOptions, BatchOptions):
    """The optimiser and the run. The defaults are the paper's where it names them."""

    ema: ShareBelowOne = 0.9999
    """Decay of the averaged weights that are saved for sampling; 0 saves the raw ones."""
    precision: Literal["bf16", "fp8", "float32"] = "bf16"
    """Type of the activations; weights are always float32. fp8 is bf16 with the products inside the blocks in FP8 while training,
    each matrix scaled by its maximum: for wide networks (dit, llama; 1.04 × as fast at a width of 1,024 and 1.2 × at 2,048), compiled,
    on GPUs that have such products. What it does to a run of more than minutes has not been measured."""
    compile: bool = True
    """Compile the network."""
    cuda_graphs: bool = False
    """Replay the compiled passes as CUDA graphs, on one GPU: faster for narrow networks of many layers, whose kernels are
    over before the next is launched."""
    recompute: bool = False
    """Keep little of the forward pass and compute each block again in the backward pass: a fifth of the memory for a third
    more time. Needs a network of kind dit or llama."""
    keep_products: bool = False
    """Keep the gated products of a llama's MLPs, which a GPU's backward pass makes again otherwise: one percent faster, and half as
    much again of what an MLP keeps. Nothing changes where recompute or LoRA decides what is kept."""
    deterministic: bool = False
    """Same bits from run to run, and after resuming, on a GPU as well; slower there. A CPU does so anyway."""
    parallel: Literal["auto", "none", "ddp", "fsdp", "hsdp"] = "auto"
    """How several devices share the work; auto is ddp under torchrun and none otherwise. fsdp spreads one copy of the
    model over all of them, hsdp one over those of each node."""
    shard_ranks: Count | None = None
    """Ranks that share one copy of the model under hsdp; null: those of a node."""
    timeout: Positive = 600.0
    """Seconds that ranks wait for each other in a step before the run ends, to be restarted by torchrun."""
    save_every: Count = 5000
    """Steps between checkpoints."""
    background_save: bool = True
    """Write checkpoints while the run goes on, from a copy in the host's memory; false waits for the disk."""
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
    guard: GuardOptions = GuardOptions()
    """What happens when a loss or a gradient is not finite, or when the loss leaps."""
    watchdog: Positive | None = 480.0
    """Seconds in which no rank of several gets on before the run names those that are behind and ends with status 75, so that
    torchrun starts it again; ten times as many for the first step, a validation and a checkpoint. null: none. NCCL gives up
    on a collective after 600 of its own, without naming a rank."""
    tensorboard: bool = True
    """Write TensorBoard events into the run folder."""
    wandb: Text | None = None
    """Weights & Biases project to log to."""
    grow_attention: Amount = 0
    """Steps in which a network that was causal comes to see what follows, a little further each time; 0: at once. Until
    then validation sees as far as training does, and a checkpoint's network the whole row."""
    start_from: Text | None = None
    """Checkpoint whose weights are taken over at the start; it may come from another process."""
    lora: LoraOptions | None = None
    """Train small adapters beside the network's matrices; what is published has them merged. null: the whole network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lora is not None and self.muon is not None:
            raise OptionError("muon trains whole matrices, and lora keeps them as they are: set one to null.", "muon")
        if self.lora is not None and self.precision == "fp8":
            raise OptionError(
                "fp8 is for matrices that are trained, and lora keeps them as they are: use bf16.", "precision"
            )
        if self.precision == "fp8" and not self.compile:
            # On an H200 the compiled products passed their tests and those that are not compiled failed; why is not known yet.
            raise OptionError("fp8 is for compiled networks: set compile to true, or precision to bf16.", "precision")
        if self.grow_attention > self.steps:
            raise OptionError(
                f"grow_attention {self.grow_attention} is more than the {self.steps} steps, so the network would never see "
                "a whole row: choose fewer, or 0.",
                "grow_attention",
            )


CHANGEABLE = frozenset(
    (
        *(
            "steps",
            "max_seconds",
            "micro_batch_size",
            "compile",
            "cuda_graphs",
            "recompute",
            "keep_products",
            "parallel",
            "watchdog",
            "shard_ranks",
            "timeout",
            "background_save",
            "tensorboard",
            "wandb",
        ),
        *("save_every", "keep_last", "validate_every", "validate_batches", "log_every", "sample_every"),
        *(f"guard.{each.name}" for each in fields(GuardOptions)),
    )
)
"""What may differ when a run is resumed: how long, how often, on what, and how trouble is met, but never what is learnt."""
