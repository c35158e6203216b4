"""Texts to measure on: read from files or shards, and cut into the framed rows that a model knows from training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scdd.core.errors import UserError
from scdd.data.address import place
from scdd.data.corpus import read
from scdd.data.pack import Blocks
from scdd.data.shards import INDEX, MemoryTokens, Shards, TokenStream, read_manifest
from scdd.data.tokenizer import TextTokenizer
from scdd.evals.measure.model import EvalModel


@dataclass(frozen=True)
class Rows:
    """Framed sequences, and how many bytes of text they hold between their frames."""

    rows: list[list[int]]
    bytes: int
    name: str = ""
    """What people call the text."""

    def __len__(self) -> int:
        return len(self.rows)


def split_name(text: str) -> tuple[str, str]:
    """(Name, path) of `[NAME=]PATH`. Without a name, the path's last part, and what a prepared folder holds out."""
    name, equals, path = text.partition("=")
    if equals and name and path and not Path(text).exists():
        return name, path
    folder = place(text)
    if not (folder / INDEX).is_file():
        return (text if text.startswith("hf:") else folder.name or text), text
    sources = read_manifest(folder).get("preparation", {}).get("sources", [])
    held = [source["name"] for source in sources if source.get("split") == "valid"]
    return f"{folder.resolve().name} ({', '.join(held) or 'validation'})", text


def open_stream(paths: Sequence[str | Path], tokenizer: TextTokenizer, field: str = "text") -> TokenStream:
    """A folder that `scdd prepare` wrote (its validation split), or text files, JSON lines, folders and hf:NAME
    datasets, tokenised now."""
    if len(paths) == 1 and (place(paths[0]) / INDEX).is_file():
        shards = Shards(paths[0], "valid")
        shards.require(tokenizer)
        return shards
    return MemoryTokens.encoded(read(paths, field=field), tokenizer)


def rows(
    source: TokenStream, tokenizer: TextTokenizer, length: int, limit: int | None = None, whole: bool = False
) -> Rows:
    """[BOS] + up to length − 2 tokens + [EOS], in order; the last row may be shorter unless `whole`."""
    inner = length - 2
    if inner < 1:
        raise UserError(f"A length of {length} leaves no room for text between [BOS] and [EOS]: choose more.")
    count = source.n_tokens // inner if whole else -(-source.n_tokens // inner)
    count = count if limit is None else min(limit, count)
    if count < 1:
        raise UserError(f"The text has {source.n_tokens} tokens, too few for a row of {length}: give more text.")
    stop = min(count * inner, source.n_tokens)
    tokens = source.read(0, stop).tolist()
    bos, eos, starts = tokenizer.bos_id, tokenizer.eos_id, range(0, stop, inner)
    framed = [[bos, *tokens[start : start + inner], eos] for start in starts]
    return Rows(framed, len(tokenizer.decode(tokens).encode()))


def text_rows(
    model: EvalModel,
    paths: Sequence[str | Path] | None = None,
    field: str = "text",
    limit: int | None = None,
    length: int | None = None,
    whole: bool = False,
) -> Rows:
    """Framed rows of the texts `[NAME=]PATH`, or else of the validation data that the model's recipe names."""
    if paths:
        names, places = zip(*(split_name(str(path)) for path in paths), strict=True)
        source, name = open_stream(places, model.lm.tokenizer, field), " + ".join(names)
    else:
        source, name = _validation(model)
    return replace(rows(source, model.lm.tokenizer, length or model.lm.context, limit, whole), name=name)


def _validation(model: EvalModel) -> tuple[TokenStream, str]:
    """The validation data of the model's recipe, and what it is called."""
    from scdd.assemble import training as build
    from scdd.recipe import load as recipe

    if model.recipe is None or "kind" not in (recipe.parse(model.recipe).get("data") or {}):
        raise UserError(f"{model.label} says nothing of its data: name a text (text).", "text")
    spec = recipe.loads(model.recipe)
    if spec.data.kind == "pairs":
        raise UserError(f"{model.label} was trained on pairs, which are no running text: name a text (text).", "text")
    try:
        held = build.corpus(spec, model.lm.tokenizer.to_str()).valid
    except UserError as error:
        raise UserError(
            f"{model.label} was validated on {spec.data.path}, which is not here or not whole: name a text (text).",
            "text",
        ) from error
    if held is None:
        raise UserError(f"The data of {model.label} has no validation split: name a text (text).", "text")
    assert not isinstance(held, Blocks)  # as only pairs are
    return held, f"{Path(spec.data.path).name} (validation)"
