"""What goes along with a model that is passed on: its card and, for transformers, its config and code."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import yaml

from scdd.bundle.card import card
from scdd.bundle.folder import CARD, CHAT_TEMPLATE, FOREIGN, NOISE, Bundle, read, write
from scdd.bundle.huggingface import UNKNOWN, Sheet, Specials, check, write_files
from scdd.bundle.upload import check_upload, upload
from scdd.core.errors import UserError
from scdd.data.chat import ChatTemplate
from scdd.data.tokenizer import TextTokenizer
from scdd.lm.loading import longest_row
from scdd.recipe.load import model_recipe, parse


def sheet_of(source: Bundle, name: str, kind: str) -> Sheet:
    """What a bundle's recipe and tokenizer say, for the files that are written beside its weights."""
    if source.tokenizer is None:
        raise UserError(
            f"{source.folder} has no tokenizer.json, so nobody could use it: convert it with its tokenizer."
        )
    tokenizer = TextTokenizer(source.tokenizer, str(source.folder / "tokenizer.json"))
    ends = {role: (getattr(tokenizer, role), getattr(tokenizer, f"{role}_id")) for role in ("bos", "eos", "mask")}
    spec = model_recipe(source.recipe, str(source.folder / "recipe.yaml"))
    known = spec is not None and FOREIGN not in source.extra and NOISE not in source.extra
    try:
        recipe = parse(source.recipe)
    except yaml.YAMLError:  # `model_recipe` has read it
        recipe = {}
    return Sheet(
        identity=source,
        specials=Specials(**ends, pad=tokenizer.padding or ends["eos"]),
        context=longest_row((source.network or {}).get("context"), spec, source.recipe),
        process=asdict(spec.process) if spec is not None and known else {"kind": UNKNOWN},
        sampling=asdict(spec.sampling) if spec is not None else {},
        name=name,
        kind=kind,
        recipe=recipe if isinstance(recipe, dict) else {},
        turn=_end_of_turn(source.extra.get(CHAT_TEMPLATE), tokenizer),
    )


def _end_of_turn(template: str | None, tokenizer: TextTokenizer) -> int | None:
    """The token that ends the assistant's turn, if it is another than the end of text; None without chats."""
    if template is None:
        return None
    try:
        end = ChatTemplate(template, tokenizer).end_of_turn([{"role": "user", "content": "?"}])
    except UserError:  # one that wants more than a question: whoever chats is told
        return None
    return None if end == tokenizer.eos_id else end


def hub_files(source: Bundle, name: str, kind: str, *, transformers: bool = True) -> Callable[[Path], None]:
    """Writes into a folder what a model on the Hub has beside weights, recipe and tokenizer; refuses now what cannot be.

    A README.md that lies in the folder already is what the card is made from.
    """
    if transformers:
        check(source.network, kind)
    sheet = sheet_of(source, name, kind)

    def put(folder: Path) -> None:
        if transformers:
            write_files(folder, sheet)
        path = folder / CARD
        own = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
        path.unlink(missing_ok=True)
        path.write_text(card(sheet, own, transformers), encoding="utf-8")

    return put


def own_card(source: Bundle, model: str | Path) -> Path | None:
    """The card of a checkpoint, or of the run that it is the newest of."""
    cards = (folder / CARD for folder in (source.folder, Path(model)))
    return next((each for each in cards if each.is_file()), None)


def push(
    model: str | Path,
    repo: str,
    *,
    transformers: bool = True,
    weights: str = "bfloat16",
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
) -> str:
    """Upload a model to the Hugging Face Hub as `repo`, "owner/name"; gives its address.

    `transformers` puts config, code and tokenizer settings beside it, so that people without scdd can load it, too.
    """
    check_upload(repo)
    source = read(model)
    put = hub_files(source, repo, weights, transformers=transformers)
    found = own_card(source, model)

    def more(folder: Path) -> None:
        if found is not None:
            (folder / CARD).write_bytes(found.read_bytes())
        put(folder)

    with tempfile.TemporaryDirectory(prefix="scdd-push-") as place:
        folder = write(Path(place) / "model", source, source.weights, kind=weights, more=more)
        return upload(folder, repo, private=private, revision=revision, message=message)
