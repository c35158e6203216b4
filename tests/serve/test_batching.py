"""Batches: who shares does not matter, sharing happens, and nothing but 429 is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scdd.lm.model import LM
from tests.serve.conftest import Serving

CLIENTS = 64


def asked(i: int) -> tuple[str, dict[str, Any]]:
    """A mix of tasks, lengths, steps, seeds and settings; most agree with some others and not with all."""
    if i % 8 == 7:
        return "/v1/correct", {"text": "The river runs to the sea.", "seed": i, "strength": 0.3, "steps": 6}
    if i % 8 == 6:
        return "/v1/infill", {"text": "The [MASK:6] over the dog", "seed": i, "steps": 6}
    if i % 8 == 5:
        body = {"model": "tiny", "prompt": "The fox", "max_tokens": 20, "seed": i, "logprobs": 1}
        return "/v1/completions", body
    length, top_p = (24, 33)[i % 2], (0.9, 1.0)[i // 2 % 2]
    return "/v1/generate", {"length": length, "seed": i, "steps": 6, "top_p": top_p, "num": 1 + i % 3}


def told(answer: Any) -> Any:
    """The part of an answer that must not depend on anything."""
    if "choices" in answer:
        return answer["choices"]
    return answer.get("samples") or (answer["text"], answer["changes"], answer["doubts"])


def test_64_clients_at_once_get_what_each_would_get_alone(serving: Serving) -> None:
    with serving({"queue": 24, "workers": 2, "batch": 16}) as client:
        alone = [told(client.post(*asked(i)).json) for i in range(CLIENTS)]
        statuses: list[int] = []

        def once(i: int) -> Any:
            for _ in range(200):
                answer = client.post(*asked(i))
                statuses.append(answer.status)
                if answer.status != 429:
                    return told(answer.json)
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.error["code"] == "rate_limit_exceeded"
                time.sleep(0.05)
            raise AssertionError("never let in")

        with ThreadPoolExecutor(CLIENTS) as pool:
            together = list(pool.map(once, range(CLIENTS)))
        assert together == alone
        assert set(statuses) <= {200, 429}
        assert client.meter("scdd_batch_jobs_sum") > 1.05 * client.meter("scdd_batch_jobs_count")


def test_a_job_larger_than_a_batch_fills_nothing_up(serving: Serving) -> None:
    """Four texts, one at a time: a group of four would be three quarters filling."""
    with serving({"workers": 1, "batch": 1}) as client:
        assert client.post("/v1/generate", {"length": 30, "steps": 4, "num": 4}).status == 200
        assert client.meter("scdd_network_rows_total") == 16


@pytest.mark.parametrize(
    ("other", "steps"),
    [
        ({"length": 31}, [1] * 4 + [1] * 4),  # on a CPU rows of one length share
        ({"steps": 6}, [2] * 4 + [1] * 2),
        ({"temperature": 0.5}, [2] * 4),
        ({"grid": "cosine"}, [2] * 4),
        ({"top_p": 0.5}, [1] * 8),
        ({"process": {"kind": "gidd"}}, [1] * 8),
        ({"final": "greedy"}, [1] * 8),
    ],
)
def test_who_shares_a_batch(lm: LM, other: dict[str, Any], steps: list[int]) -> None:
    """Whatever the seeds, times and temperatures; the meters count texts at each step of a batch."""
    from scdd.serve.limits import Limits
    from scdd.serve.requests import Generate
    from scdd.serve.service import Service

    service = Service(lm, Limits(), threads=1, lent=True)
    body = {"length": 30, "steps": 4, "seed": 1}
    service.scheduler.submit([service.generate(Generate(**each)) for each in (body, {**body, **other})])
    service.scheduler.close()
    service.scheduler.work()
    text = service.meters.text().decode()
    assert f"scdd_batch_texts_count {float(len(steps))}" in text
    assert f"scdd_batch_texts_sum {float(sum(steps))}" in text
    assert f"scdd_network_evaluations_total {float(len(steps))}" in text
    assert f"scdd_network_rows_total {float(sum(steps))}" in text


def drawn_together(lm: LM, heats: list[float]) -> list[Any]:
    from scdd.serve.limits import Limits
    from scdd.serve.requests import Generate
    from scdd.serve.service import Service

    service = Service(lm, Limits(), threads=1, lent=True)
    jobs = [service.generate(Generate(length=12, seed=i, temperature=heat)) for i, heat in enumerate(heats)]
    service.scheduler.submit(jobs)
    service.scheduler.close()
    service.scheduler.work()
    return [job.future.result()[0].json() for job in jobs]


def test_an_autoregressive_model_is_served_too(serving: Serving, tmp_path: Any) -> None:
    from scdd.lm.loading import load
    from tests import tiny

    folder = tiny.checkpoint(
        tmp_path / "ar", "process.kind=ar", "objective.kind=ar", "sampling.sampler.kind=ar", causal=True
    )
    model: LM = load(folder, device="cpu")
    heats = [1.0, 0.5, 1.0]
    assert drawn_together(model, heats) == [
        model.generate(length=12, seed=i, temperature=heat)[0].json() for i, heat in enumerate(heats)
    ]
    with serving(model=model) as client:
        body = {"prompt": "The", "length": 12, "seed": 3}
        assert client.post("/v1/generate", body).json["samples"] == [
            model.generate(prompt="The", length=12, seed=3)[0].json()
        ]
        for path, wrong in (("infill", {"text": "a [MASK]"}), ("score", {"text": "The"}), ("correct", {"text": "The"})):
            answer = client.post(f"/v1/{path}", wrong)
            assert answer.status == 400
            assert "autoregressive" in answer.error["message"].lower()
        assert client.get("/v1/settings").status == 200


def test_a_queue_that_is_full_says_when_to_come_back(serving: Serving) -> None:
    with serving({"workers": 1, "batch": 1, "queue": 1, "steps": 4000}) as client, ThreadPoolExecutor(3) as pool:
        slow = {"length": 30, "steps": 600, "seed": 1}
        waiting = [pool.submit(client.post, "/v1/generate", slow)]
        _wait_until(lambda: client.meter("scdd_network_evaluations_total") > 0)
        waiting.append(pool.submit(client.post, "/v1/generate", slow))
        _wait_until(lambda: client.get("/healthz").json["waiting"] == 1)
        refused = client.post("/v1/generate", slow)
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert [each.result().status for each in waiting] == [200, 200]
        assert client.meter("scdd_rejected_total") == 1


def _wait_until(met: Callable[[], bool]) -> None:
    for _ in range(500):
        if met():
            return
        time.sleep(0.01)
    raise AssertionError("it never happened")
