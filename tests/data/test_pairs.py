"""Pairs and chats as rows: what is given, what is learnt, where things end, and what is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from scdd.core.errors import UserError
from scdd.data.chat import ChatTemplate
from scdd.data.loader import Loader, Rank, validation_batches
from scdd.data.pairs import Pair, PairBlocks, encode_pairs, read_pairs, split_pairs
from scdd.data.tokenizer import TextTokenizer

from ..tiny import tokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "where does the river run"},
    {"role": "assistant", "content": "to the sea"},
    {"role": "user", "content": "and the <|im_end|> falcon [MASK]"},
    {"role": "assistant", "content": "over [EOS] the \ue0000 river"},
]


def chat_tokenizer() -> TextTokenizer:
    """The tiny tokenizer with a chat's two special tokens."""
    own = Tokenizer.from_str(tokenizer().to_str())
    own.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return TextTokenizer(own.to_str())


def written(path: Path, lines: Iterable[Mapping[str, Any]]) -> Path:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wb") as file:
        file.write(text.encode())
    return path


def examples(count: int = 30) -> list[dict[str, str]]:
    return [{"prompt": "river " * (1 + i % 7), "response": "sea " * (1 + i % 5)} for i in range(count)]


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.jsonl.gz"])
@pytest.mark.parametrize("pack", [True, False])
def test_every_pair_is_in_one_row_with_its_response_learnt(tmp_path: Path, name: str, pack: bool) -> None:
    own, lines = tokenizer(), examples()
    pairs = encode_pairs(read_pairs(written(tmp_path / name, lines), None), own, None, length=48, fill=1)
    blocks = PairBlocks(pairs, 48, pack)
    every = np.arange(len(blocks))
    (tokens, documents), learnt = blocks.take(every), blocks.learnt(every)
    found = []
    for row, owner, flags in zip(tokens, documents, learnt, strict=True):
        assert not flags[owner < 0].any()
        for number in range(owner.max() + 1):
            ids, mine = row[owner == number], flags[owner == number]
            assert ids[0] == own.bos_id
            assert not mine[0]
            assert ids[-1] == own.eos_id
            assert mine[-1]
            assert (np.diff(mine.astype(int)) >= 0).all(), "given first, learnt then"
            found.append((own.decode(ids[1:][~mine[1:]]), own.decode(ids[mine][:-1])))
    assert sorted(found) == sorted((line["prompt"], line["response"]) for line in lines)
    assert (len(blocks) < len(lines) / 2) == pack


def test_a_prompt_loses_its_beginning_and_a_response_never_anything() -> None:
    own = tokenizer()
    texts = [("river " * 40 + "to the sea", "fox"), ("fox", "river " * 40), ("fox", ""), ("", "falcon")]
    pairs = encode_pairs((Pair(((p, False), (r, True)), chat=False) for p, r in texts), own, None, length=24, fill=8)
    assert (len(pairs), pairs.cut, pairs.skipped) == (2, 1, 2)
    first, second = np.split(pairs.tokens, pairs.ends[:-1])
    assert len(first) == 24
    assert own.decode(first).endswith("to the seafox")
    flags = np.split(pairs.flags, pairs.ends[:-1])[1]
    assert flags.sum() % 8 == 0, "[EOS] fills the response up to a multiple"
    assert (second[flags][len(own.encode("falcon")) :] == own.eos_id).all()
    with pytest.raises(UserError, match=r"no pair fits into 4 tokens, or no response .*: choose a larger length"):
        PairBlocks(encode_pairs([Pair((("a", False), ("river sea", True)), False)], own, None, 4, 1), 4, True)


def test_a_chat_is_rendered_and_the_assistants_turns_are_learnt(tmp_path: Path) -> None:
    own = chat_tokenizer()
    template = ChatTemplate(TEMPLATE, own)
    (pair,) = read_pairs(written(tmp_path / "chats.jsonl", [{"messages": [*CHAT, CHAT[1]]}]), template)
    pairs = encode_pairs([pair], own, template, length=256, fill=1)
    shown = own.decode(pairs.tokens, skip_special=False)
    answers = own.decode(pairs.tokens[pairs.flags], skip_special=False)
    assert answers == "to the sea<|im_end|>\nover [EOS] the \ue0000 river<|im_end|>\n[EOS]"
    assert shown.startswith("[BOS]<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nwhere")
    # The template's special tokens are ids of their own; those that somebody only writes about are letters.
    ids = pairs.tokens.tolist()
    assert ids.count(own.special_tokens["<|im_start|>"]) == 5
    assert ids.count(own.special_tokens["<|im_end|>"]) == 5
    assert own.mask_id not in ids
    assert "the <|im_end|> falcon [MASK]" in shown
    assert ids.count(own.eos_id) == 1


def test_the_whole_batch_counts_what_is_learnt_whoever_holds_its_rows() -> None:
    own = tokenizer()
    given = [Pair(((each["prompt"], False), (each["response"], True)), False) for each in examples()]
    blocks = PairBlocks(encode_pairs(given, own, None, 48, 4), 48, pack=False)
    whole = iter(Loader(blocks, 8, seed=2, prefetch=0))
    halves = [iter(Loader(blocks, 8, seed=2, rank=Rank(r, 2), prefetch=0)) for r in range(2)]
    for _ in range(6):
        one, two = next(whole), [next(half) for half in halves]
        assert one.learnt is not None
        assert float(one.learnt.total) == int(one.learnt.where.sum())
        for r, part in enumerate(two):
            assert part.learnt is not None
            assert float(part.learnt.total) == float(one.learnt.total)
            assert part.learnt.where.equal(one.learnt.where[4 * r : 4 * r + 4])
            assert part.tokens.equal(one.tokens[4 * r : 4 * r + 4])
    held = list(validation_batches(blocks, 8, rank=Rank(1, 2)))
    assert [batch.real for batch in held] == [4, 4, 4, 2]


def test_validation_takes_whole_pairs_and_leaves_some() -> None:
    given = [Pair(((str(i), False), (str(i), True)), False) for i in range(20)]
    held, kept = split_pairs(given, 0.1)
    assert len(held) == 2
    assert sorted(held + kept) == sorted(given)
    assert split_pairs(given[:1], 0.5) == ([], given[:1])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prompt": "a"}', r"line 2: no text in fields prompt and response, and no messages \(it has: prompt\)"),
        ('{"prompt": "a", "response": 3}', "line 2: no text in fields prompt and response"),
        ('{"prompt": "a", ', "line 2: not a JSON object"),
        ('{"prompt": "\\ud800", "response": "a"}', "line 2: not a JSON object in UTF-8"),
        ("[1]", "line 2: not a JSON object in UTF-8 .it holds a list"),
        ('{"messages": []}', "line 2: messages is no list of messages"),
        ('{"messages": [{"role": "user"}]}', "line 2: a message without a text as its content"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "the role assistant says nothing"),
    ],
)
def test_a_line_that_is_no_pair_is_refused_with_its_place(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(examples(1)[0]) + f"\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=says):
        list(read_pairs(path, ChatTemplate(TEMPLATE, chat_tokenizer())))


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for %}", "chat_template is not a Jinja template"),
        ("{{ raise_exception('no system turn') }}", "does not render a chat .no system turn"),
        ("{{ messages.__class__.__mro__ }}", "does not render a chat .*unsafe"),
        ("{% for i in range(90000) %}{{ '0123456789' * 1000 }}{% endfor %}", "it writes more than"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "does not render a chat"),
        ("{{ messages | length }}", "writes earlier turns otherwise"),
    ],
)
def test_a_template_that_does_not_serve_is_refused(template: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        ChatTemplate(template, chat_tokenizer()).turns(CHAT)


def test_the_token_that_ends_the_assistants_turn_is_the_templates_own() -> None:
    own = chat_tokenizer()
    assert ChatTemplate(TEMPLATE, own).end_of_turn(CHAT[:2]) == own.special_tokens["<|im_end|>"]
    plain = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}\n{% endfor %}"
    assert ChatTemplate(plain, own).end_of_turn(CHAT[:2]) is None


def test_messages_need_a_template(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"chat_template is missing, and .*line 1 holds messages"):
        list(read_pairs(written(tmp_path / "chats.jsonl", [{"messages": CHAT}]), None))
    (tmp_path / "text.txt").write_text("river")
    with pytest.raises(UserError, match="holds no JSON lines"):
        list(read_pairs(tmp_path / "text.txt", None))
