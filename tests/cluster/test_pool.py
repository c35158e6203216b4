"""Ray as a pool keeps `data.pool`'s contract, and goes on where a worker dies."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from scdd.cluster.pool import RETRIES, RayPool
from scdd.core.errors import UserError
from scdd.data import corpus
from scdd.data.prepare import Preparation, prepare
from tests import tiny

pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("ray_address")]


def slow_square(number: int) -> int:
    time.sleep(0.3 if number == 0 else 0)
    return number * number


def fail_from_five(number: int) -> int:
    if number >= 5:
        raise UserError(f"number {number}")
    return number


def divide(number: int) -> int:
    return 1 // (5 - number)


def die(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@dataclass(frozen=True)
class DiesOnce:
    """A function whose process is killed in the middle of its third piece of work."""

    inner: Any
    folder: Path

    def __call__(self, item: Any) -> Any:
        answer = self.inner(item)
        done = len(list(self.folder.iterdir()))
        (self.folder / f"{os.getpid()}-{time.monotonic_ns()}").touch()
        if done == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


def test_answers_come_in_order_or_as_they_finish() -> None:
    items = range(20)
    assert list(RayPool().ordered_map(slow_square, iter(items))) == [n * n for n in items]
    finished = list(RayPool().map(slow_square, items))
    assert sorted(finished) == [n * n for n in items]
    assert finished[0] != 0, "nobody waits for the slow one"


def test_no_more_is_taken_than_can_be_held() -> None:
    taken = count()
    answers = RayPool(most=2).ordered_map(slow_square, taken)
    assert [next(answers) for _ in range(3)] == [0, 1, 4]
    assert next(taken) <= 3 + 4 * 2 + 1
    answers.close()


def test_mistakes_come_in_order_and_bugs_keep_their_traceback() -> None:
    answers = RayPool().ordered_map(fail_from_five, iter(range(40)))
    assert [next(answers) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(UserError, match="number 5"):
        next(answers)
    with pytest.raises(RuntimeError, match="divide"):
        list(RayPool().ordered_map(divide, iter(range(9))))


@pytest.mark.slow
def test_a_piece_that_kills_every_worker_is_given_up() -> None:
    with pytest.raises(UserError, match=f"killed {RETRIES + 1} times"):
        list(RayPool().ordered_map(die, iter(range(4))))


def test_the_bytes_are_those_of_one_machine_also_where_a_worker_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "BATCH_BYTES", 2000)
    text, marks = tmp_path / "text.txt", tmp_path / "marks"
    text.write_text("\n\n".join(f"{number}. {tiny.TEXT * (1 + number % 3)}" for number in range(300)), encoding="utf-8")
    marks.mkdir()
    job = partial(Preparation, [str(text)], train_tokenizer=300, valid_fraction=0.1, shard_tokens=4000)
    alone, many = tmp_path / "alone", tmp_path / "many"
    *_, last = prepare(job(alone))
    *_, same = prepare(job(many), lambda encoder, items: RayPool().ordered_map(DiesOnce(encoder, marks), items))
    assert last.shards > 3
    assert same.documents == last.documents == 300
    assert {path.name: path.read_bytes() for path in alone.iterdir()} == {
        path.name: path.read_bytes() for path in many.iterdir()
    }
    pieces = -(-text.stat().st_size // 2000)
    assert len(list(marks.iterdir())) > pieces - 2, "every piece was done, one of them twice"
