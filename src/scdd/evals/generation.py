"""Unconditional generation: N samples of a seed, drawn once, whoever asks for their judge, entropy or corrections."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

import torch

from scdd.assemble import samplers as build_samplers
from scdd.core.errors import UserError
from scdd.evals.cells import gathered, share
from scdd.evals.correction import Uncorrected
from scdd.evals.likelihood import Watch
from scdd.evals.subject import EvalModel
from scdd.evals.walk import Engine, Walked, walk
from scdd.lm import LM
from scdd.lm.run import Settings
from scdd.samplers.base import Sampler
from scdd.training.parallel import World


@dataclass(frozen=True)
class SamplingSpec:
    """How samples are drawn. None takes the recipe's setting. `nfe` is the number of network evaluations asked for.

    A sampler of your own is handed over as itself; its name and its fields are what its cells are known by.
    """

    num: int = 1024
    nfe: int = 128
    seed: int = 0
    sampler: str | Sampler | None = None
    grid: str | None = None
    final: str | None = None
    top_p: float | None = None
    top_k: int | None = None
    temperature: float | None = None
    length: int | None = None
    correct: bool = True
    """False is the no-correction ablation: visible tokens stay, masks are filled from x_θ alone."""

    def __post_init__(self) -> None:
        if self.num < 1:
            raise UserError(f"num is {self.num}: draw at least one text.")
        if self.nfe < 1:
            raise UserError(f"steps is {self.nfe}: take at least one network evaluation.")

    def settled(self, lm: LM) -> dict[str, Any]:
        """Plain data, for a cell's settings: the recipe's choices stand where this one leaves them open.

        They must be in the hash. Weights stay the same when somebody edits the sampling section beside them.
        """
        base = lm.sampling
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("final", "top_p", "top_k", "temperature"):
            found[name] = getattr(base, name) if found[name] is None else found[name]
        found["grid"] = base.grid.kind if self.grid is None else self.grid
        found |= {} if base.grid.start == 1.0 else {"start": base.grid.start}
        return found | _named(lm, self.sampler)


def _named(lm: LM, sampler: str | Sampler | None) -> dict[str, Any]:
    """A sampler's name and all its other settings."""
    if isinstance(sampler, Sampler):
        held = vars(sampler)
        if is_dataclass(sampler):  # one with slots has no vars
            held = {one.name: getattr(sampler, one.name) for one in fields(sampler)}
        options = json.loads(json.dumps(held, default=repr))
        return {"sampler": sampler.name, "options": options}
    section = lm.sampler_section(sampler)
    options = asdict(section)
    for known in ("kind", "variant"):
        options.pop(known, None)
    return {"sampler": build_samplers.name(section), "options": options}


class Drawn(NamedTuple):
    """Samples in the order of their indices, complete on every rank."""

    texts: list[str]
    tokens: list[list[int]]
    before: list[list[int]]
    """Each position's first visible token: the text as it would be had nothing been corrected afterwards."""
    moves: torch.Tensor  # [N, S, 3]
    nfe: list[int]
    settings: Settings


def settings_of(subject: EvalModel, way: SamplingSpec, batch_size: int) -> Settings:
    """The sampler, grid and filters that `way` means, with as many steps as its evaluations allow."""
    lm = subject.lm
    how = {
        name: getattr(way, name)
        for name in ("seed", "sampler", "grid", "final", "top_p", "top_k", "temperature")
        if getattr(way, name) is not None
    }
    made = lm.start(1, steps=way.nfe, stop=False, batch_size=batch_size, **how).settings
    made.sampler.check(subject.process)
    steps = way.nfe - made.sampler.rounds + (made.final == "none")
    if steps < 1:
        raise UserError(
            f"The sampler {made.sampler.name} takes {made.sampler.rounds} rounds after its walk, which leaves none of "
            f"{way.nfe} evaluations for the walk: ask for more steps, or lower sampling.sampler.corrections."
        )
    if steps != way.nfe:
        made = lm.start(1, steps=steps, stop=False, batch_size=batch_size, **how).settings
    if not way.correct:
        made = replace(made, sampler=Uncorrected(made.sampler))
    return made


def room_of(subject: EvalModel, way: SamplingSpec) -> int:
    """How many tokens a text of `way` has; refused if the context does not hold them."""
    room = subject.lm.engine.room
    length = room if way.length is None else way.length
    if not 1 <= length <= room:
        raise UserError(f"length is {length}: the model's context holds 1 to {room} tokens.")
    return length


def draw(
    subject: EvalModel,
    way: SamplingSpec,
    world: World,
    batch_size: int = 16,
    watch: Watch | None = None,
    looking: bool = True,
) -> Drawn:
    """All samples of `way`; each rank draws its share of the indices."""
    settings = settings_of(subject, way, batch_size)
    engine, length = subject.lm.engine, room_of(subject, way)
    mine = share(way.num, world)
    row = engine.framed([engine.tokenizer.mask_id] * length)
    z = torch.tensor([row], device=engine.device).expand(len(mine), -1).clone()
    frozen = z != engine.tokenizer.mask_id
    walked = walk(Engine(engine.denoiser, engine.process), settings, z, frozen, mine, watch, looking)
    return _collected(subject, walked, settings, world, length)


def _collected(subject: EvalModel, walked: Walked, settings: Settings, world: World, length: int) -> Drawn:
    engine = subject.lm.engine
    inside = slice(1, 1 + length)
    rows = list(
        zip(
            walked.tokens[:, inside].tolist(),
            walked.first[:, inside].tolist(),
            walked.moves,
            walked.nfe.tolist(),
            strict=True,
        )
    )
    every = gathered(rows, world)
    longest = max(moves.shape[0] for _, _, moves, _ in every)
    moves = torch.stack([torch.nn.functional.pad(m, (0, 0, 0, longest - m.shape[0])) for _, _, m, _ in every])
    tokens = [ended(row, engine.tokenizer.eos_id) for row, *_ in every]
    return Drawn(
        texts=[engine.text(row) for row in tokens],
        tokens=tokens,
        before=[row for _, row, *_ in every],
        moves=moves,
        nfe=[nfe for *_, nfe in every],
        settings=settings,
    )


def ended(tokens: Sequence[int], eos_id: int) -> list[int]:
    """The tokens up to the first end of text."""
    found = list(tokens)
    return found[: found.index(eos_id)] if eos_id in found else found
