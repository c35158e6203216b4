"""Text to ids and back, with the three special tokens a diffusion model needs: [BOS], [EOS] and [MASK].

Special tokens never come out of `encode`: a text that says "[MASK]" is spelt in ordinary tokens. The mask is a state of the
process, not a word, so clean data must not hold it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from scdd.core.errors import UserError, reason
from scdd.core.files import TOKENIZER_LIMIT, read_json, read_text
from scdd.data.files import write_atomically

if TYPE_CHECKING:
    from scdd.core.types import Vocab

BOS, EOS, MASK = "[BOS]", "[EOS]", "[MASK]"
_BOS_NAMES = (BOS, "<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[CLS]", "<|endoftext|>")
_EOS_NAMES = (EOS, "</s>", "<eos>", "<|end_of_text|>", "[SEP]", "<|endoftext|>")
_MASK_NAMES = (MASK, "<mask>", "<|mask|>", "<|mdm_mask|>")
_BOUNDARY = "<|endoftext|>"  # what pretrained models have between documents, whatever ends a turn of a chat
# Special tokens that were kept free: a mask may be one of them.
_SPARE = re.compile(r"<\|reserved_special_token_\d+\|>|<unused\d+>|<\|(?:extra|unused|reserved)_?\d+\|>|<extra_id_\d+>")
_PAD_NAMES = ("[PAD]", "<pad>", "<|pad|>", "<|padding|>")
_CONFIG = "tokenizer_config.json"
_BUNDLED = Path(__file__).resolve().parent.parent / "assets" / "model" / "tokenizer.json"
SMALLEST, LARGEST = 256 + 3, 1 << 20  # every byte, [BOS], [EOS], [MASK]; the library ends the process beyond its memory

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
        self._tokenizer = _parsed(document, place)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True
        self._document: dict[str, Any] = json.loads(document)
        if (roles := _template(self._document)) is None:
            raise UserError(f"{place} does not say which tokens are [BOS], [EOS] and [MASK]: load it with from_file.")
        self.bos, self.eos, self.mask = roles
        self.bos_id, self.eos_id, self.mask_id = (self._id(name) for name in (self.bos, self.eos, self.mask))
        self.size: int = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        if self.mask in _PAD_NAMES or self.mask_id in (self.bos_id, self.eos_id):
            raise UserError(f"{place} uses {self.mask} as its mask: the mask must be a token of its own, not padding.")

    # -- making one ---------------------------------------------------------------------------------------------

    @classmethod
    def from_file(cls, path: str | Path) -> TextTokenizer:
        """Any tokenizer.json (or a folder with one, or a .gguf file), completed as `completed` says.

        A tokenizer_config.json beside it says which tokens begin and end a text.
        """
        path = Path(path)
        if path.suffix == ".gguf":
            from scdd.data.gguf import read

            document, ends = read(path)
            return cls.completed(document, str(path), *ends)
        path = path / "tokenizer.json" if path.is_dir() else path
        try:
            document = read_text(path, TOKENIZER_LIMIT)
        except UserError as error:
            raise UserError(f"{str(error).rpartition(':')[0]}: give the path of a tokenizer.json.") from error
        return cls.completed(document, str(path), *_named(path.parent / _CONFIG))

    @classmethod
    def load(cls, name: str | Path) -> TextTokenizer:
        """A tokenizer.json, a folder that holds one, a .gguf file, a name on the Hugging Face hub, or "bundled", the package's."""
        if str(name) == "bundled" and not Path(name).exists():
            return cls.from_file(_BUNDLED)
        if Path(name).exists() or str(name).endswith((".json", ".gguf")):
            return cls.from_file(name)
        try:
            from huggingface_hub import snapshot_download

            folder = snapshot_download(str(name), allow_patterns=["tokenizer.json", _CONFIG])
        except Exception as error:
            raise UserError(
                f"tokenizer {name} is neither a file nor a name that the hub knows ({reason(error)}): check it.",
                "tokenizer",
            ) from error
        return cls.from_file(folder)

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
        tokenizer = _parsed(document, place)
        if _template(json.loads(document)) is not None:
            return cls(document, place)
        special = {token["content"] for token in json.loads(tokenizer.to_str())["added_tokens"] if token["special"]}
        if (bos or eos) and _BOUNDARY in special:
            bos = eos = _BOUNDARY
        bos, eos = (name if name and tokenizer.token_to_id(name) is not None else None for name in (bos, eos))
        if bos is None and eos is None:
            bos, eos = (_first(tokenizer, names) for names in (_BOS_NAMES, _EOS_NAMES))
        bos, eos = bos or eos or BOS, eos or bos or EOS
        size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        mask = _first(tokenizer, _MASK_NAMES) or _spare(tokenizer) or MASK
        tokenizer.add_special_tokens([bos, eos])
        tokenizer.add_special_tokens([mask])  # after the others: a mask that had to be added is the last id
        ids = {name: tokenizer.token_to_id(name) for name in (bos, eos, mask)}
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A {eos}", special_tokens=sorted(ids.items())
        )
        tokenizer.no_padding()
        tokenizer.no_truncation()
        made = cls(tokenizer.to_str(), place)
        made.added = made.size - size
        return made

    # -- using it -----------------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Ids of one text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; special tokens are neither added nor recognised."""
        if not self._cuts_at_newlines:
            return [e.ids for e in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        pieces = [_PARAGRAPH.split(text) for text in texts]
        flat = [piece for parts in pieces for piece in parts]
        encoded = iter(self._tokenizer.encode_batch_fast(flat, add_special_tokens=False))
        return [[i for _ in parts for i in next(encoded).ids] for parts in pieces]

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of any ids: those out of range are dropped, broken UTF-8 shows as U+FFFD."""
        known = [i for i in map(int, ids) if 0 <= i < self.size]
        return str(self._tokenizer.decode(known, skip_special_tokens=skip_special))

    def token(self, i: int) -> str:
        """What one id reads as, special tokens by their names."""
        return self.decode([i], skip_special=False)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Names of all special tokens, those of a model's chats among them, with their ids."""
        added = [token for token in self._document.get("added_tokens", []) if token.get("special")]
        return {token["content"]: int(token["id"]) for token in added if token["content"]}

    @property
    def padding(self) -> tuple[str, int] | None:
        """Name and id of a token for padding, where there is one; nothing here needs it."""
        name = _first(self._tokenizer, _PAD_NAMES)
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


def _parsed(document: str, place: str) -> Tokenizer:
    try:
        return Tokenizer.from_str(document)
    except Exception as error:  # the library raises bare Exception
        raise UserError(
            f"{place} is not a tokenizer.json ({error}): give the file of a `tokenizers` tokenizer."
        ) from error


def _first(tokenizer: Tokenizer, names: Sequence[str]) -> str | None:
    return next((name for name in names if tokenizer.token_to_id(name) is not None), None)


def _spare(tokenizer: Tokenizer) -> str | None:
    """The special token of the lowest id that its makers kept free; None where there is none."""
    free = [(i, name) for name, i in tokenizer.get_vocab(with_added_tokens=True).items() if _SPARE.fullmatch(name)]
    return min(free)[1] if free else None


def _named(config: Path) -> tuple[str | None, str | None]:
    """(bos, eos) of a tokenizer_config.json, which writes a token as its name or as an object with its content."""
    found = read_json(config) if config.is_file() else {}
    names = [found.get(role) for role in ("bos_token", "eos_token")]
    bos, eos = (name.get("content") if isinstance(name, dict) else name for name in names)
    return bos if isinstance(bos, str) else None, eos if isinstance(eos, str) else None


def _template(document: dict[str, Any]) -> tuple[str, str, str] | None:
    """(bos, eos, mask) of a `[BOS] $A [EOS]` template that also lists a mask; None if it is not one of ours."""
    processor = document.get("post_processor") or {}
    if processor.get("type") != "TemplateProcessing":
        return None
    ends = [piece["SpecialToken"]["id"] for piece in processor["single"] if "SpecialToken" in piece]
    masks = [name for name in processor["special_tokens"] if name not in ends]
    return (ends[0], ends[1], masks[0]) if len(ends) == 2 and len(masks) == 1 else None
