"""What a scale of the reproduction holds: trainings, systems, tuning, measurements, and what they cost. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Interval
from pydantic import Discriminator

from scdd.core.options import (
    Count,
    Inside,
    NotNegative,
    Options,
    Positive,
    ShareAboveZero,
    Temperature,
    Text,
    VocabSize,
)
from scdd.samplers.options import Convention, Final, GridKind, SamplerOptions, Steps

Seed = Annotated[int, Interval(ge=0, lt=2**31)]


class Lists(Options):
    """Options some of which are lists, none of them empty but where nothing is a choice."""

    MAY_BE_EMPTY: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for each in fields(self):  # type: ignore[arg-type]
            if each.name not in self.MAY_BE_EMPTY and getattr(self, each.name) in ((), {}):
                raise ValueError(f"{each.name} is empty: name at least one")


@dataclass(frozen=True, kw_only=True)
class CorpusOptions(Options):
    """The text that every training and every measurement is about."""

    path: Text | None = None
    """Folder that `scdd prepare` wrote; null prepares `sources` into the output folder."""
    sources: tuple[Text, ...] = ()
    """Text to prepare, as `scdd prepare` takes it; bundled is the package's own."""
    vocab_size: VocabSize = 512
    """Tokens of the BPE that is trained on the sources, or that `path` was prepared with."""
    valid_fraction: Inside = 0.05
    """Share of the documents kept for measuring."""
    how: str = ""
    """The command that makes `path`, told where it is missing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.path is None) != bool(self.sources):
            raise ValueError("corpus needs a path or sources, one of the two")


@dataclass(frozen=True, kw_only=True)
class RunsOptions(Lists):
    """A recipe, trained once for each seed."""

    MAY_BE_EMPTY = ("changes",)

    recipe: Text
    """A shipped recipe's name, or a file."""
    changes: tuple[Text, ...] = ()
    """What is changed in it, after the scale's own changes, as `scdd train --set` takes it."""
    seeds: tuple[Seed, ...] | None = None
    """Seeds; null: the scale's."""
    start_from: Text | None = None
    """Another training of this scale, whose weights of the same seed are taken over at the start."""


@dataclass(frozen=True, kw_only=True)
class SystemOptions(Options):
    """A training and a way to draw from it."""

    training: Text
    """Whose weights."""
    process: Text | None = None
    """The reverse process, where it is not the training's own."""
    sampler: SamplerOptions | None = None
    """Which tokens move; null: as in the recipe."""
    grid: GridKind | None = None
    """Spacing of the times; null: as in the recipe."""
    final: Final | None = None
    """The last step; null: as in the recipe."""
    top_p: ShareAboveZero | None = None
    """Nucleus; null: as in the recipe."""
    temperature: Temperature | None = None
    """Divides the logits; null: as in the recipe."""
    tune: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Options of the sampler that are tuned besides temperature and grid, with the values to try."""


@dataclass(frozen=True, kw_only=True)
class TuningOptions(Lists):
    """How each system is tuned: the same rule for all, on texts that are measured for nothing else.

    Of all combinations of temperature, grid and the system's own options, the one of lowest generative perplexity is taken
    among those whose entropy is at most `entropy_loss` below that of the system's untuned way.
    """

    nfe: Steps = 32
    """Network evaluations of each text."""
    num: Count = 64
    """Texts of each combination."""
    seed: Seed = 1_000_000
    """Seed of those texts, which no measurement has."""
    temperature: tuple[Temperature, ...] = (1.0,)
    """Temperatures to try."""
    grid: tuple[GridKind, ...] = ("uniform",)
    """Grids to try."""
    entropy_loss: NotNegative = 0.1
    """Nats of unigram entropy that a combination may lose."""


@dataclass(frozen=True, kw_only=True)
class ReferenceOptions(Options):
    """The language model that judges texts."""

    training: Text | None = None
    """An autoregressive training of this scale, its first seed."""
    model: Text | None = None
    """Or a hub name, a folder, a .gguf file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.training is None) == (self.model is None):
            raise ValueError("reference needs a training or a model, one of the two")


# -- measurements -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MeasuringOptions(Lists):
    """What all measurements share."""

    MAY_BE_EMPTY = ("options", "tasks")

    systems: tuple[Text, ...] | None = None
    """Which systems; null: all that can be measured so."""
    conventions: tuple[Convention, ...] = ("ours",)
    """ours, or authors: as the code behind the paper does it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the measurement, by their names in `scdd.evals.measure`."""


@dataclass(frozen=True, kw_only=True)
class LikelihoodOptions(MeasuringOptions):
    """NELBO of the validation text."""

    kind: Literal["likelihood"] = field(default="likelihood", repr=False)
    looks: Count = 8
    """Times at which each row is looked at; even."""
    rows: Count | None = None
    """Rows of the text; null: all."""


@dataclass(frozen=True, kw_only=True)
class DrawnOptions(MeasuringOptions):
    """Texts that are drawn from nothing."""

    nfe: tuple[Steps, ...]
    """Network evaluations of a text; each is a measurement."""
    num: Count
    """Texts of each."""
    length: Count | None = None
    """Tokens of a text; null fills the context."""
    tuned: Literal["no", "also", "only"] = "no"
    """Each system as it was tuned: not at all, as well, or so alone."""


@dataclass(frozen=True, kw_only=True)
class GenerationOptions(DrawnOptions):
    """Generative perplexity and entropy."""

    kind: Literal["generation"] = field(default="generation", repr=False)


@dataclass(frozen=True, kw_only=True)
class CorrectionOptions(DrawnOptions):
    """Correction rates beside the intrinsic ones, and what the corrections are worth."""

    kind: Literal["correction"] = field(default="correction", repr=False)


@dataclass(frozen=True, kw_only=True)
class RecoveryOptions(MeasuringOptions):
    """Corrupted tokens and their repair, with the damage done."""

    kind: Literal["recovery"] = field(default="recovery", repr=False)
    counts: tuple[Count, ...]
    """Corrupted tokens of a row."""
    rows: Count = 128
    """Rows."""
    repairs: tuple[Mapping[str, Any], ...] = field(default_factory=lambda: ({},))
    """Ways to repair: fields of `scdd.evals.measure.specs.Repair`."""


@dataclass(frozen=True, kw_only=True)
class ZeroShotOptions(MeasuringOptions):
    """Multiple-choice tasks, answers ranked by their bound."""

    kind: Literal["zero-shot"] = field(default="zero-shot", repr=False)
    tasks: tuple[Text, ...] = ()
    """Some of the paper's seven; none: all."""
    data: Text | None = None
    """Folder of the tasks' files; sample: a few questions inside the package; null: SCDD_BENCHMARKS."""
    passes: Count = 10
    """Monte-Carlo passes for each answer; even."""
    limit: Count | None = None
    """Questions of each task."""


@dataclass(frozen=True, kw_only=True)
class JudgedOptions(MeasuringOptions):
    """Two systems mend the same noised texts, and a language model at an endpoint says which is better."""

    kind: Literal["judge"] = field(default="judge", repr=False)
    first: Text
    """The system whose process noises."""
    second: Text
    """The system that it is set against."""
    nfe: tuple[Steps, ...]
    """Network evaluations."""
    rows: Count = 256
    """Texts."""


MeasurementOptions = Annotated[
    LikelihoodOptions | GenerationOptions | CorrectionOptions | RecoveryOptions | ZeroShotOptions | JudgedOptions,
    Discriminator("kind"),
]


# -- the scale ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RateOptions(Options):
    """Measured speeds of one process on the machine that a scale is for; a folder's own replace them once it has some."""

    device: Text
    """What one process has there."""
    unit: Literal["GPU-hours", "core-hours"] = "GPU-hours"
    """What an hour of one process is."""
    train: Positive
    """Tokens trained on in a second."""
    read: Positive
    """Tokens a second of likelihoods, each look counted."""
    draw: Positive
    """Tokens a second of sampling, each evaluation counted."""
    judge: Positive
    """Tokens a second that the reference LM reads."""
    step: NotNegative = 0.0
    """Seconds that an evaluation takes at least, however few its tokens."""
    start: NotNegative = 10.0
    """Seconds before a process trains or measures: imports, compiling, the judge."""
    task: NotNegative = 0.0
    """Seconds that each task takes besides: reading text and weights, checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Scale(Lists):
    """Everything that a reproduction trains and measures."""

    MAY_BE_EMPTY = ("changes", "comparisons")

    name: Text
    """Its name."""
    about: Text
    """What it is, for the estimate and the report."""
    seeds: tuple[Seed, ...]
    """Seeds of every training that names none."""
    corpus: CorpusOptions | None = None
    """The text; null: each recipe's own."""
    changes: tuple[Text, ...] = ()
    """What is changed in every recipe."""
    trainings: Mapping[str, RunsOptions]
    """Trainings by name."""
    systems: Mapping[str, SystemOptions]
    """Systems by name, as the report calls them."""
    reference: ReferenceOptions | None = None
    """Who judges texts; null: nobody, and only rates are measured."""
    tuning: TuningOptions | None = None
    """How systems are tuned; null: not at all."""
    measurements: tuple[MeasurementOptions, ...]
    """What is measured."""
    comparisons: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Which system stands for which of the paper's, by the name of the comparison; claims are tested in each."""
    batch_size: Count | None = None
    """Texts at a time; changes speed and memory only."""
    rates: RateOptions
    """How fast it goes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, system in self.systems.items():
            _among(f"systems.{name}.training", system.training, self.trainings)
        for name, training in self.trainings.items():
            if training.start_from is not None:
                _among(f"trainings.{name}.start_from", training.start_from, self.trainings)
                if self.trainings[training.start_from].start_from is not None:
                    raise ValueError(f"trainings.{name}.start_from {training.start_from} starts from another itself")
                missing = set(self.seeds_of(name)) - set(self.seeds_of(training.start_from))
                if missing:
                    raise ValueError(
                        f"trainings.{name} has seeds that {training.start_from} lacks: {sorted(missing)}; give both the same"
                    )
        if self.reference is not None and self.reference.training is not None:
            _among("reference.training", self.reference.training, self.trainings)
        for place, one in enumerate(self.measurements):
            named = (one.first, one.second) if isinstance(one, JudgedOptions) else one.systems or ()
            for name in named:
                _among(f"measurements.{place}", name, self.systems)
            if isinstance(one, DrawnOptions) and one.tuned != "no" and self.tuning is None:
                raise ValueError(f"measurements.{place}.tuned asks for tuned systems, and there is no tuning")
            if isinstance(one, GenerationOptions) and self.reference is None:
                raise ValueError(f"measurements.{place} needs a language model that judges: give reference")
        if self.tuning is not None and self.reference is None:
            raise ValueError("tuning needs a language model that judges: give reference")
        for comparison, roles in self.comparisons.items():
            for role, name in roles.items():
                _among(f"comparisons.{comparison}.{role}", name, self.systems)

    def seeds_of(self, training: str) -> tuple[int, ...]:
        """The seeds of a training."""
        return self.trainings[training].seeds or self.seeds


def _among(place: str, name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        raise ValueError(f"{place} {name} is not one of {', '.join(known)}")
