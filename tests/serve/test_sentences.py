"""Mistakes that people bring along from elsewhere are answered with sentences of ours."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from tests.serve.client import Client
from tests.serve.conftest import Serving

JSON = "Content-Type: application/json"


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_that_is_not_said_to_be_json(client: Client, kind: str) -> None:
    answer = client.ask("POST", "/v1/generate", b'{"length": 12}', {"Content-Type": kind})
    assert answer.status == 400
    assert JSON in answer.error["message"]


NO_JSON = [b"{", b"\xff{", b'{"prompt": ' + b"[" * 100_000]
if hasattr(sys, "get_int_max_str_digits"):  # from 3.10.7 on
    NO_JSON.append(b'{"length": ' + b"9" * 5000 + b"}")


@pytest.mark.parametrize("body", NO_JSON)
def test_a_body_that_cannot_be_read(client: Client, body: bytes) -> None:
    answer = client.ask("POST", "/v1/generate", body, {"Content-Type": "application/json"})
    assert (answer.status, answer.error["message"]) == (400, "The body is not valid JSON.")


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("completions", {"model": "tiny", "presence_penalty": 0.5}, "presence_penalty: this server does not have it"),
        ("completions", {"model": "tiny", "frequency_penalty": -1}, "frequency_penalty: this server does not have it"),
        ("completions", {"model": "tiny", "logit_bias": {"1": 5}}, "logit_bias: this server does not have it"),
        ("completions", {"model": "tiny", "logit_bias": "none"}, "logit_bias: this server does not have it"),
        ("completions", {}, "model is missing."),
        ("generate", [], "no JSON object"),
        ("generate", {"lenght": 3}, "lenght is not known here"),
        ("generate", {"sampler": {"kind": "nothing"}}, "sampler.kind is missing or wrong: choose one of 'ancestral'"),
        ("denoise", {}, "task is missing or wrong: choose one of"),
        ("denoise", {"task": "infill"}, "text is missing."),
        (
            "denoise",
            {"task": "correct", "text": "a", "mode": "edit"},
            "mode: a stream shows the steps of reverse, and edit",
        ),
        ("infill", {"text": 5}, "text: it should be a text, or a list of texts."),
        ("score", {"text": {"a": "b"}}, "text: it should be a text, or a list of texts."),
        ("correct", {"text": []}, "text is empty"),
        ("correct", {"text": ["a", 5]}, "text[1]: it should be a valid string."),
        ("generate", {"process": "mdlm"}, """process: mdlm does not fit the model's own schedule, Peaked("""),
        ("generate", {"process": "nothing"}, "process: there is no 'nothing'; choose one of scdd, gidd, mdlm."),
        ("generate", {"process": {"kind": "ar"}}, "process.kind: ar has no reverse process"),
    ],
)
def test_no_word_of_the_frameworks(client: Client, path: str, body: Any, said: str) -> None:
    answer = client.post(f"/v1/{path}", body)
    assert answer.status == 400
    assert said in answer.error["message"]
    assert "Input" not in answer.error["message"]


def test_the_cure_for_a_schedule_that_does_not_fit_works(client: Client) -> None:
    """A request cannot change the model's schedule, but it can bring one."""
    said = client.post("/v1/generate", {"process": "mdlm"}).error
    cure = re.search(r"send (\{.*\}),", said["message"])
    assert said["param"] == "process"
    assert cure
    assert client.post("/v1/generate", {"process": json.loads(cure[1]), "length": 8, "steps": 2}).status == 200


def test_what_changes_nothing_is_taken(client: Client) -> None:
    body = {"model": "tiny", "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}}
    assert client.post("/v1/completions", body).status == 200
    assert client.post("/v1/completions", dict.fromkeys(body, None) | {"model": "tiny"}).status == 200


def test_chat_clients_are_told_where_to_go(client: Client) -> None:
    answer = client.post("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]})
    assert (answer.status, answer.error["code"]) == (404, "not_found")
    assert "use POST /v1/completions with a prompt" in answer.error["message"]
    assert "/docs" in client.get("/nowhere").error["message"]
    wrong = client.get("/v1/generate")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert "use POST" in wrong.error["message"]


def test_a_429_says_how_long_the_queue_is_and_when_to_come_back(serving: Serving) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with serving({"workers": 1, "batch": 1, "queue": 1}) as client, ThreadPoolExecutor(6) as pool:
        asked = {"length": 30, "steps": 256, "seed": 1}
        found = list(pool.map(lambda _: client.post("/v1/generate", asked), range(6)))
    refused = [answer for answer in found if answer.status == 429]
    assert refused
    for answer in refused:
        wait = answer.headers["retry-after"]
        assert answer.error["message"] == f"The server is busy: 1 job in the queue; try again in {wait} s."
