"""Other people's tokenizers: found, read, and given the special tokens that a diffusion model needs."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tokenizers import Tokenizer, processors

from scdd.core.errors import UserError
from scdd.core.files import TOKENIZER_LIMIT, read_json, read_text
from scdd.core.hub import cached_only, why
from scdd.data.tokenizer import BOS, EOS, MASK, first

_BOS_NAMES = (BOS, "<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[CLS]", "<|endoftext|>")
_EOS_NAMES = (EOS, "</s>", "<eos>", "<|end_of_text|>", "[SEP]", "<|endoftext|>")
_MASK_NAMES = (MASK, "<mask>", "<|mask|>", "<|mdm_mask|>")
_BOUNDARY = "<|endoftext|>"  # what pretrained models have between documents, whatever ends a turn of a chat
# Special tokens that were kept free: a mask may be one of them.
_SPARE = re.compile(r"<\|reserved_special_token_\d+\|>|<unused\d+>|<\|(?:extra|unused|reserved)_?\d+\|>|<extra_id_\d+>")
_CONFIG = "tokenizer_config.json"
_BUNDLED = Path(__file__).resolve().parent.parent / "assets" / "model" / "tokenizer.json"


def found(name: str | Path) -> Path:
    """The file or folder that a name means: "bundled" is the package's; what is nothing here is fetched from the Hub."""
    if str(name) == "bundled" and not Path(name).exists():
        return _BUNDLED
    if Path(name).exists() or str(name).endswith((".json", ".gguf")):
        return Path(name)
    cached = cached_only()
    try:
        from huggingface_hub import snapshot_download

        wanted = ["tokenizer.json", _CONFIG]
        return Path(snapshot_download(str(name), allow_patterns=wanted, local_files_only=cached))
    except Exception as error:
        raise UserError(
            f"tokenizer {name} is neither a file nor a name that the Hub knows ({why(error, cached)}): check it.",
            "tokenizer",
        ) from error


def read(path: Path) -> tuple[str, str, str | None, str | None]:
    """(tokenizer.json, where it is, what begins and what ends a text by its own files)."""
    if path.suffix == ".gguf":
        from scdd.data.gguf import read

        document, ends = read(path)
        return document, str(path), *ends
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        document = read_text(path, TOKENIZER_LIMIT)
    except UserError as error:
        raise UserError(f"{str(error).rpartition(':')[0]}: give the path of a tokenizer.json.") from error
    return document, str(path), *_named(path.parent / _CONFIG)


def complete(tokenizer: Tokenizer, bos: str | None, eos: str | None) -> str:
    """The tokenizer.json with all three, in the template of `TextTokenizer`; see `TextTokenizer.completed`."""
    special = {token["content"] for token in json.loads(tokenizer.to_str())["added_tokens"] if token["special"]}
    if (bos or eos) and _BOUNDARY in special:
        bos = eos = _BOUNDARY
    bos, eos = (name if name and tokenizer.token_to_id(name) is not None else None for name in (bos, eos))
    if bos is None and eos is None:
        bos, eos = (first(tokenizer, names) for names in (_BOS_NAMES, _EOS_NAMES))
    bos, eos = bos or eos or BOS, eos or bos or EOS
    mask = first(tokenizer, _MASK_NAMES) or _spare(tokenizer) or MASK
    tokenizer.add_special_tokens([bos, eos])
    tokenizer.add_special_tokens([mask])  # after the others: a mask that had to be added is the last id
    ids = {name: tokenizer.token_to_id(name) for name in (bos, eos, mask)}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}", special_tokens=sorted(ids.items())
    )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return str(tokenizer.to_str())


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
