"""Requests that come at any step: each is answered as if it were alone, in time, whatever else is asked for."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from scdd.lm.model import LM
from scdd.lm.run import Engine
from scdd.samplers.graphs import Replay, StepGraphs
from scdd.samplers.readback import Readback
from scdd.samplers.row_batch import RowBatch

pytest.importorskip("fastapi", reason="needs fastapi: pip install -e '.[serve]'")

from scdd.serve import batches
from scdd.serve import requests as ask
from scdd.serve.jobs import Abandoned, Job, StepEvent
from scdd.serve.limits import Limits
from scdd.serve.service import Service
from scdd.serve.turns import Turns

SCDD: dict[str, Any] = {}
MDLM: dict[str, Any] = {"process": {"kind": "mdlm"}}
SAMPLERS = [
    ("ancestral", SCDD),
    ("ancestral", MDLM),
    ("gidd-correct", SCDD),
    ("threshold", MDLM),
    ("remdm-conf", MDLM),
    ("p2", MDLM),
]
FINALS = ("ancestral", "greedy", "none")
TEXT = "The river runs to the sea."


@pytest.fixture
def service(lm: LM) -> Service:
    return made(lm)


def made(lm: LM, **limits: Any) -> Service:
    """One that nobody works for but the test."""
    return Service(lm, Limits(**{"seconds": 600.0, "batch": 12, "length": 100, **limits}), threads=1, lent=True)


def turns_of(service: Service) -> Turns:
    """The turns of its only worker, taken by hand in this thread."""
    scheduler = service.scheduler
    scheduler._here.turns = scheduler._turns[0]
    return scheduler._turns[0]


def begin(turns: Turns, job: Job) -> Job:
    assert job.future.set_running_or_notify_cancel()
    turns.take(job)
    return job


def taken(future: Future[Any], turns: Turns) -> int:
    """Turns until it is done."""
    count = 0
    while not future.done():
        turns.turn()
        count += 1
    return count


def some(dice: random.Random) -> tuple[str, dict[str, Any]]:
    """Any request."""
    kind = dice.choice(["generate"] * 5 + ["infill", "gap", "reverse", "pass", "score"])
    how: dict[str, Any] = {"seed": dice.randrange(99), "steps": dice.choice([1, 5, 9, 16])}
    if kind in ("generate", "infill"):
        how |= {"num": dice.randint(1, 3), "grid": dice.choice(["uniform", "cosine"])}
        how |= {"temperature": dice.choice([0.7, 1.0])}
        if dice.random() < 0.4:
            sampler, process = dice.choice(SAMPLERS)
            how |= {"sampler": sampler, "top_p": dice.choice([0.9, 1.0]), "final": dice.choice(FINALS), **process}
    if kind == "generate":
        return kind, {**how, "length": dice.choice([20, 20, 20, 33, 70]), "stop": dice.random() < 0.5}
    if kind == "infill":
        return kind, {**how, "text": "The [MASK:5] dog [MASK]"}
    if kind == "gap":
        return "infill", {**how, "text": "The [MASK:2-4] dog"}
    if kind == "score":
        return kind, {"text": TEXT, "strength": 0.2}
    return "correct", {"text": TEXT * dice.choice([1, 5]), "mode": kind, "seed": how["seed"], "strength": 0.4}


SHAPES = {"generate": ask.Generate, "infill": ask.Infill, "correct": ask.Correct, "score": ask.Score}


def job_of(service: Service, kind: str, body: dict[str, Any], record: bool) -> Job:
    make: Callable[..., Job] = getattr(service, kind)
    asked = SHAPES[kind](**body)
    return make(asked) if kind == "score" else make(asked, record=record)


def alone(service: Service, kind: str, body: dict[str, Any]) -> Any:
    lm, given = service.view(SHAPES[kind](**body)), {name: value for name, value in body.items() if name != "process"}
    return getattr(lm, kind)(**given, **({"blocks": True} if kind != "generate" else {}))


def plain(answer: Any) -> Any:
    if isinstance(answer, tuple):
        return [plain(each) for each in answer]
    return (answer.json(), getattr(answer, "doubts", None))


@pytest.mark.parametrize("seed", range(2))
def test_whoever_comes_when_is_answered_as_if_alone(service: Service, seed: int) -> None:
    dice, turns = random.Random(seed), turns_of(service)
    asked, told = [], {}
    for i in range(26):
        kind, body = some(dice)
        watched = kind in ("generate", "infill") and dice.random() < 0.4
        job = job_of(service, kind, body, record=watched)
        if watched:
            told[i] = list[StepEvent]()
            job.watch = told[i].append
        asked.append((kind, body, begin(turns, job)))
        for _ in range(dice.randint(0, 2)):
            turns.turn()
        if dice.random() < 0.2:
            asked[-1][2].drop()
    while not turns.idle:
        turns.turn()
    left = 0
    for i, (kind, body, job) in enumerate(asked):
        if not job.wanted and job.future.exception() is not None:
            left += isinstance(job.future.exception(), Abandoned)
            continue
        assert plain(job.future.result()) == plain(alone(service, kind, body)), (kind, body)
        if i in told and "2-4" not in body.get("text", ""):
            for number, sample in enumerate(job.future.result()):
                steps = [(seen.offset, seen.step) for seen in told[i] if seen.row == number]
                assert steps == sorted(set(steps)), "each step once, in order"
                assert len(steps) == max(1, sample.nfe) or body.get("final") == "none"
    assert left == service.meters.abandoned._value.get() > 0
    assert service.meters.joined._value.get() > 4
    assert turns.batches.room == 12, "every place is free again"


def test_a_fixed_shape_gives_the_same_texts_for_mixed_lengths(lm: LM) -> None:
    """As on a GPU: a few rows of one width, filled up, whatever their lengths."""
    service = made(lm, rows_per_forward=4, batch=8)
    bodies = [ask.Generate(length=9 + 5 * i, steps=3 + i, seed=i, temperature=0.8 + 0.1 * i) for i in range(5)]

    def drawn(gap: int) -> list[Any]:
        turns, jobs = turns_of(service), []
        for body in bodies:
            jobs.append(begin(turns, service.generate(body)))
            for _ in range(gap):
                turns.turn()
        while not turns.idle:
            turns.turn()
        return [plain(job.future.result()) for job in jobs]

    apart, before = drawn(8), service.meters.evaluations._value.get()
    assert drawn(1) == apart
    together = service.meters.evaluations._value.get() - before
    assert together < 0.6 * before
    evaluations, rows = (service.meters.evaluations._value.get(), service.meters.evaluated_rows._value.get())
    assert evaluations < rows < 4 * evaluations, "one row or four at a time"


class Replayed(LM):
    """A model whose steps are replayed on a CPU, as a GPU does."""

    @property
    def engine(self) -> Engine:
        found = super().engine
        if self._steps is None:
            self._steps = StepGraphs(captured)
        return replace(found, model=replace(found.model, graphs=self._steps))


def captured(run: Callable[[], None]) -> Replay:
    return type("Again", (), {"replay": staticmethod(run)})()


def replayed(lm: LM, **limits: Any) -> Service:
    """As on a GPU: a few rows of one width, filled up, in places; and a step is launched before the last one is looked at."""
    model = copy(lm)
    model.__class__, model._steps = Replayed, None
    service = made(model, rows_per_forward=4, **limits)
    service.scheduler._turns[0].batches.ahead = True
    return service


def drawn(
    service: Service, bodies: list[dict[str, Any]], dice: random.Random
) -> tuple[list[Any], list[list[StepEvent]]]:
    """The answers to requests that come when they like, some of them watched and some dropped, and what watchers were told."""
    turns, jobs, told = turns_of(service), list[Job](), [list[StepEvent]() for _ in bodies]
    for i, body in enumerate(bodies):
        job = service.generate(ask.Generate(**body), record=i % 3 == 0)
        if i % 3 == 0:
            job.watch = told[i].append
        jobs.append(begin(turns, job))
        for _ in range(dice.randint(0, 2)):
            turns.turn()
        if i % 7 == 5:
            job.drop()
    while not turns.idle:
        turns.turn()
    for job in jobs[5::7]:
        assert isinstance(job.future.exception(), Abandoned)
    assert turns.batches.room == service.limits.batch, "every place is free again"
    return [plain(job.future.result()) for i, job in enumerate(jobs) if i % 7 != 5], told


def of_all_kinds(count: int) -> list[dict[str, Any]]:
    dice, bodies = random.Random(7), []
    for seed in range(count):
        how = {"length": dice.choice([9, 20, 33, 38, 70]), "steps": dice.choice([1, 2, 5, 9, 16]), "seed": seed}
        how |= {"temperature": dice.choice([0.7, 1.0]), "num": dice.choice([1, 1, 1, 2, 5]), "stop": seed % 2 == 0}
        if dice.random() < 0.4:
            sampler, process = dice.choice(SAMPLERS)
            how |= {"sampler": sampler, "top_p": dice.choice([0.9, 1.0]), "final": dice.choice(FINALS), **process}
        bodies.append(how)
    return bodies


def test_steps_ahead_of_what_was_seen_change_no_answer(lm: LM) -> None:
    """Sixty requests of mixed settings: launched ahead in places, and looked at step by step in tensors of their own."""
    bodies = of_all_kinds(60)
    usual, told = drawn(made(lm, rows_per_forward=4), bodies, random.Random(1))
    for seed in (1, 2):
        found, seen = drawn(replayed(lm), bodies, random.Random(seed))
        assert found == usual
        for mine, others in zip(seen, told, strict=True):
            steps = [(each.row, each.offset, each.step) for each in mine]
            assert len(steps) == len(set(steps)), "each step once"
            if seed == 1 and others:
                assert sorted(steps) == sorted((each.row, each.offset, each.step) for each in others)
    alone = replayed(lm)
    for body, found_alone in zip([b for i, b in enumerate(bodies) if i % 7 != 5][:8], usual, strict=False):
        job = begin(turns_of(alone), alone.generate(ask.Generate(**body)))
        taken(job.future, turns_of(alone))
        assert plain(job.future.result())[0][0]["text"] == found_alone[0][0]["text"]


def test_a_step_ahead_takes_no_longer(lm: LM) -> None:
    """A place is free for others when a walk's last step is launched; the answer comes when that is looked at."""
    service = replayed(lm, batch=1)
    turns = turns_of(service)
    jobs = [begin(turns, service.generate(ask.Generate(length=20, steps=4, seed=seed))) for seed in range(3)]
    assert [taken(job.future, turns) for job in jobs] == [5, 4, 4]
    assert turns.idle


def test_what_a_gpu_tells_late_is_the_mistake_of_all_that_were_there(lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third step fails, which is found when the fourth is launched: rows that have ended and those that have joined begin again."""
    service = replayed(lm)
    turns, waits = turns_of(service), iter([False, False, True])
    wait = Readback.wait

    def late(self: Readback) -> None:
        if next(waits, False):
            raise RuntimeError("an illegal memory access")
        wait(self)

    bodies = [{"length": 20, "steps": steps, "seed": steps} for steps in (3, 4, 9)]
    wanted = [plain(begin_alone(lm, body)) for body in bodies]
    monkeypatch.setattr(Readback, "wait", late)
    jobs = [begin(turns, service.generate(ask.Generate(**body))) for body in bodies[:2]]
    for _ in range(3):
        turns.turn()
    jobs.append(begin(turns, service.generate(ask.Generate(**bodies[2]))))
    turns.turn()
    assert [job.alone for job in jobs] == [True] * 3
    assert not any(job.future.done() for job in jobs)
    while not turns.idle:
        turns.turn()
    assert [plain(job.future.result()) for job in jobs] == wanted
    assert turns.batches.room == 12


def test_a_lone_job_is_told_what_its_gpu_tells_late(lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(self: Readback) -> None:
        raise RuntimeError("an illegal memory access")

    service = replayed(lm)
    turns = turns_of(service)
    monkeypatch.setattr(Readback, "wait", late)
    job = begin(turns, service.generate(ask.Generate(length=20, steps=5, num=2)))
    assert taken(job.future, turns) == 2
    assert str(job.future.exception()) == "an illegal memory access"
    assert turns.idle


def test_no_other_worker_comes_between_a_step_and_the_look_at_it(lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take over the tensors that the rows are in: the answers would be those of its own requests."""
    service = replayed(lm, workers=2)
    bodies = [{"length": 20, "steps": 4, "seed": seed} for seed in range(2)]
    wanted = [plain(begin_alone(lm, body)) for body in bodies]
    one, other = service.scheduler._turns
    other.batches.ahead = True
    jobs = [
        begin(turns, service.generate(ask.Generate(**body))) for turns, body in zip((one, other), bodies, strict=True)
    ]
    came, looked = list[threading.Thread](), Readback.begin

    def interrupted(self: Readback, wanted: bool = True) -> None:
        if threading.current_thread() is threading.main_thread():
            came.append(threading.Thread(target=other.turn, daemon=True))
            came[-1].start()
            came[-1].join(0.2)
        looked(self, wanted)

    monkeypatch.setattr(Readback, "begin", interrupted)
    while not one.idle:
        one.turn()
        for thread in came:
            thread.join(20)
    monkeypatch.undo()
    while not other.idle:
        other.turn()
    assert [plain(job.future.result()) for job in jobs] == wanted
    assert len(came) == 4


@pytest.mark.parametrize("ahead", [False, True])
def test_texts_that_cannot_be_told_are_the_mistake_of_one_job(
    lm: LM, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    service = replayed(lm) if ahead else made(lm)
    turns, whole = turns_of(service), batches.sample_of

    def told(engine: Engine, plan: Any, text: Any) -> Any:
        if plan.seed == 1:
            raise ValueError("no such token")
        return whole(engine, plan, text)

    monkeypatch.setattr(batches, "sample_of", told)
    jobs = [begin(turns, service.generate(ask.Generate(length=20, steps=4 + seed, seed=seed))) for seed in range(3)]
    while not turns.idle:
        turns.turn()
    assert str(jobs[1].future.exception()) == "no such token"
    assert [job.future.result()[0].seed for job in (jobs[0], jobs[2])] == [0, 2]
    assert turns.batches.room == 12


def test_a_batch_that_another_s_mistake_has_emptied_takes_no_step(lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of several lengths, of which the first batch's step fails: the others are of the same job, and gone."""
    service = made(lm)
    turns, steps = turns_of(service), list[int]()

    def failing(batch: RowBatch) -> Readback:
        steps.append(len(batch.rows))
        raise RuntimeError("out of memory")

    monkeypatch.setattr(batches, "launch", failing)
    job = begin(turns, service.infill(ask.Infill(text="The [MASK:2-4] dog", steps=4, seed=1)))
    turns.turn()
    assert str(job.future.exception()) == "out of memory"
    assert len(steps) == 1
    assert turns.idle


def begin_alone(lm: LM, body: dict[str, Any]) -> Any:
    service = replayed(lm)
    job = begin(turns_of(service), service.generate(ask.Generate(**body)))
    taken(job.future, turns_of(service))
    return job.future.result()


def test_a_short_request_beside_a_long_one_takes_its_own_steps(service: Service) -> None:
    turns = turns_of(service)
    long = begin(turns, service.generate(ask.Generate(length=30, steps=1024, seed=1)))
    for _ in range(5):
        turns.turn()
    short = begin(turns, service.generate(ask.Generate(length=30, steps=7, seed=2)))
    assert taken(short.future, turns) == 7
    score = begin(turns, service.score(ask.Score(text=TEXT)))
    assert taken(score.future, turns) == 1
    long.drop()
    turns.turn()
    assert isinstance(long.future.exception(), Abandoned), "it leaves at the next step"
    assert turns.idle


def test_a_job_of_many_texts_leaves_places_to_others(service: Service) -> None:
    """Free places go to whoever has the fewest: here the late one gets its place when the first of sixteen texts ends."""
    turns = turns_of(service)
    many = begin(turns, service.infill(ask.Infill(text="The [MASK:1-8] dog [MASK:1-2]", steps=4, seed=1)))
    turns.turn()
    late = begin(turns, service.generate(ask.Generate(length=20, steps=3, seed=2)))
    assert taken(late.future, turns) == 3 + 3
    taken(many.future, turns)


def test_steps_go_on_between_the_evaluations_of_a_long_piece_of_work(service: Service) -> None:
    turns = turns_of(service)
    walking = begin(turns, service.generate(ask.Generate(length=30, steps=6, seed=1)))
    score = begin(turns, service.score(ask.Score(text=TEXT)))
    edits = begin(turns, service.correct(ask.Correct(text="The river run to teh sea.", mode="edit", seed=3)))
    ends: list[str] = []
    for name, job in (("walk", walking), ("score", score), ("edits", edits)):
        job.future.add_done_callback(lambda _, name=name: ends.append(name))
    turns.turn()  # the edits begin in this turn, and all the others happen inside of it
    assert ends == ["score", "walk", "edits"]
    assert plain(walking.future.result()) == plain(service.lm.generate(length=30, steps=6, seed=1))
    assert edits.future.result() == service.lm.correct("The river run to teh sea.", mode="edit", seed=3, blocks=True)


def test_work_that_nobody_waits_for_stops_at_its_next_evaluation(service: Service) -> None:
    turns = turns_of(service)
    edits = begin(turns, service.correct(ask.Correct(text="The river run to teh sea.", mode="edit")))
    walking = service.generate(ask.Generate(length=20, steps=1))
    walking.future.add_done_callback(lambda _: edits.drop())
    begin(turns, walking)
    turns.turn()
    assert isinstance(edits.future.exception(), Abandoned)
    assert service.meters.evaluations._value.get() < 8


class Flaky(torch.nn.Module):
    """A network that fails at some evaluations, or for some rows."""

    def __init__(self, inner: Any, fails: Callable[[int, Any], bool]) -> None:
        super().__init__()
        self.inner, self.vocab, self.config, self.head = inner, inner.vocab, inner.config, inner.head
        self.fails, self.count = fails, 0

    def hidden(self, z_t: Any, *args: Any) -> Any:
        self.count += 1
        if self.fails(self.count, z_t):
            raise RuntimeError("no memory")
        return self.inner.hidden(z_t, *args)


def flaky(lm: LM, fails: Callable[[int, Any], bool]) -> Service:
    model = copy(lm)
    model.network = Flaky(lm.network, fails)  # type: ignore[assignment]
    return made(model, rows_per_forward=1)


def test_a_batch_that_fails_is_repeated_job_by_job_and_no_step_is_told_twice(lm: LM) -> None:
    """Two texts of three windows and one that joins them; the network fails once, in the second window."""
    service = flaky(lm, lambda count, _: count == 11)
    turns, told = turns_of(service), [list[StepEvent]() for _ in range(3)]
    bodies = [{"length": 70, "steps": 4, "seed": i, "stop": False} for i in range(2)]
    bodies.append({"length": 38, "steps": 9, "seed": 3, "stop": False})
    jobs = [service.generate(ask.Generate(**body), record=True) for body in bodies]
    for job, seen in zip(jobs, told, strict=True):
        job.watch = seen.append
        begin(turns, job)
    while not turns.idle:
        turns.turn()
    for body, job, seen in zip(bodies, jobs, told, strict=True):
        assert plain(job.future.result()) == plain(lm.generate(**body))
        offsets = (0, 19, 38) if body["length"] == 70 else (0,)
        assert [(s.offset, s.step) for s in seen] == [(o, n + 1) for o in offsets for n in range(body["steps"])]
    assert [job.alone for job in jobs] == [True] * 3


def test_an_error_is_the_one_jobs_that_made_it(lm: LM) -> None:
    poison = lm.tokenizer.encode(" fox")[0]
    service = flaky(lm, lambda _, z: bool((z[:, 1:3] == poison).any()))
    turns = turns_of(service)
    bodies = [{"length": 20, "steps": 5, "seed": i, "prompt": p} for i, p in enumerate(("A", " fox", "B"))]
    jobs = [begin(turns, service.generate(ask.Generate(**body))) for body in bodies]
    score = begin(turns, service.score(ask.Score(text=" fox")))
    while not turns.idle:
        turns.turn()
    for i in (0, 2):
        assert plain(jobs[i].future.result()) == plain(lm.generate(**bodies[i]))
    for job in (jobs[1], score):
        assert str(job.future.exception()) == "no memory"
    assert turns.batches.room == 12


def test_what_is_nobodys_mistake_leaves_a_worker_that_works(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    from scdd.serve import batches

    jobs = [service.generate(ask.Generate(length=20, steps=2, seed=i)) for i in range(3)]
    settled, calls = batches.settle, iter([True])

    def broken(*args: Any) -> None:
        if next(calls, False):
            raise OSError("a bug")
        settled(*args)

    monkeypatch.setattr(batches, "settle", broken)
    service.scheduler.submit(jobs[:2])
    jobs[0].future.add_done_callback(lambda _: service.scheduler.submit(jobs[2:]))
    jobs[2].future.add_done_callback(lambda _: service.scheduler.close())
    service.scheduler.work()
    assert [type(job.future.exception()) for job in jobs] == [OSError, OSError, type(None)]
