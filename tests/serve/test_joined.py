"""Runs that share their evaluations: the same texts as apart."""

from __future__ import annotations

import torch

from scdd.core.rng import CounterRNG, uniforms
from scdd.lm.model import LM
from scdd.lm.run import Run


def test_seeds_of_their_own_give_the_numbers_of_their_own() -> None:
    mixed = uniforms((3, 5), CounterRNG([7, 8, 2**63 + 1], [0, 4, 1]))
    apart = [uniforms((1, 5), CounterRNG(seed, [i])) for seed, i in ((7, 0), (8, 4), (2**63 + 1, 1))]
    assert torch.equal(mixed, torch.cat(apart))


def test_joined_runs_write_what_they_write_apart(lm: LM) -> None:
    asked = [
        ({"num": 2, "prompt": "The river", "length": 60}, 1),
        ({"num": 1, "prompt": "", "length": 60}, 2),
        ({"num": 2, "prompt": "The fox", "suffix": "dog.", "length": 60}, 1),
    ]
    how = {"steps": 4, "record": True, "stop": True}
    runs = [lm.start(**each, plan=lm.plan(seed=seed, **how)) for each, seed in asked]
    joined = Run.joined(runs).results
    apart = [sample for each, seed in asked for sample in lm.generate(**each, seed=seed, **how)]
    assert [s.json() for s in joined] == [s.json() for s in apart]
    for one, other in zip(joined, apart, strict=True):
        assert one.trajectory is not None
        assert other.trajectory is not None
        assert torch.equal(one.trajectory.tokens, other.trajectory.tokens)
        assert torch.equal(one.trajectory.log_p.nan_to_num(1.0), other.trajectory.log_p.nan_to_num(1.0))


def test_places_say_whose_row_a_frame_shows(lm: LM) -> None:
    runs = [lm.start(2, length=50, plan=lm.plan(seed=s, steps=3)) for s in (1, 2)]
    joined = Run.joined(runs)
    last = {}
    for progress in joined:
        for r, place in enumerate(progress.places):
            last[place, progress.offsets[r]] = progress.frame.tokens[r, 1 : 1 + progress.lengths[r]].tolist()
    for place, sample in enumerate(joined.results):
        tokens = list(sample.tokens)
        assert tokens[:38] == last[place, 0][: len(tokens)]
