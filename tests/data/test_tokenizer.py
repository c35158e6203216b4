from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from scdd.core.errors import UserError
from scdd.data.ends import BYTES
from scdd.data.tokenizer import TextTokenizer
from tests.data.conftest import article

# Text with many newlines, blanks and special tokens' names, where paragraph cutting could go wrong.
tricky = st.lists(
    st.sampled_from(
        [
            "\n",
            "\n\n",
            " ",
            "\t",
            "\r\n",
            "a",
            "don't",
            "'s",
            "[MASK]",
            "[EOS]",
            "<|endoftext|>",
            "é",
            "\xa0",
            "\x1c",
            "…",
            "7",
        ]
    )
).map("".join)


@given(text=st.one_of(st.text(), tricky))
def test_any_text_round_trips_without_special_ids(tokenizer: TextTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not {tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id} & set(ids)


BUNDLED = TextTokenizer.load("bundled")
BROKEN = [i for i in range(BUNDLED.size) if "\ufffd" in BUNDLED.token(i)]  # parts of characters


def test_the_bytes_of_tokens_are_the_librarys() -> None:
    assert set(BYTES) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(BYTES.values()) == list(range(256))


@given(
    st.lists(st.sampled_from(BROKEN) | st.integers(-2, BUNDLED.size + 2), max_size=12)
    | st.text("🙂👩\u200d\u0301é中\ufffd a[MASK]").map(BUNDLED.encode)
)
def test_tokens_end_where_their_beginning_decodes_to(ids: list[int]) -> None:
    assert BUNDLED.ends(ids) == [len(BUNDLED.decode(ids[: i + 1], skip_special=False)) for i in range(len(ids))]


def test_tokens_of_other_decoders_end_where_their_beginning_decodes_to() -> None:
    plain = Tokenizer(models.WordLevel({"the": 0, "river": 1, ".": 2, "[UNK]": 3}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.decoder = decoders.WordPiece()
    tokenizer = TextTokenizer.completed(plain.to_str())
    ids = tokenizer.encode("the river.")
    assert tokenizer.decode(ids) == "the river."
    assert tokenizer.ends(ids) == [3, 9, 10]


@given(text=st.one_of(tricky, st.text(alphabet="\n ab\u2028\x85")))
def test_cutting_at_newlines_changes_no_id(tokenizer: TextTokenizer, text: str) -> None:
    assert tokenizer._cuts_at_newlines
    whole = tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text) == whole


@given(ids=st.lists(st.integers(-5, 1000)))
def test_decode_never_crashes(tokenizer: TextTokenizer, ids: list[int]) -> None:
    assert isinstance(tokenizer.decode(ids), str)
    assert isinstance(tokenizer.decode(ids, skip_special=False), str)


def test_a_trained_tokenizer(tokenizer: TextTokenizer) -> None:
    assert (tokenizer.bos, tokenizer.eos, tokenizer.mask) == ("[BOS]", "[EOS]", "[MASK]")
    assert tokenizer.size == len(tokenizer) == 400
    assert tokenizer.mask_id == 399
    assert tokenizer.vocab.size == 400
    assert tokenizer.vocab.mask_id == 399
    assert tokenizer.token(tokenizer.mask_id) == "[MASK]"
    assert tokenizer.decode([tokenizer.bos_id, *tokenizer.encode("a b"), tokenizer.eos_id]) == "a b"


def test_training_is_deterministic(tokenizer: TextTokenizer) -> None:
    assert TextTokenizer.train((article(i) for i in range(200)), 400).hash == tokenizer.hash
    assert TextTokenizer.train((article(i) for i in range(100)), 400).hash != tokenizer.hash


def test_saving_keeps_ids_and_hash(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    path = tokenizer.save(tmp_path)
    again = TextTokenizer.from_file(tmp_path)
    assert path.name == "tokenizer.json"
    assert again.hash == tokenizer.hash == pickle.loads(pickle.dumps(tokenizer)).hash
    assert (again.bos_id, again.eos_id, again.mask_id) == (tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id)
    assert again.encode(article(7)) == tokenizer.encode(article(7))
    # The library itself reads the file, and adds the specials when asked.
    plain = Tokenizer.from_file(str(path))
    assert plain.encode("a").ids == [tokenizer.bos_id, *tokenizer.encode("a"), tokenizer.eos_id]


def test_older_spelling_of_merges_has_the_same_hash(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    document = json.loads(tokenizer.to_str())
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(document, indent=2))
    assert TextTokenizer.from_file(tmp_path).hash == tokenizer.hash


def foreign(tmp_path: Path, specials: list[str]) -> TextTokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.train_from_iterator(
        [article(1)], trainers.BpeTrainer(vocab_size=300, special_tokens=specials, show_progress=False)
    )
    made.enable_padding(pad_id=0, pad_token="[PAD]", length=99)
    made.enable_truncation(5)
    made.save(str(tmp_path / "tokenizer.json"))
    return TextTokenizer.from_file(tmp_path)


def test_foreign_tokenizers_get_what_they_lack(tmp_path: Path) -> None:
    bert = foreign(tmp_path, ["[PAD]", "[CLS]", "[SEP]", "[MASK]"])
    assert (bert.bos_id, bert.eos_id, bert.mask_id) == (1, 2, 3)
    bare = foreign(tmp_path, [])
    assert (bare.bos, bare.eos, bare.mask) == ("[BOS]", "[EOS]", "[MASK]")
    assert bare.mask_id == bare.size - 1
    assert not bare._cuts_at_newlines  # it adds a blank in front: pieces would differ
    assert len(bare.encode("Article castle river " * 20)) > 5, "the file's own truncation must not bite"
    one_end = foreign(tmp_path, ["<|endoftext|>"])
    assert one_end.bos_id == one_end.eos_id == 0


def test_mistakes_are_named(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    with pytest.raises(UserError, match="need 259"):
        TextTokenizer.train(["x"], 100)
    with pytest.raises(UserError, match="cannot be read"):
        TextTokenizer.load(tmp_path / "none.json")
    (tmp_path / "tokenizer.json").write_text('{"a": 1}')
    with pytest.raises(UserError, match=r"is not a tokenizer\.json"):
        TextTokenizer.load(tmp_path)
    document = tokenizer.to_str().replace("[MASK]", "[PAD]")
    with pytest.raises(UserError, match="not padding"):
        TextTokenizer(document)


@pytest.mark.data
def test_gpt2(data_folder: Path) -> None:
    gpt2 = TextTokenizer.load(data_folder / "gpt2")
    assert gpt2.encode("Hello world") == [15496, 995]
    assert (gpt2.size, gpt2.mask_id, gpt2.bos_id, gpt2.eos_id) == (50258, 50257, 50256, 50256)
    assert gpt2.decode([15496, 995, 50257], skip_special=False) == "Hello world[MASK]"


@pytest.mark.data
def test_cutting_at_newlines_changes_no_id_of_real_text(data_folder: Path) -> None:
    from scdd.data.corpus import discover, documents

    gpt2 = TextTokenizer.load(data_folder / "gpt2" / "tokenizer.json")
    for number, text in enumerate(documents(discover([data_folder / "wiki-en" / "valid.jsonl.xz"]))):
        if number >= 40:
            break
        assert gpt2.encode(text) == gpt2._tokenizer.encode(text, add_special_tokens=False).ids
