"""Text to ids and back, with the three special tokens a diffusion model needs: [BOS], [EOS] and [MASK].

Special tokens never come out of `encode`: a text that says "[MASK]" is spelt in ordinary tokens. The mask is a state of the
process, not a word, so clean data must not hold it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from scdd.core.errors import UserError, reason
from scdd.core.files import TOKENIZER_LIMIT
from scdd.data.files import write_atomically

if TYPE_CHECKING:
    from scdd.core.types import Vocab

BOS, EOS, MASK = "[BOS]", "[EOS]", "[MASK]"
_PAD_NAMES = ("[PAD]", "<pad>", "<|pad|>", "<|padding|>")
SMALLEST, LARGEST = 256 + 3, 1 << 20  # every byte, [BOS], [EOS], [MASK]; the library ends the process beyond its memory
MOST_IDS = 1 << 24
MOST_VALUES = 1 << 23  # in a tokenizer.json; those of 250,000 tokens have about two million
MOST_PARTS, MOST_GROWTH, LONGEST_PATTERN = 32, 64, 4096  # of normalizers and the like, and of what they do to a text
PROBE = "A text, 1 of 2:\n  naïve — 中文 🙂 don't"

# Byte-level pre-tokenisation makes a lone newline between two visible characters a piece of its own, whatever is
# around it; so a text cut there gives the same ids, and the library is faster on short texts.
_PARAGRAPH = re.compile(r"(?<=\S\n)(?=\S)")


class TextTokenizer:
    """A `tokenizers.Tokenizer` that knows its special ids and its own hash. One file holds it all: tokenizer.json.

    The special tokens' names are kept where the library itself keeps them, in a `[BOS] $A [EOS]` template.
    """

    def __init__(self, document: str, place: str = "tokenizer.json") -> None:
        """`document`: a tokenizer.json as `save` writes it (other files: `from_file`)."""
        self.added = 0
        """How many ids `completed` had to add: those that a model which came with the tokenizer does not know."""
        self._tokenizer, self._document = _parsed(document, place)
        self._place = place
        self._tokenizer.encode_special_tokens = True
        if (roles := _template(self._document)) is None:
            raise UserError(f"{place} does not say which tokens are [BOS], [EOS] and [MASK]: load it with from_file.")
        self.bos, self.eos, self.mask = roles
        self.bos_id, self.eos_id, self.mask_id = (self._id(name) for name in (self.bos, self.eos, self.mask))
        self.size = _size(self._tokenizer, place)
        if self.mask in _PAD_NAMES or self.mask_id in (self.bos_id, self.eos_id):
            raise UserError(f"{place} uses {self.mask} as its mask: the mask must be a token of its own, not padding.")
        self.decode(self.encode(PROBE))  # what fails, fails now

    # -- making one ---------------------------------------------------------------------------------------------

    @classmethod
    def from_file(cls, path: str | Path) -> TextTokenizer:
        """Any tokenizer.json (or a folder with one, or a .gguf file), completed as `completed` says.

        A tokenizer_config.json beside it says which tokens begin and end a text.
        """
        from scdd.data.complete import read

        return cls.completed(*read(Path(path)))

    @classmethod
    def load(cls, name: str | Path) -> TextTokenizer:
        """A tokenizer.json, a folder that holds one, a .gguf file, a name on the Hugging Face hub, or "bundled", the package's."""
        from scdd.data.complete import found

        return cls.from_file(found(name))

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> TextTokenizer:
        """Byte-level BPE of at most `size` ids, the special ones included, with [MASK] last. Any text round-trips."""
        if size < SMALLEST:
            raise UserError(f"a tokenizer of {size} ids is too small: 256 bytes and 3 special tokens need {SMALLEST}.")
        if size > LARGEST:
            raise UserError(f"a tokenizer of {size} ids is too large: choose at most {LARGEST:,}.")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size - 1,
            special_tokens=[BOS, EOS],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls.completed(tokenizer.to_str(), "the trained tokenizer")

    @classmethod
    def completed(
        cls, document: str, place: str = "tokenizer.json", bos: str | None = None, eos: str | None = None
    ) -> TextTokenizer:
        """Give a foreign tokenizer the special tokens it lacks; leave one of ours as it is.

        `bos` and `eos` are what its own files call the ends of a text. <|endoftext|> goes before them where it is a special
        token: chat models name the ends of a turn, and documents lie between <|endoftext|>. The mask is a token of a known
        name, else one that was kept free, else [MASK] on the next free id.
        """
        tokenizer, plain = _parsed(document, place)
        if _template(plain) is not None:
            return cls(document, place)
        from scdd.data.complete import complete

        size = _size(tokenizer, place)
        with _library(place):
            made = cls(complete(tokenizer, bos, eos), place)
        made.added = made.size - size
        return made

    # -- using it -----------------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Ids of one text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; special tokens are neither added nor recognised."""
        if not self._cuts_at_newlines:
            with _library(self._place):
                return [e.ids for e in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        pieces = [_PARAGRAPH.split(text) for text in texts]
        flat = [piece for parts in pieces for piece in parts]
        with _library(self._place):
            encoded = iter(self._tokenizer.encode_batch_fast(flat, add_special_tokens=False))
        return [[i for _ in parts for i in next(encoded).ids] for parts in pieces]

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of any ids: those out of range are dropped, broken UTF-8 shows as U+FFFD."""
        size = self.size
        known = [i for i in map(int, ids) if 0 <= i < size]
        with _library(self._place):
            return str(self._tokenizer.decode(known, skip_special_tokens=skip_special))

    def ends(self, ids: Sequence[int]) -> list[int]:
        """len(decode(ids[: i + 1], skip_special=False)) for every i: where the tokens end, in characters.

        Of byte-level tokens in one go; other decoders may look at the whole text, and are asked about every beginning.
        """
        if (self._document.get("decoder") or {}).get("type") != "ByteLevel":
            return [len(self.decode(ids[: i + 1], skip_special=False)) for i in range(len(ids))]
        from scdd.data.ends import byte_ends

        known = ((self._tokenizer.id_to_token(i) or "") if 0 <= i < self.size else "" for i in map(int, ids))
        return byte_ends(known)

    def token(self, i: int) -> str:
        """What one id reads as, special tokens by their names."""
        return self.decode([i], skip_special=False)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Names of all special tokens, those of a model's chats among them, with their ids."""
        added = [token["content"] for token in self._document.get("added_tokens", []) if token.get("special")]
        return {name: self._id(name) for name in added if name}

    @property
    def padding(self) -> tuple[str, int] | None:
        """Name and id of a token for padding, where there is one; nothing here needs it."""
        name = first(self._tokenizer, _PAD_NAMES)
        return None if name is None else (name, self._id(name))

    @property
    def vocab(self) -> Vocab:
        """V ids with their mask, for the model."""
        from scdd.core.types import Vocab  # torch; preparing data does without

        return Vocab(size=self.size, mask_id=self.mask_id)

    @cached_property
    def hash(self) -> str:
        """sha256 of the canonical tokenizer.json: two tokenizers with the same hash give the same ids."""
        return hashlib.sha256(self.to_str().encode()).hexdigest()

    def to_str(self) -> str:
        """The canonical tokenizer.json."""
        document = self._document
        model = dict(document["model"])
        if isinstance(model.get("merges"), list):
            # One spelling for one tokenizer: older versions of the library write a merge as "a b", newer as ["a", "b"].
            model["merges"] = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
        return json.dumps({**document, "model": model}, sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    def save(self, path: str | Path) -> Path:
        """Write tokenizer.json (into `path` if it is a folder)."""
        path = Path(path)
        path = path / "tokenizer.json" if path.is_dir() else path
        write_atomically(path, (self.to_str() + "\n").encode())
        return path

    def __len__(self) -> int:
        return self.size

    def __reduce__(self) -> tuple[type[TextTokenizer], tuple[str]]:
        return TextTokenizer, (self.to_str(),)

    def _id(self, name: str) -> int:
        number = self._tokenizer.token_to_id(name)
        if number is None:
            raise UserError(f"the tokenizer's template names {name}, which its vocabulary lacks: add that token.")
        return int(number)

    @cached_property
    def _cuts_at_newlines(self) -> bool:
        d = self._document
        before = d.get("pre_tokenizer") or {}
        plain = (
            before.get("type") == "ByteLevel" and before.get("use_regex", True) and not before.get("add_prefix_space")
        )
        added = [t for t in d.get("added_tokens", []) if not t.get("special")]
        return bool(plain and d.get("normalizer") is None and not added and not d["model"].get("dropout"))


def single_threaded() -> None:
    """Keep the library from starting threads: workers are processes, one for each core."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def first(tokenizer: Tokenizer, names: Sequence[str]) -> str | None:
    """The first of the names that is a token; None where none is."""
    return next((name for name in names if tokenizer.token_to_id(name) is not None), None)


# -- what comes from outside ------------------------------------------------------------------------------------------


def _parsed(document: str, place: str) -> tuple[Tokenizer, dict[str, Any]]:
    """(The library's tokenizer, the document as plain data), once nothing in it can grow, abort or be too much."""
    try:
        refuse_large(document)
        plain = json.loads(document)
        _check(plain)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _no_tokenizer(place, error) from error
    with _library(place):
        # Padding and truncation are never used, and a wrong one makes the library panic.
        text = document if not (plain.get("padding") or plain.get("truncation")) else _without_both(plain)
        tokenizer = Tokenizer.from_str(text)
        tokenizer.no_padding()
        tokenizer.no_truncation()
    return tokenizer, plain


def refuse_large(document: str) -> None:
    """ValueError where plain data from a JSON text would take gigabytes: twenty times its room, if it is made for that."""
    if len(document) > TOKENIZER_LIMIT or sum(map(document.count, "[{,")) > MOST_VALUES:
        raise ValueError(f"it is larger than {TOKENIZER_LIMIT >> 20} MiB or has more than {MOST_VALUES:,} values")


def _without_both(plain: dict[str, Any]) -> str:
    return json.dumps({**plain, "padding": None, "truncation": None})


def _check(plain: Any) -> None:
    """ValueError where a part would make texts grow without bound, or the library end the process."""
    if not isinstance(plain, dict) or not isinstance(plain.get("model"), dict):
        raise ValueError("it has no model")
    if plain["model"].get("continuing_subword_prefix") and "merges" in plain["model"]:
        raise ValueError("its BPE has a continuing_subword_prefix")  # cut off at any byte, which ends the process
    for side in (("normalizer", "pre_tokenizer"), ("decoder",)):
        parts = [part for name in side for part in _parts(plain.get(name))]
        growth = prod(map(_growth, parts))
        if len(parts) > MOST_PARTS or not growth <= MOST_GROWTH:
            raise ValueError(f"its {side[0]} makes texts {growth:,.0f} times as long in {len(parts)} parts")


def _parts(part: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """A component and those inside it."""
    if isinstance(part, dict) and depth < MOST_PARTS:
        yield part
        for inside in part.values():
            for each in inside if isinstance(inside, list) else ():
                yield from _parts(each, depth + 1)


def _growth(part: dict[str, Any]) -> float:
    """By how much, at most, one component makes a text longer."""
    if part.get("type") == "ByteLevel":
        return 2.0
    if part.get("type") == "Precompiled":  # a trie, then the texts that it leads to, each ended by a zero
        table = base64.b64decode(part["precompiled_charsmap"])
        return max(map(len, table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")))
    pattern = part.get("pattern")
    if not isinstance(pattern, dict):
        return 1.0 + len(part.get("prepend", ""))
    longest = max(map(len, pattern.values()), default=0)
    if not 0 < longest <= LONGEST_PATTERN:
        raise ValueError(f"a pattern has {longest} characters")
    return max(1.0, len(part.get("content", "")) / len(pattern.get("String", "x")))


def _size(tokenizer: Tokenizer, place: str) -> int:
    size: int = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0) + 1
    if not 3 <= size <= MOST_IDS:
        raise UserError(f"{place} has ids up to {size - 1}, from 2 to {MOST_IDS - 1} are read: use another tokenizer.")
    return size


@contextmanager
def _library(place: str) -> Iterator[None]:
    """Whatever the library raises is about the file; its panics are no Exceptions."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise _no_tokenizer(place, error) from error
        raise


def _no_tokenizer(place: str, error: BaseException) -> UserError:
    why = reason(error)[:300]
    return UserError(f"{place} is not a tokenizer.json ({why}): give the file of a `tokenizers` tokenizer.")


def _template(document: dict[str, Any]) -> tuple[str, str, str] | None:
    """(bos, eos, mask) of a `[BOS] $A [EOS]` template that also lists a mask; None if it is not one of ours."""
    processor = document.get("post_processor") or {}
    if processor.get("type") != "TemplateProcessing":
        return None
    try:
        ends = [piece["SpecialToken"]["id"] for piece in processor["single"] if "SpecialToken" in piece]
        masks = [name for name in processor["special_tokens"] if name not in ends]
    except (KeyError, TypeError):  # the library has other spellings
        return None
    return (ends[0], ends[1], masks[0]) if len(ends) == 2 and len(masks) == 1 else None
