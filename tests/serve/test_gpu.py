"""On a GPU, too, an answer does not depend on its company."""

from __future__ import annotations

import random
from typing import Any

import pytest

from scdd import load

pytest.importorskip("fastapi", reason="needs fastapi: pip install -e '.[serve]'")


@pytest.mark.gpu
def test_64_mixed_requests_launched_ahead_are_answered_as_lone_ones() -> None:
    """Mixed lengths, steps, temperatures and seeds; some are watched, some leave before their end; places are taken again and again."""
    from scdd.serve.jobs import Abandoned, Job, StepEvent
    from scdd.serve.limits import Limits
    from scdd.serve.requests import Generate
    from scdd.serve.service import Service

    lm = load(device="cuda")
    service = Service(lm, Limits(batch=24, rows_per_forward=64, seconds=600.0), lent=True)
    turns, dice = service.scheduler._turns[0], random.Random(5)
    assert turns.batches.ahead
    bodies = [
        Generate(
            length=dice.choice([24, 64, 96, 128]),
            steps=dice.choice([1, 3, 8, 16, 24]),
            seed=i,
            top_p=0.9,
            temperature=dice.choice([0.8, 1.0]),
            stop=False,
        )
        for i in range(64)
    ]
    told: dict[int, list[StepEvent]] = {}

    def begun(number: int, watched: bool = False) -> Job:
        job = service.generate(bodies[number], record=watched)
        job.watch = told.setdefault(number, []).append if watched else None
        job.future.set_running_or_notify_cancel()
        turns.take(job)
        return job

    def alone(number: int) -> Any:
        job = begun(number)
        while not turns.idle:
            turns.turn()
        return job.future.result()[0].tokens

    lone = [alone(number) for number in range(64)]
    for _ in range(2):  # the second time, all that happens is replayed
        told.clear()
        jobs = []
        for number in range(64):
            jobs.append(begun(number, watched=number % 5 == 0))
            for _ in range(dice.randint(0, 2)):
                turns.turn()
            if number % 9 == 4:
                jobs[-1].drop()
        while not turns.idle:
            turns.turn()
        for number, job in enumerate(jobs):
            if number % 9 == 4:
                assert isinstance(job.future.exception(), Abandoned)
            else:
                assert job.future.result()[0].tokens == lone[number], bodies[number]
        for number, steps in told.items():
            if number % 9 != 4:
                assert [seen.step for seen in steps] == list(range(1, (bodies[number].steps or 0) + 1))
                assert tuple(steps[-1].tokens) == lone[number]
        assert turns.batches.room == 24


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_rows_of_a_group_are_the_same_alone(compiled: bool) -> None:
    """Twenty requests of mixed lengths, steps and temperatures, each coming a step after the other, and one by one."""
    from scdd.serve.limits import Limits
    from scdd.serve.requests import Generate
    from scdd.serve.service import Service

    lm = load(device="cuda")
    if compiled:
        lm.compile()
    service = Service(lm, Limits(batch=64, rows_per_forward=64, seconds=600.0), lent=True)
    turns, shape = service.scheduler._turns[0], service.scheduler.sharing.shape(62)
    assert shape == service.scheduler.sharing.shape(130)
    bodies = [
        Generate(length=40 + 4 * i, steps=8 + i, seed=3, top_p=0.9, temperature=1.0 - 0.02 * i, stop=False)
        for i in range(20)
    ]

    def drawn(gap: int) -> list[Any]:
        jobs = []
        for body in bodies:
            job = service.generate(body)
            job.future.set_running_or_notify_cancel()
            turns.take(job)
            jobs.append(job)
            for _ in range(gap):
                turns.turn()
        while not turns.idle:
            turns.turn()
        return [job.future.result()[0].tokens for job in jobs]

    assert drawn(1) == drawn(40)
