"""On a GPU, too, an answer does not depend on its company."""

from __future__ import annotations

from typing import Any

import pytest

from scdd import load

pytest.importorskip("fastapi", reason="needs fastapi: pip install -e '.[serve]'")


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
