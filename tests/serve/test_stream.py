"""The stream of steps: it adds up, it stops when nobody listens, and it ends in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from scdd.lm.model import LM
from tests.serve.client import Client
from tests.serve.conftest import Serving


def until(met: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if met():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    "body",
    [
        {"task": "generate", "length": 30, "num": 2, "steps": 6, "seed": 4, "stop": False},
        {"task": "generate", "length": 70, "steps": 3, "seed": 4, "stop": False},
        {"task": "generate", "process": {"kind": "mdlm"}, "sampler": "remdm-rescale", "length": 20, "stop": False},
        {"task": "infill", "text": "The [MASK:5] dog", "seed": 1},
        {"task": "correct", "text": "The river runs to the sea.", "strength": 0.4, "seed": 2, "steps": 8},
    ],
)
def test_the_moves_lead_from_the_start_to_the_result(client: Client, lm: LM, body: dict[str, Any]) -> None:
    events = list(client.events("/v1/denoise", body))
    kinds = [kind for kind, _ in events]
    assert kinds[0] == "start"
    assert kinds[-2:] == ["result", "done"]
    assert set(kinds[1:-2]) == {"frame"}
    texts, counts = [list(row) for row in events[0][1]["texts"]], {}
    for kind, frame in events:
        if kind != "frame":
            continue
        row = texts[frame["row"]]
        for position, what, text in frame["moves"]:
            before, row[position] = row[position], text
            assert what == (3 if text is None else 1 if before is None else 2)
        counts[frame["row"]] = frame["counts"]
        assert all(p is None or 0 <= p <= 1 for p in frame["p"])
    result = events[-2][1]
    samples = result.get("samples", [result])
    for row, sample in zip(texts, samples, strict=True):
        assert row == [lm.tokenizer.token(token) for token in sample["tokens"]]
    if "samples" in result and body.get("length") != 70:
        assert [c["corrected"] for c in counts.values()] == [s["corrections"] for s in samples]


def test_the_stream_and_the_plain_call_agree(client: Client) -> None:
    body = {"length": 25, "steps": 5, "seed": 11, "num": 2}
    streamed = list(client.events("/v1/denoise", {"task": "generate", **body}))[-2][1]["samples"]
    assert streamed == client.post("/v1/generate", body).json["samples"]


def test_mistakes_come_before_the_stream(client: Client) -> None:
    answer = client.post("/v1/denoise", {"task": "infill", "text": "no hole"})
    assert answer.status == 400
    assert client.post("/v1/denoise", {"task": "dance"}).status == 400


@pytest.mark.parametrize("path", ["/v1/denoise", "/v1/generate", "/v1/completions"])
def test_work_stops_when_the_client_goes_away(serving: Serving, path: str) -> None:
    body: dict[str, Any] = {"steps": 20000, "seed": 1}
    body |= {"model": "tiny", "max_tokens": 30} if "completions" in path else {"length": 30}
    body |= {"task": "generate"} if "denoise" in path else {}
    with serving({"steps": 20000, "workers": 1}) as client:
        begun = client.meter("scdd_network_evaluations_total")
        if "denoise" in path:
            connection, response = client.open("POST", path, body)
            assert any(line.startswith(b"event: frame") for line in response)
            response.close()
            connection.close()
        else:
            import json
            import socket

            data = json.dumps(body).encode()
            with socket.create_connection(("127.0.0.1", client.port)) as raw:
                head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                raw.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
                assert until(lambda: client.meter("scdd_network_evaluations_total") > begun + 5)
        assert until(lambda: client.meter("scdd_abandoned_jobs_total") == 1)
        assert client.meter("scdd_network_evaluations_total") < 15000
        assert client.post("/v1/generate", {"length": 10, "steps": 2}).status == 200


def test_silence_is_filled_with_comments(serving: Serving, lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands in between does not take the connection for dead; here a step takes its time."""
    from scdd.serve import stream
    from scdd.serve.batches import Batches

    monkeypatch.setattr(stream, "ALIVE", 0.05)
    walked = Batches.step
    monkeypatch.setattr(Batches, "step", lambda self: (time.sleep(0.3), walked(self)))
    with serving({"workers": 1}) as client:
        for path, body in (
            ("/v1/denoise", {"task": "generate", "length": 10, "steps": 2}),
            ("/v1/completions", {"model": "tiny", "max_tokens": 8, "stream": True}),
        ):
            connection, response = client.open("POST", path, body)
            lines = list(response)
            connection.close()
            assert lines.count(b": still here\n") >= 2
            assert lines[-2] in (b"data: {}\n", b"data: [DONE]\n")


def test_the_time_limit(serving: Serving) -> None:
    with serving({"steps": 20000, "seconds": 0.5, "workers": 1}) as client:
        start = time.monotonic()
        answer = client.post("/v1/generate", {"length": 30, "steps": 20000})
        assert (answer.status, answer.error["code"]) == (504, "timeout")
        events = list(client.events("/v1/denoise", {"task": "generate", "length": 30, "steps": 20000}))
        assert events[-1][0] == "error"
        assert events[-1][1]["error"]["code"] == "timeout"
        assert time.monotonic() - start < 5
        assert until(lambda: client.meter("scdd_abandoned_jobs_total") == 2)
