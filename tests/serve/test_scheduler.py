"""How long things take decides who is taken when, and who is let in."""

from __future__ import annotations

import pytest

from scdd.lm.model import LM

pytest.importorskip("fastapi", reason="needs fastapi: pip install -e '.[serve]'")

from scdd.serve.errors import ApiError
from scdd.serve.jobs import Job, cost
from scdd.serve.limits import Limits
from scdd.serve.requests import Generate
from scdd.serve.service import Service

COST = cost(30, 4)  # of the texts below


def jobs(service: Service, count: int) -> list[Job]:
    return [service.generate(Generate(length=30, steps=4, seed=seed)) for seed in range(count)]


def service(lm: LM, seconds_a_text: float) -> Service:
    """One that nobody works for yet, and that takes so long."""
    made = Service(lm, Limits(seconds=10.0, batch=16), threads=1, lent=True)
    made.scheduler.learn(COST, seconds_a_text)
    return made


@pytest.mark.parametrize(
    ("seconds", "waited", "most"), [(0.01, 0.0, 6), (1.0, 0.0, 6), (1.9, 0.0, 4), (1.9, 5.0, 1), (9.0, 0.0, 6)]
)
def test_nobody_is_taken_who_would_make_others_late(lm: LM, seconds: float, waited: float, most: int) -> None:
    """Jobs should be done after eight of ten seconds; those that cannot be done in time anyway keep nobody waiting."""
    made, seen = service(lm, seconds), []
    walked, turns = made.scheduler._turns[0].batches.step, made.scheduler._turns[0]
    turns.batches.step = lambda: (seen.append(len(turns.batches.jobs)), walked())  # type: ignore[assignment, return-value, func-returns-value]
    made.scheduler.learn = lambda cost, seconds: None  # type: ignore[method-assign]
    waiting = jobs(made, 6)
    for job in waiting:
        job.arrived -= waited
    made.scheduler._pending["texts"].extend(waiting)
    made.scheduler.close()
    made.scheduler.work()
    assert seen[0] == most, "at first"
    assert [job.future.result()[0].seed for job in waiting] == list(range(6))


def test_a_short_request_is_let_in_beside_a_long_one(lm: LM) -> None:
    """It takes no longer for it, since everybody takes steps in turn; where all places are taken, it would."""
    for batch, let_in in ((2, True), (1, False)):
        made = Service(lm, Limits(seconds=10.0, batch=batch), threads=1, lent=True)
        made.scheduler.learn(COST, 0.035)
        made.scheduler.submit([made.generate(Generate(length=30, steps=1024, seed=1))])
        short = jobs(made, 1)
        if not let_in:
            with pytest.raises(ApiError):
                made.scheduler.submit(short)
            continue
        made.scheduler.submit(short)
        assert made.scheduler._harmless(short[0], [*made.scheduler._pending["texts"]])


def test_who_could_not_be_answered_in_time_is_told_at_once(lm: LM) -> None:
    """Two seconds a text and ten for an answer: four can wait, with something to spare."""
    made = service(lm, 2.0)
    for job in jobs(made, 4):
        made.scheduler.submit([job])
    with pytest.raises(ApiError) as caught:
        made.scheduler.submit(jobs(made, 1))
    assert caught.value.status == 429
    assert caught.value.headers == {"Retry-After": "4"}
    assert made.scheduler.waiting() == 4


def test_what_is_too_long_for_the_limit_alone_is_let_in(lm: LM) -> None:
    """It will be told so by a 504, and not to come back."""
    made = service(lm, 60.0)
    made.scheduler.submit(jobs(made, 1))
    assert made.scheduler.waiting() == 1


def test_the_pace_follows_what_is_carried_out(lm: LM) -> None:
    made = service(lm, 1.0)
    made.scheduler.submit(jobs(made, 1))
    with pytest.raises(ApiError):
        made.scheduler.submit(jobs(made, 8))
    for _ in range(30):
        made.scheduler.learn(COST, 0.001)
    made.scheduler.submit(jobs(made, 8))
    assert made.scheduler.waiting() == 9


def test_after_the_end_nothing_is_taken(lm: LM) -> None:
    made = service(lm, 0.01)
    (taken,) = jobs(made, 1)
    made.scheduler.submit([taken])
    made.scheduler.close()
    with pytest.raises(ApiError) as caught:
        made.scheduler.submit(jobs(made, 1))
    assert caught.value.status == 503
    assert caught.value.headers is not None
    assert "Retry-After" in caught.value.headers
    made.scheduler.work()
    assert taken.future.done()
