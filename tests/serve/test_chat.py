"""Chats over OpenAI's API, with a model that has a chat template."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

import pytest

from scdd.lm import chat
from scdd.lm.model import LM
from tests.serve.client import Client
from tests.serve.conftest import Serving

openai = pytest.importorskip("openai", reason="needs openai: pip install openai")
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}fox:{% endif %}"
)
MESSAGES = [{"role": "system", "content": "be quick"}, {"role": "user", "content": "The river?"}]


@pytest.fixture(scope="module")
def chatty(lm: LM) -> LM:
    made = copy(lm)
    made.chat_template = TEMPLATE
    return made


@pytest.fixture(scope="module")
def served(serving: Serving, chatty: LM) -> Iterator[Client]:
    with serving(model=chatty) as client:
        yield client


@pytest.fixture(scope="module")
def api(served: Client) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_the_answer_is_the_librarys(api: Any, chatty: LM) -> None:
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 20, "seed": 3, "n": 2}
    found = api.chat.completions.create(**asked, temperature=0.9, extra_body={"steps": 8})
    expected = chat.answer(chatty, MESSAGES, 20, seed=3, steps=8, temperature=0.9)
    first, second = found.choices
    assert (first.message.role, first.message.content) == ("assistant", expected)
    assert second.message.content != expected
    assert first.finish_reason in ("stop", "length")
    assert found.usage.prompt_tokens == len(chat.written(chatty, MESSAGES))
    assert found.usage.completion_tokens <= 40
    assert (found.scdd["seed"], found.scdd["steps"]) == (3, 8)


def test_a_stream_says_the_same(api: Any) -> None:
    asked = {"model": "tiny", "messages": MESSAGES, "max_completion_tokens": 20, "seed": 4}
    whole = api.chat.completions.create(**asked)
    chunks = list(api.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    parts = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(part.delta.content or "" for part in parts) == whole.choices[0].message.content
    assert parts[-1].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


def test_stops_cut_the_answer_and_contents_may_come_in_parts(api: Any) -> None:
    asked = {"model": "tiny", "max_tokens": 30, "seed": 5}
    whole = api.chat.completions.create(**asked, messages=MESSAGES).choices[0].message.content
    parts = [
        {"role": m["role"], "content": [{"type": "text", "text": m["content"][:3]}, {"type": "text", "text": m["content"][3:]}]}
        for m in MESSAGES
    ]  # fmt: skip
    cut = api.chat.completions.create(**asked, messages=parts, stop=whole[5]).choices[0]
    assert (cut.message.content, cut.finish_reason) == (whole[: whole.index(whole[5])], "stop")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages.content is missing"),
        ({"messages": [{"role": "user", "content": "the " * 200}]}, "messages has"),
        ({"max_tokens": 95}, "max_tokens makes"),
        ({"n": 9}, "n is 9"),
        ({"extra_body": {"steps": 999}}, "steps is 999"),
        ({"presence_penalty": 1.0}, "presence_penalty: this server does not have it"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools is not known here"),
    ],
)
def test_mistakes_are_named(api: Any, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        api.chat.completions.create(**{"model": "tiny", "messages": MESSAGES, **wrong})
    assert said in caught.value.body["message"]


def test_the_document_has_the_route_where_the_model_has_a_template(served: Client, client: Client) -> None:
    assert "/v1/chat/completions" in served.get("/openapi.json").json["paths"]
    assert "/v1/chat/completions" not in client.get("/openapi.json").json["paths"]
