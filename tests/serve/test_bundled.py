"""The model that comes with the package, behind the server: what it says would be nonsense with other weights."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from scdd.lm.model import LM
from tests.serve.client import Client
from tests.serve.conftest import Serving

DAMAGED = "The river flows through the city and into water Atlantic Ocean."
WHOLE = DAMAGED.replace("water", "the")


def test_it_is_what_the_settings_name(bundled_client: Client) -> None:
    found = bundled_client.get("/v1/settings").json
    assert (found["model"], found["context"], found["length"], found["sampling"]["steps"]) == ("scdd", 1024, 128, 32)
    assert 40e6 < found["parameters"] < 80e6


def test_generated_words_belong_together(bundled_client: Client, bundled: LM) -> None:
    """The model finds its own text likelier than the same words in another order."""
    body = {"prompt": "The river", "length": 48, "steps": 16, "seed": 1, "stop": False}
    answer = bundled_client.post("/v1/generate", body).json["samples"][0]
    assert answer == bundled.generate(prompt="The river", length=48, steps=16, seed=1, stop=False)[0].json()
    words = answer["text"].split()
    random.Random(0).shuffle(words)
    own, mixed = (
        bundled_client.post("/v1/score", {"text": text}).json["log_p"] for text in (answer["text"], " ".join(words))
    )
    assert own > mixed + 1.0


def test_a_hole_is_filled_with_the_word_that_belongs_there(bundled_client: Client) -> None:
    text = "The city has a [MASK] of 20,000 people and lies on the coast of the Black Sea."
    found = bundled_client.post("/v1/infill", {"text": text, "num": 3, "steps": 8, "seed": 0}).json["samples"]
    assert {sample["text"] for sample in found} == {text.replace("[MASK]", "population")}


STEPS = {"reverse": {"steps": 8}}  # the only mode that has some


@pytest.mark.parametrize("mode", ["reverse", "pass"])
def test_a_damaged_word_is_restored_and_nothing_else_touched(bundled_client: Client, mode: str) -> None:
    body = {"text": DAMAGED, "mode": mode, "seed": 0, **STEPS.get(mode, {})}
    found = bundled_client.post("/v1/correct", body).json
    assert found["text"] == WHOLE
    assert [(change["before"], change["after"]) for change in found["changes"]] == [(" water", " the")]
    assert found["changes"][0]["p_after"] > 0.5


def test_what_is_right_stays(bundled_client: Client) -> None:
    for mode in ("edit", "reverse"):
        body = {"text": WHOLE, "mode": mode, "seed": 0, **STEPS.get(mode, {})}
        found = bundled_client.post("/v1/correct", body).json
        assert (found["text"], found["changes"], found["edits"]) == (WHOLE, [], [])


def test_a_writers_errors_are_edited(bundled_client: Client) -> None:
    """Unless told otherwise: spelling, a word twice, and a word that belongs elsewhere."""
    wrong = "The river flows thruogh the city and into the the Atlantic Ocean."
    found = bundled_client.post("/v1/correct", {"text": wrong, "seed": 0}).json
    assert found["text"] == WHOLE
    assert [(edit["before"], edit["after"], edit["kind"]) for edit in found["edits"]] == [
        ("thruogh", "through", "spelling"), (" the", "", "repeat"),
    ]  # fmt: skip
    assert all(edit["log_odds"] > 2 for edit in found["edits"])


def test_the_damaged_word_is_the_one_that_is_doubted(bundled_client: Client) -> None:
    damaged, whole = (bundled_client.post("/v1/score", {"text": text}).json for text in (DAMAGED, WHOLE))
    doubts = {token["text"]: token["doubt"] for token in damaged["tokens"]}
    assert max(doubts, key=lambda word: doubts[word]) == " water"
    assert doubts.pop(" water") > 0.9
    assert max(doubts.values()) < 0.1
    assert whole["log_p"] > damaged["log_p"] + 0.5


def test_the_stream_ends_in_the_repaired_text(bundled_client: Client) -> None:
    body = {"task": "correct", "text": DAMAGED, "steps": 8, "seed": 0}
    events = list(bundled_client.events("/v1/denoise", body))
    moves = [move for kind, data in events if kind == "frame" for move in data["moves"]]
    assert [move[1:] for move in moves] == [[2, " the"]]
    assert events[-2][1]["text"] == WHOLE


def test_openais_client_completes(bundled_client: Client) -> None:
    openai = pytest.importorskip("openai", reason="needs the openai package: pip install openai")
    with openai.OpenAI(base_url=f"{bundled_client.url}/v1", api_key="none", max_retries=0) as client:
        found = client.completions.create(
            model="scdd",
            prompt="The village has a population",
            suffix=" 1,200 people.",
            max_tokens=1,
            temperature=0,
            logprobs=0,
            seed=0,
            extra_body={"steps": 4},
        )
    assert found.choices[0].text == " of"
    assert found.choices[0].logprobs.token_logprobs[0] > -1.0


def test_company_changes_nothing(serving: Serving, bundled: LM) -> None:
    """Matrix products of its own sizes round in their own way, so this is asked of the real network too."""
    bodies = [{"length": 40, "steps": 8 - seed, "seed": seed, "stop": False} for seed in range(5)]
    with serving({"workers": 1, "batch": 5}, model=bundled) as client, ThreadPoolExecutor(5) as pool:
        found = list(pool.map(lambda body: client.post("/v1/generate", body).json["samples"][0], bodies))
        assert client.meter("scdd_batch_jobs_sum") > client.meter("scdd_batch_jobs_count"), "some did share"
    assert found == [bundled.generate(**body)[0].json() for body in bodies]  # type: ignore[arg-type]
