"""The official `openai` client, unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from scdd.lm.model import LM
from tests.serve.client import Client
from tests.serve.conftest import Serving

openai = pytest.importorskip("openai", reason="needs the openai package: pip install openai")


@pytest.fixture(scope="module")
def api(client: Client) -> Any:
    return openai.OpenAI(base_url=f"{client.url}/v1", api_key="none", max_retries=0)


def test_models(api: Any) -> None:
    assert [model.id for model in api.models.list()] == ["tiny"]
    assert api.models.retrieve("tiny").owned_by == "scdd"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        api.models.retrieve("gpt")


def test_a_completion_is_what_the_library_generates(api: Any, lm: LM) -> None:
    found = api.completions.create(model="tiny", prompt="The river", max_tokens=12, seed=4, n=2, top_p=0.9)
    before = len(lm.tokenizer.encode("The river"))
    expected = lm.generate(2, prompt="The river", length=before + 12, seed=4, top_p=0.9)
    texts = [lm.engine.text(sample.tokens[before:]) for sample in expected]
    assert [choice.text for choice in found.choices] == texts
    assert [choice.index for choice in found.choices] == [0, 1]
    assert found.object == "text_completion"
    assert found.usage.prompt_tokens == before
    assert found.usage.completion_tokens == sum(len(sample.tokens) - before for sample in expected)


def test_a_suffix_is_filled_in_before(api: Any, lm: LM) -> None:
    found = api.completions.create(
        model="tiny", prompt="The quick", suffix=" lazy dog.", max_tokens=9, seed=2, echo=True
    )
    sizes = [len(lm.tokenizer.encode(text)) for text in ("The quick", " lazy dog.")]
    expected = lm.generate(prompt="The quick", suffix=" lazy dog.", length=sum(sizes) + 9, seed=2)[0]
    assert found.choices[0].text + " lazy dog." == expected.text
    assert found.choices[0].finish_reason == "length"


@pytest.mark.parametrize("size", [20, 80])
def test_a_stream_adds_up_to_the_answer(api: Any, size: int) -> None:
    """80 tokens are several windows, which arrive one after the other."""
    asked = {"model": "tiny", "prompt": "The fox", "max_tokens": size, "seed": 6, "n": 2, "extra_body": {"steps": 4}}
    whole = api.completions.create(**asked)
    chunks = list(api.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    for index in (0, 1):
        parts = [c for chunk in chunks for c in chunk.choices if c.index == index]
        assert "".join(part.text for part in parts) == whole.choices[index].text
        assert parts[-1].finish_reason == whole.choices[index].finish_reason
        assert all(part.finish_reason is None for part in parts[:-1])
        assert len([part for part in parts if part.text]) >= (2 if size == 80 else 1)
    assert chunks[-1].usage == whole.usage


def test_stops_cut_the_text_alone_and_in_a_stream(api: Any) -> None:
    asked = {"model": "tiny", "prompt": "The fox", "max_tokens": 80, "seed": 1, "extra_body": {"steps": 4}}
    full = api.completions.create(**asked).choices[0].text
    middle = len(full) // 2
    stop = full[middle : middle + 2]
    cut = api.completions.create(**asked, stop=[stop, "never there"]).choices[0]
    assert cut.text == full[: full.index(stop)]
    assert cut.finish_reason == "stop"
    parts = [c.choices[0] for c in api.completions.create(**asked, stop=stop, stream=True)]
    assert "".join(part.text for part in parts) == cut.text
    assert parts[-1].finish_reason == "stop"


def test_a_stream_after_a_long_prompt_adds_up_too(api: Any) -> None:
    """The prompt fills whole windows, which nobody sees."""
    asked = {"model": "tiny", "prompt": "the fox " * 20, "max_tokens": 38, "seed": 3, "extra_body": {"steps": 3}}
    whole = api.completions.create(**asked).choices[0].text
    parts = [chunk.choices[0].text for chunk in api.completions.create(**asked, stream=True)]
    assert "".join(parts) == whole
    assert len([part for part in parts if part]) >= 2


def test_logprobs_end_where_the_text_does(api: Any) -> None:
    asked = {"model": "tiny", "prompt": "The", "max_tokens": 20, "seed": 3, "logprobs": 1}
    full = api.completions.create(**asked).choices[0]
    stop = full.text[len(full.text) // 2 :][:2]
    cut = api.completions.create(**asked, stop=stop).choices[0]
    assert 0 < len(cut.logprobs.tokens) < len(full.logprobs.tokens)
    assert cut.logprobs.text_offset[-1] < len(cut.text)
    assert full.logprobs.tokens[: len(cut.logprobs.tokens)] == cut.logprobs.tokens


def test_logprobs_are_those_of_the_tokens(api: Any, lm: LM) -> None:
    found = api.completions.create(model="tiny", prompt="The", max_tokens=10, seed=3, logprobs=1).choices[0]
    before = len(lm.tokenizer.encode("The"))
    way = lm.generate(prompt="The", length=before + 10, seed=3, record=True)[0].trajectory
    assert way is not None
    known = way.log_p[-1, before : before + len(found.logprobs.tokens)].tolist()
    assert found.logprobs.token_logprobs == pytest.approx(known, abs=1e-5)
    assert [list(best) for best in found.logprobs.top_logprobs] == [[t] for t in found.logprobs.tokens]
    assert found.logprobs.text_offset[0] == 0


def test_logprobs_of_several_windows_are_those_of_the_windows(api: Any, lm: LM) -> None:
    """The last frame shows the last window only; the tokens before it were settled by frames before."""
    asked = {"model": "tiny", "prompt": "The", "max_tokens": 80, "seed": 3, "logprobs": 0}
    found = api.completions.create(**asked, extra_body={"steps": 3}).choices[0]
    before = len(lm.tokenizer.encode("The"))
    way = lm.generate(prompt="The", length=before + 80, seed=3, steps=3, record=True)[0].trajectory
    assert way is not None
    known = [[p for p in column if p == p][-1] for column in way.log_p.T.tolist()]
    assert len(found.logprobs.token_logprobs) > 38  # more than a window
    expected = known[before : before + len(found.logprobs.tokens)]
    assert found.logprobs.token_logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("text", ["The fox", "naïve 漢字 fox 🦊", "🦊🦊"])
def test_logprobs_count_characters_not_bytes(lm: LM, text: str) -> None:
    """A character of several tokens is one character, and the tokens after it are not lost."""
    from scdd.lm.results import Sample
    from scdd.serve.completion import Cutter, choice

    tokens = tuple(lm.tokenizer.encode(text))
    sample = Sample(text, tokens, 0, 0, 1, 1, len(tokens), 0, 0, "ancestral", "ancestral", "scdd")
    row = [lm.tokenizer.mask_id] * len(tokens)
    found = choice(0, Cutter(lm.tokenizer, row, 0, len(row), [], "<", True), sample, logs=True)
    assert found.text == f"<{text}"
    assert found.logprobs is not None
    assert found.logprobs["tokens"] == [lm.tokenizer.token(token) for token in tokens]
    for word, at in zip(found.logprobs["tokens"], found.logprobs["text_offset"], strict=True):
        assert word == "\ufffd" or found.text[at:].startswith(word)
    assert found.logprobs["text_offset"] == sorted(found.logprobs["text_offset"])
    stopped = choice(0, Cutter(lm.tokenizer, row, 0, len(row), [" fox"], "", True), sample, logs=True)
    assert stopped.logprobs is not None
    cut = stopped.logprobs["tokens"]
    assert cut == found.logprobs["tokens"][: len(lm.tokenizer.encode(stopped.text))]


def test_a_stream_with_logprobs_adds_up_too(api: Any) -> None:
    asked = {"model": "tiny", "prompt": "The", "max_tokens": 60, "seed": 3, "logprobs": 1, "n": 2}
    whole = api.completions.create(**asked, extra_body={"steps": 3})
    chunks = [chunk.choices[0] for chunk in api.completions.create(**asked, stream=True, extra_body={"steps": 3})]
    for choice in whole.choices:
        parts = [chunk for chunk in chunks if chunk.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        assert parts[-1].logprobs == choice.logprobs


def test_prompts_can_be_many_and_can_be_tokens(api: Any, lm: LM) -> None:
    ids = lm.tokenizer.encode("The river runs")
    many = api.completions.create(model="tiny", prompt=["The river runs", "The fox"], max_tokens=6, seed=9, n=2)
    one = api.completions.create(model="tiny", prompt=ids, max_tokens=6, seed=9, n=2)
    assert [choice.text for choice in many.choices[:2]] == [choice.text for choice in one.choices]
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]


def test_temperature_zero_is_greedy(api: Any, lm: LM) -> None:
    found = api.completions.create(model="tiny", prompt="The", max_tokens=8, seed=3, temperature=0)
    before = len(lm.tokenizer.encode("The"))
    expected = lm.generate(prompt="The", length=before + 8, seed=3, top_k=1)[0]
    assert found.choices[0].text == lm.engine.text(expected.tokens[before:])


@pytest.mark.parametrize(
    ("asked", "same"),
    [
        ({"top_p": 0}, {"top_k": 1}),
        ({"temperature": 0.5}, {"temperature": 0.5}),
        ({"temperature": 1.5, "top_p": 0.4}, {"temperature": 1.5, "top_p": 0.4}),
        ({"extra_body": {"top_k": 3, "steps": 2}}, {"top_k": 3, "steps": 2}),
        ({"extra_body": {"grid": "cosine", "final": "greedy"}}, {"grid": "cosine", "final": "greedy"}),
    ],
)
def test_filters_are_the_librarys(api: Any, lm: LM, asked: dict[str, Any], same: dict[str, Any]) -> None:
    before = len(lm.tokenizer.encode("The"))
    found, plain = (
        api.completions.create(model="tiny", prompt="The", max_tokens=20, seed=3, **how).choices[0].text
        for how in (asked, {})
    )
    expected = lm.generate(prompt="The", length=before + 20, seed=3, **same)[0]
    assert found == lm.engine.text(expected.tokens[before:])
    assert found != plain


def test_seeds(api: Any) -> None:
    """The same one gives the same text, none a new one each time, which the answer names."""
    asked = {"model": "tiny", "prompt": "The", "max_tokens": 20}
    first, second = api.completions.create(**asked), api.completions.create(**asked)
    again = api.completions.create(**asked, seed=first.scdd["seed"])
    assert first.choices[0].text == again.choices[0].text != second.choices[0].text


def test_no_prompt_is_an_empty_one(api: Any) -> None:
    """OpenAI's client lets people send None."""
    texts = {
        api.completions.create(model="tiny", prompt=prompt, max_tokens=8, seed=1).choices[0].text
        for prompt in (None, "")
    }
    assert len(texts) == 1


def test_a_stop_that_may_still_come_is_not_sent_before(lm: LM) -> None:
    """A window shorter than the stop: none of it can be sent."""
    from scdd.serve.completion import Cutter

    text, stop = "The fox runs", "x runs over"
    tokens = lm.tokenizer.encode(text)
    cutter = Cutter(lm.tokenizer, [lm.tokenizer.mask_id] * (len(tokens) + 4), 0, len(tokens) + 4, [stop], "", True)
    sent = cutter.fed(0, tokens)
    assert len(sent) == len(text) - len(stop) + 1
    short = lm.tokenizer.encode("The")
    cutter = Cutter(lm.tokenizer, [lm.tokenizer.mask_id] * 9, 0, 9, [stop], "", True)
    assert cutter.fed(0, short) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "gpt"},
        {"max_tokens": 0},
        {"max_tokens": 1000},
        {"n": 9},
        {"temperature": 2.5},
        {"logprobs": 9},
        {"stop": ["a", "b", "c", "d", "e"]},
        {"presence_penalty": 1.0},
        {"logit_bias": {"1": 5}},
        {"best_of": 3},
        {"prompt": [10**6]},
        {"prompt": []},
        {"extra_body": {"stepz": 1}},
    ],
)
def test_mistakes_raise_the_clients_own_errors(api: Any, wrong: dict[str, Any]) -> None:
    kind = openai.NotFoundError if wrong.get("model") else openai.BadRequestError
    with pytest.raises(kind) as caught:
        api.completions.create(**{"model": "tiny", "prompt": "The", **wrong})
    assert caught.value.body["message"]
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize(("tokens", "said"), [(1000, "is 1000"), (99, "102 tokens")])
def test_what_is_too_long_names_the_parameter_that_was_sent(api: Any, tokens: int, said: str) -> None:
    """100 tokens are allowed, the prompt's included."""
    with pytest.raises(openai.BadRequestError, match=said) as caught:
        api.completions.create(model="tiny", prompt="The fox", max_tokens=tokens)
    assert (caught.value.param, caught.value.code) == ("max_tokens", "limit_exceeded")


def test_a_stream_takes_one_prompt(api: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="one prompt"):
        api.completions.create(model="tiny", prompt=["The", "A"], stream=True)


def test_the_time_limit_is_an_error_of_the_clients(serving: Serving) -> None:
    with (
        serving({"steps": 20000, "seconds": 0.5, "workers": 1}) as client,
        openai.OpenAI(base_url=f"{client.url}/v1", api_key="none", max_retries=0) as api,
    ):
        asked = {"model": "tiny", "prompt": "The", "max_tokens": 30, "extra_body": {"steps": 20000}}
        with pytest.raises(openai.APIStatusError) as caught:
            api.completions.create(**asked)
        assert (caught.value.status_code, caught.value.code) == (504, "timeout")
        with pytest.raises(openai.APIError, match=r"within 0\.5 s"):
            list(api.completions.create(**asked, stream=True))


def test_a_token_is_asked_for(serving: Serving) -> None:
    with serving(token="s3cret") as client:
        url = f"{client.url}/v1"
        assert openai.OpenAI(base_url=url, api_key="s3cret").models.list().data[0].id == "tiny"
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=url, api_key="wrong", max_retries=0).models.list()


def test_a_full_queue_is_a_rate_limit(serving: Serving) -> None:
    """One worker busy, one place in the queue: the rest is told when to come back.

    How many that are depends on whether the worker has taken the first request before the others arrive.
    """
    from concurrent.futures import ThreadPoolExecutor

    with serving({"workers": 1, "batch": 1, "queue": 1}) as client, ThreadPoolExecutor(6) as pool:
        asked = {"model": "tiny", "prompt": "The", "max_tokens": 30, "seed": 1, "extra_body": {"steps": 256}}

        def once(_: int) -> Any:
            with openai.OpenAI(base_url=f"{client.url}/v1", api_key="none", max_retries=0) as api:
                try:
                    return api.completions.create(**asked).choices[0].text
                except openai.RateLimitError as error:
                    return error

        found = list(pool.map(once, range(6)))
        refused = [each for each in found if isinstance(each, openai.RateLimitError)]
        assert 1 <= len(refused) <= 5
        assert all(int(error.response.headers["retry-after"]) >= 1 for error in refused)
        assert len({each for each in found if isinstance(each, str)}) == 1
