"""The REST API: the same answers as the library's, and mistakes answered in one shape."""

from __future__ import annotations

import json
from copy import copy
from typing import Any

import pytest
import torch

from scdd.lm.model import LM
from tests.serve.client import Client
from tests.serve.conftest import Serving


def test_generate_is_what_the_library_generates(client: Client, lm: LM) -> None:
    body = {"prompt": "The river", "length": 24, "num": 3, "steps": 5, "seed": 7, "top_p": 0.9}
    answer = client.post("/v1/generate", body)
    expected = lm.generate(3, prompt="The river", length=24, steps=5, seed=7, top_p=0.9)
    assert answer.status == 200
    assert answer.json == {"model": "tiny", "samples": [sample.json() for sample in expected]}


def test_a_seed_is_drawn_and_named_when_none_is_given(client: Client) -> None:
    first, second = (client.post("/v1/generate", {"length": 20}).json["samples"][0] for _ in range(2))
    assert first["seed"] != second["seed"]
    again = client.post("/v1/generate", {"length": 20, "seed": first["seed"]}).json["samples"][0]
    assert again == first


def test_texts_longer_than_the_context_are_written_window_by_window(client: Client, lm: LM) -> None:
    answer = client.post("/v1/generate", {"length": 90, "steps": 3, "seed": 1, "stop": False}).json
    assert len(answer["samples"][0]["tokens"]) == 90
    assert answer["samples"][0] == lm.generate(length=90, steps=3, seed=1, stop=False)[0].json()


def test_infill_keeps_what_was_given(client: Client, lm: LM) -> None:
    text = "The [MASK:3] jumps over the [MASK] dog."
    answer = client.post("/v1/infill", {"text": text, "seed": 3, "steps": 4}).json["samples"][0]
    assert answer == lm.infill(text, seed=3, steps=4)[0].json()
    assert answer["text"].startswith("The")
    assert answer["text"].endswith(" dog.")


def test_gaps_of_open_length(client: Client, lm: LM) -> None:
    text = "The [MASK:2-4] jumps over the dog."
    found = lm.infill(text, 2, seed=3, steps=4)
    assert client.post("/v1/infill", {"text": text, "num": 2, "seed": 3, "steps": 4}).json["samples"] == [
        sample.json() for sample in found
    ]
    wide = client.post("/v1/infill", {"text": "[MASK:1-9] a [MASK:1-9]"})
    assert (wide.status, "81 ways" in wide.json["error"]["message"]) == (400, True)


@pytest.mark.parametrize("verb", ["infill", "correct", "score"])
def test_a_list_is_answered_as_its_texts_alone(client: Client, verb: str) -> None:
    texts = ["The [MASK:3] jumps.", "[MASK] river"] if verb == "infill" else ["The river runs.", "The sea."]
    more = {} if verb == "score" else {"seed": 5}
    alone = [client.post(f"/v1/{verb}", {"text": text, **more}).json for text in texts]
    answer = client.post(f"/v1/{verb}", {"text": texts, **more})
    assert answer.json == {"model": "tiny", "results": alone}
    for wrong, said in (
        ([], "text is empty: give at least one."),
        ("", "text is empty: give at least a word."),
        (["a", ""], "text[1] is empty: give at least a word."),
        (["a"] * 9, "is a list of 9"),
        ([3], "string"),
    ):
        refused = client.post(f"/v1/{verb}", {"text": wrong})
        assert refused.status == 400
        assert said in refused.json["error"]["message"]


@pytest.mark.parametrize("mode", ["edit", "reverse", "pass"])
def test_correct(client: Client, lm: LM, mode: str) -> None:
    body = {"text": "The river runs to the sea.", "mode": mode, "strength": 0.3, "seed": 5, "freeze": ["river", [0, 3]]}
    answer = client.post("/v1/correct", body).json
    found = lm.correct(body["text"], mode=mode, strength=0.3, seed=5, freeze=["river", (0, 3)])
    assert answer["text"] == found.text
    assert answer["changes"] == [change.json() for change in found.changes]
    assert answer["edits"] == [edit.json() for edit in found.edits]
    assert answer["doubts"] == [score.json() for score in found.doubts]
    assert answer["text"].startswith("The river")


def test_changes_in_every_window_have_their_probabilities(client: Client) -> None:
    """A text longer than the context is repaired window by window, and the last frame shows the last one only."""
    body = {"text": "The river runs to the sea. " * 5, "strength": 0.9, "seed": 5, "steps": 8}
    changes = client.post("/v1/correct", body).json["changes"]
    assert changes[0]["position"] < 19 < changes[-1]["position"]
    assert all(change["p_after"] > 0.0 for change in changes)


def test_score(client: Client, lm: LM) -> None:
    answer = client.post("/v1/score", {"text": "The river runs.", "strength": 0.2}).json
    assert answer == {"model": "tiny", **lm.score("The river runs.", strength=0.2).json()}


def test_tokenize_adds_up_to_the_text(client: Client) -> None:
    tokens = client.post("/v1/tokenize", {"text": "The quick brown fox"}).json["tokens"]
    assert "".join(token["text"] for token in tokens) == "The quick brown fox"


def test_a_sampler_can_be_a_name_or_a_section(client: Client) -> None:
    mdlm = {"process": {"kind": "mdlm"}, "length": 20, "seed": 1}
    by_name = client.post("/v1/generate", {**mdlm, "sampler": "remdm-rescale"}).json["samples"][0]
    by_section = client.post("/v1/generate", {**mdlm, "sampler": {"kind": "remdm", "variant": "rescale"}}).json[
        "samples"
    ][0]
    assert by_name == by_section
    assert (by_name["sampler"], by_name["process"]) == ("remdm", "mdlm")


def test_another_schedule_is_really_used(client: Client) -> None:
    """Without uniform noise nothing is ever corrected; with a lot of it something is."""
    peaked = {"kind": "scdd", "schedule": {"kind": "peaked", "p_u": 0.5}}
    none = {"kind": "scdd", "schedule": {"kind": "masked"}}
    body = {"length": 38, "num": 4, "steps": 16, "seed": 0, "stop": False}
    found = [client.post("/v1/generate", {**body, "process": p}).json["samples"] for p in (peaked, none)]
    assert sum(s["corrections"] for s in found[0]) > 0
    assert sum(s["corrections"] for s in found[1]) == 0


def test_limits_below_the_defaults_lower_them(serving: Serving, lm: LM) -> None:
    """Whoever names no number of steps or tokens is not told that it is too large."""
    with serving({"steps": 4, "length": 12}) as client:
        made = client.post("/v1/generate", {"seed": 1}).json["samples"][0]
        assert made == lm.generate(length=12, steps=4, seed=1)[0].json()
        assert client.post("/v1/infill", {"text": "The [MASK]"}).json["samples"][0]["steps"] == 4
        assert client.post("/v1/correct", {"text": "The river"}).json["steps"] == 4
        asked = {"model": "tiny", "prompt": "The", "max_tokens": 8}
        assert client.post("/v1/completions", asked).json["scdd"]["steps"] == 4
        events = list(client.events("/v1/denoise", {"task": "correct", "text": "The river"}))
        assert events[0][1]["steps"] == 4
        settings = client.get("/v1/settings").json
        assert (settings["length"], settings["sampling"]["steps"]) == (12, 4)
        assert client.post("/v1/correct", {"text": "The river", "steps": 5}).error["param"] == "steps"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("generate", {"lenght": 3}, "lenght"),
        ("generate", {"length": 0}, "length"),
        ("generate", {"length": "12"}, "length"),
        ("generate", {"num": True}, "num"),
        ("generate", {"length": 101}, "length"),
        ("generate", {"num": 5}, "num"),
        ("generate", {"steps": 257}, "steps"),
        ("generate", {"top_p": 0}, "top_p"),
        ("generate", {"seed": 2**63}, "seed"),
        ("generate", {"model": "other"}, "model"),
        ("generate", {"sampler": {"kind": "remdm", "etaa": 1}}, "sampler.etaa"),
        ("generate", {"sampler": {"kind": "nothing"}}, "sampler"),
        ("generate", {"prompt": "the " * 200}, "prompt"),
        ("infill", {"text": "no hole"}, None),
        ("infill", {"text": "[MASK] and [mask: 4]"}, None),
        ("infill", {"text": "[MASK:999999999999999999]"}, "text"),
        ("infill", {"text": "[MASK:90000]"}, "text"),
        ("infill", {"text": "the fox " * 20 + "[MASK:99]"}, "text"),
        ("correct", {"text": "The river", "strength": 0.0}, "strength"),
        ("correct", {"text": "The river", "freeze": ["lake"]}, "freeze"),
        ("correct", {"text": " "}, None),
        ("score", {"text": "the " * 200}, "text"),
        ("score", {}, "text"),
        ("generate", {"sampler": "remdm"}, "sampler"),
        ("generate", {"sampler": "remdmm"}, "sampler"),
        ("generate", {"tolerance": 0.5, "process": "mdlm", "sampler": "p2"}, "process"),
        ("generate", {"process": {"kind": "scdd", "noise": "/etc/passwd"}}, "process.noise"),
        ("generate", {"convention": "theirs"}, "convention"),
        ("generate", {"sampler": {"kind": "gidd-correct", "corrections": 10**12}}, "sampler.corrections"),
        ("generate", {"sampler": {"kind": "informed", "corrections": 10**30}}, "sampler.corrections"),
        (
            "denoise",
            {"task": "generate", "sampler": {"kind": "gidd-correct", "corrections": 257}},
            "sampler.corrections",
        ),
    ],
)
def test_mistakes_are_named(client: Client, path: str, body: dict[str, Any], param: str | None) -> None:
    answer = client.post(f"/v1/{path}", body)
    assert answer.status in (400, 404), answer.raw
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert answer.error["param"] == param, answer.error
    assert answer.error["message"]


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"null", b'{"prompt": "\\ud800"}', b'{"top_p": NaN}', b'{"temperature": Infinity}', b"\xff\xfe"],
)
def test_bodies_that_are_none(client: Client, raw: bytes) -> None:
    answer = client.ask("POST", "/v1/generate", raw)
    assert answer.status == 400, answer.raw
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "body", "cure"),
    [
        ("generate", {"sampler": {"kind": "x" * 5000}}, ""),
        ("generate", {"sampler": "x" * 5000}, "choose one of"),
        ("correct", {"text": "The river", "freeze": ["x" * 5000]}, "copy it letter by letter."),
        ("generate", {"model": "x" * 5000}, "this server has 'tiny'"),
    ],
)
def test_what_was_sent_is_not_sent_back(client: Client, path: str, body: dict[str, Any], cure: str) -> None:
    answer = client.post(f"/v1/{path}", body)
    assert answer.status in (400, 404)
    assert len(answer.error["message"]) < 500
    assert cure in answer.error["message"]


class Broken(torch.nn.Module):
    """A network with a bug."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.vocab, self.config, self.head = inner, inner.vocab, inner.config, inner.head

    def hidden(self, *_: Any) -> Any:
        raise RuntimeError("private words")


def test_a_bug_is_logged_once_and_answered_without_its_details(
    serving: Serving, lm: LM, caplog: pytest.LogCaptureFixture
) -> None:
    broken = copy(lm)
    broken.network = Broken(lm.network)  # type: ignore[assignment]
    with serving(model=broken) as made:
        answer = made.post("/v1/generate", {"length": 20})
    assert (answer.status, answer.error["code"]) == (500, "internal_error")
    assert b"private words" not in answer.raw
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert caplog.text.count("RuntimeError: private words") == 1


def test_unknown_places_answer_in_the_same_shape(client: Client) -> None:
    assert client.get("/nowhere").error["code"] == "not_found"
    assert client.get("/v1/generate").error["code"] == "method_not_allowed"


def test_settings_hold_the_recipes_schema(client: Client) -> None:
    found = client.get("/v1/settings").json
    assert (found["model"], found["room"], found["sampling"]["steps"]) == ("tiny", 38, 6)
    kinds = found["recipe_schema"]["$defs"]["SamplingOptions"]["properties"]["sampler"]["discriminator"]["mapping"]
    assert {"ancestral", "remdm", "p2"} <= set(kinds)
    assert "remdm" in found["refusals"]
    assert found["repair"]["mode"] == "reverse"
    assert "ancestral" not in found["refusals"]


def test_the_openapi_document(client: Client) -> None:
    schema = client.get("/openapi.json").json
    posts = {path for path, methods in schema["paths"].items() if "post" in methods}
    names = ("generate", "infill", "correct", "score", "tokenize", "denoise", "completions")
    assert posts == {f"/v1/{name}" for name in names}
    assert "422" not in json.dumps(schema)
    for path in posts:
        assert {"400", "401", "413", "429", "503", "504"} <= set(schema["paths"][path]["post"]["responses"])


def test_metrics_count(client: Client) -> None:
    before = client.meter("scdd_network_rows_total")
    client.post("/v1/generate", {"length": 20, "num": 2, "steps": 4})
    assert client.meter("scdd_network_rows_total") - before == 8
    assert 'scdd_requests_total{route="/v1/generate",status="200"}' in client.get("/metrics").raw.decode()
