"""The portable checkpoint folder: written under another name, synced, renamed last; read without unpickling."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from glob import escape
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from scdd import __version__
from scdd.core.errors import UserError, reason
from scdd.core.files import CONFIG_LIMIT, HEADER_LIMIT, TOKENIZER_LIMIT
from scdd.core.types import Vocab
from scdd.data.files import sync_entry, sync_tree
from scdd.data.tokenizer import MOST_IDS, refuse_large

if TYPE_CHECKING:
    from scdd.bundle.convert import Told

SCHEMA = 1
BUNDLED = "bundled"
ASSETS = Path(__file__).resolve().parent.parent / "assets"
PACKED = ("int8", "int4")
KINDS = ("float32", "bfloat16", *PACKED)
Stored = tuple[Tensor, Tensor]
"""A matrix in 8 bits as the file has it: codes [R, C] int8, and a scale a row."""
FORMAT = {"format": "pt"}  # in the header of the weights, where transformers asks for it
SCALE, SCALE4 = ":scale8", ":scale4"  # end a scale's name; no attribute of a module can be spelled with a colon
QUALITY = "quality."  # begins the names of a quality head's weights (PRISM), which stand beside the network's
GROUP, MIDDLE = 32, 8  # of 4-bit weights: columns that share a scale, and what is added to a code
FOREIGN = "process"  # where `extra` notes a process that the recipe cannot name
NOISE = "noise"  # where `extra` has the distribution of noise that is not uniform (`processes.noise`)
TEACHER = "teacher"  # where `extra` has the SHA-256 of the weights that taught it
CHAT_TEMPLATE = "chat_template"  # where `extra` has the model's Jinja template
RECIPE, META, WEIGHTS, TOKENIZER = "recipe.yaml", "meta.json", "model.safetensors", "tokenizer.json"
FILES = (RECIPE, META, WEIGHTS, TOKENIZER)
CARD = "README.md"  # a model card: for people and the Hub, never needed to load
CHECKPOINTS = "checkpoints"  # of a run: checkpoints/step-00005000, …
CURE = "take the folder again from where it came, or use an older checkpoint"
_STEP = re.compile(r"step-\d+")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a checkpoint says of itself beside its weights; `recipe` and `tokenizer` are the files' texts."""

    recipe: str
    vocab: Vocab
    tokenizer: str | None = None
    network: Mapping[str, Any] | None = None  # its config as plain data, for a foreign recipe
    extra: Mapping[str, Any] = field(default_factory=dict)  # what the recipe cannot say
    step: int = 0
    tokens: int = 0

    @property
    def vocab_hash(self) -> str:
        """SHA-256 of the ids' meaning: V, the mask's id and the tokenizer, whose formatting does not count."""
        canonical = json.dumps(json.loads(self.tokenizer), sort_keys=True) if self.tokenizer else ""
        return hashlib.sha256(f"{self.vocab.size} {self.vocab.mask_id}\n{canonical}".encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Bundle(Identity):
    """A checkpoint folder that was read. `weights` has the names of the network's `state_dict`."""

    folder: Path
    weights: dict[str, Tensor]
    matrices: Mapping[str, Stored] = field(default_factory=dict)
    """Weights that were left in 8 bits as the file has them, if `read` was asked to; they are not among `weights` then."""
    hub: bool = False  # whether it was downloaded: code that it names is then not run
    kind: str = "float32"  # how the file stores the weights, which here are unpacked
    versions: Mapping[str, str] = field(default_factory=dict)

    def widened(self) -> Bundle:
        """With all weights in float32, and none in 8 bits."""
        wide = {name: _widened(*stored) for name, stored in self.matrices.items()}
        return replace(self, weights={**self.weights, **wide}, matrices={}) if wide else self

    @property
    def network_weights(self) -> dict[str, Tensor]:
        """The weights without a quality head's."""
        return {name: each for name, each in self.weights.items() if not name.startswith(QUALITY)}

    def check(self, vocab: Vocab, tokenizer: str | None = None) -> None:
        """Refuse to go on with another vocabulary than this model was trained with."""
        if vocab != self.vocab:
            raise UserError(
                f"{self.folder} was trained with {self.vocab.size} ids and mask {self.vocab.mask_id}, not with "
                f"{vocab.size} and {vocab.mask_id}: use the tokenizer that lies beside the model."
            )
        if tokenizer is not None and replace(self, tokenizer=tokenizer).vocab_hash != self.vocab_hash:
            raise UserError(
                f"{self.folder} was trained with another tokenizer of the same size: use its own {TOKENIZER}."
            )


def write(
    folder: str | Path,
    identity: Identity,
    weights: Mapping[str, Tensor],
    *,
    kind: str = "float32",
    more: Callable[[Path], None] | None = None,
) -> Path:
    """Write a bundle; an older one of that name stays loadable until the new one is complete.

    `kind` is how the weights are stored: as they are, or rounded to "bfloat16", "int8" or "int4" (`packed.pack`). `more` is
    called with the temporary folder before anything is renamed, to put further files (`resume/`) under the same
    guarantee.
    """
    from scdd.bundle.packed import apart, pack  # only who writes needs it

    stored = pack(weights, kind)
    with staged(folder) as temporary:
        save_file(apart(stored), temporary / WEIGHTS, metadata=FORMAT)
        describe(temporary, identity, sha256_of(temporary / WEIGHTS), kind)
        if more is not None:
            more(temporary)
    return Path(folder)


def describe(folder: Path, identity: Identity, weights_sha256: str, kind: str = "float32") -> None:
    """Write what a bundle says of itself beside its weights."""
    (folder / RECIPE).write_text(identity.recipe, encoding="utf-8")
    if identity.tokenizer is not None:
        (folder / TOKENIZER).write_text(identity.tokenizer, encoding="utf-8")
    meta = {
        "schema": SCHEMA,
        "versions": {"scdd": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "vocab": {**asdict(identity.vocab), "hash": identity.vocab_hash},
        "step": identity.step,
        "tokens": identity.tokens,
        "weights": kind,
        "weights_sha256": weights_sha256,
        "network": identity.network,
        "extra": identity.extra,
    }
    (folder / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


@contextmanager
def staged(folder: str | Path) -> Iterator[Path]:
    """A temporary folder that takes the name `folder` when the block ends well.

    Two renames cannot be one, so for an instant only `.NAME.previous` exists: `locate` and the next `staged` look
    there. Killed at any moment, a complete bundle is found.
    """
    target = Path(os.path.abspath(folder))
    # Nobody can foresee this name: in a folder that others write to, nothing may lie in wait there.
    temporary, previous = _sibling(target, f"{token_hex(8)}.writing"), _sibling(target, "previous")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() and previous.exists():
        previous.rename(target)
    for left in target.parent.glob(f".{escape(target.name)}.{'[0-9a-f]' * 16}.writing"):  # of a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        sync_tree(temporary)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # A full disk, as safetensors tells it, becomes what everything else raises then.
        if isinstance(error, safetensors.SafetensorError) and (told := _OS_ERROR.search(str(error))):
            raise OSError(int(told[1]), os.strerror(int(told[1])), str(target)) from error
        raise
    if target.exists():
        shutil.rmtree(previous, ignore_errors=True)
        target.rename(previous)
    temporary.rename(target)
    sync_entry(target.parent)
    shutil.rmtree(previous, ignore_errors=True)


def checkpoints(run: str | Path, complete: bool = True) -> list[Path]:
    """The complete checkpoints of a run, oldest first; without `complete` every folder with such a name."""
    folders = [each for each in Path(run, CHECKPOINTS).glob("step-*") if _STEP.fullmatch(each.name)]
    found = [each for each in folders if ((each / META).is_file() if complete else each.is_dir())]
    return sorted(found, key=lambda each: int(each.name.removeprefix("step-")))


def newest_checkpoint(run: str | Path) -> Path | None:
    """The newest complete checkpoint of a run; None where there is none."""
    return next(reversed(checkpoints(run)), None)


def locate(folder: str | Path) -> Path | None:
    """Where the newest complete bundle of that name lies; None when there is none. A run's is its last checkpoint.

    "bundled" is the model that comes with the package, unless there is a folder of that name.
    """
    target = Path(os.path.abspath(folder))
    if str(folder) == BUNDLED and not target.exists():
        target = ASSETS / "model"
        if not (target / WEIGHTS).is_file():
            raise UserError(
                "This build of scdd comes without its model: name a checkpoint, or make one with `scdd demo --run DIR`."
            )
    if not (target / META).exists() and (newest := newest_checkpoint(target)) is not None:
        return newest
    return next((each for each in (target, _sibling(target, "previous")) if each.is_dir()), None)


def found(source: str | Path) -> Path:
    """Where a model lies, as a folder or a file, here or downloaded from the Hub."""
    return _here(source) or _downloaded(str(source))


def _here(source: str | Path) -> Path | None:
    return Path(source) if Path(source).is_file() else locate(source)


def read(
    source: str | Path,
    *,
    device: str | torch.device = "cpu",
    verify: bool = True,
    told: Told | None = None,
    narrow: bool = False,
) -> Bundle:
    """A bundle from a folder, or from the Hugging Face Hub ("owner/name", optionally "@revision").

    `verify` compares the weights with their recorded checksum. Packed weights come back as float32, but for a network's
    matrices in 8 bits where `narrow` leaves them so (`Bundle.matrices`). What is no bundle of ours is read as one
    (`convert.foreign`), with `told` for what its files do not say.
    """
    here = _here(source)
    folder = here or _downloaded(str(source))
    if not (folder / META).is_file():
        from scdd.bundle.convert import foreign  # the package's own model never needs it

        made = foreign(folder, told, hub=here is None)
        check_finite(made.weights, made.folder)
        return replace(made, weights={name: tensor.to(device) for name, tensor in made.weights.items()})
    if told is not None and (told.process or told.tokenizer):
        raise UserError(
            f"{folder} is a checkpoint of ours and says itself what it is: leave process and tokenizer out."
        )
    facts = meta(folder)
    kind = facts.get("weights", "float32")  # bundles older than the question store them as they are
    if kind not in KINDS:
        raise UserError(
            f'{folder} stores its weights as "{kind}" and this version of scdd reads {", ".join(KINDS)}: upgrade scdd.'
        )
    if verify and sha256_of(_required(folder, WEIGHTS)) != facts.get("weights_sha256"):
        raise UserError(f"{folder / WEIGHTS} is damaged (its checksum differs from {META}'s): {CURE}.")
    matrices: dict[str, Stored] = {}
    weights = _weights(_required(folder, WEIGHTS), kind, str(device), matrices if narrow else None)
    if (facts["network"] or {}).get("kind", "dit") not in ("import", "given"):  # theirs may hold infinities on purpose
        check_finite({**weights, **{name: scale for name, (_, scale) in matrices.items()}}, folder / WEIGHTS)
    tokenizer = _text(folder, TOKENIZER, TOKENIZER_LIMIT) if (folder / TOKENIZER).exists() else None
    try:
        bundle = Bundle(
            folder=folder,
            recipe=_text(folder, RECIPE),
            vocab=Vocab(facts["vocab"]["size"], facts["vocab"]["mask_id"]),
            tokenizer=tokenizer,
            network=facts["network"],
            extra=facts["extra"],
            step=facts["step"],
            tokens=facts["tokens"],
            weights=weights,
            matrices=matrices,
            hub=here is None,
            kind=kind,
            versions=facts["versions"],
        )
        refuse_large(tokenizer or "")
        same = bundle.vocab_hash == facts["vocab"]["hash"]
    except (ValueError, RecursionError) as error:
        raise UserError(f"{folder / TOKENIZER} is damaged ({error}): {CURE}.") from error
    if not same:
        raise UserError(f"{folder / TOKENIZER} is missing or not the one the model was trained with: {CURE}.")
    return bundle


def _weights(file: Path, kind: str, device: str, matrices: dict[str, Stored] | None) -> dict[str, Tensor]:
    try:
        with open(file, "rb") as handle:  # a tensor takes far more memory than its line in the header
            if int.from_bytes(handle.read(8), "little") > HEADER_LIMIT:
                raise ValueError("its header is too long")
        weights = load_file(file, device=device)
        return weights if kind == "float32" else unpack(weights, matrices)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, safetensors.SafetensorError) as error:
        raise UserError(f"{file} is damaged ({reason(error)}): {CURE}.") from error


def check_finite(weights: Mapping[str, Tensor], place: Path) -> None:
    """Refuse weights that are no numbers: whatever is computed from them is none either, and texts come out empty."""
    for name, tensor in weights.items():
        if tensor.is_complex() or (tensor.is_floating_point() and tensor.numel()):
            wide = tensor.float() if tensor.itemsize == 1 else tensor  # 8-bit numbers have no order
            if tensor.is_complex() or not bool(torch.stack(wide.aminmax()).isfinite().all()):
                raise UserError(f"{place} holds numbers that are not finite ({name}): {CURE}.")


def unpack(tensors: Mapping[str, Tensor], matrices: dict[str, Stored] | None = None) -> dict[str, Tensor]:
    """What `pack` was given, rounded, in float32 and under its own names; ValueError where a part is missing.

    A network's matrices in 8 bits are put into `matrices` instead, if there is one.
    """
    weights: dict[str, Tensor] = {}
    for name, stored in tensors.items():
        own, colon, kind = name.rpartition(":")
        if stored.dtype == torch.int8:
            scale = tensors.get(name + SCALE)
            if stored.dim() != 2 or scale is None or scale.shape != stored.shape[:1]:
                raise ValueError(f"{name} has no scale for each of its rows")
            if matrices is None or name.startswith(QUALITY):
                weights[name] = _widened(stored, scale)
            else:
                matrices[name] = stored, scale
        elif stored.dtype == torch.uint8 and name + SCALE4 in tensors:
            weights[name] = _of_four_bits(name, stored, tensors[name + SCALE4])
        elif colon + kind not in (SCALE, SCALE4):
            weights[name] = stored.float() if stored.is_floating_point() else stored
        elif own not in tensors:
            raise ValueError(f"{name} belongs to no weight")
    return weights


def _widened(codes: Tensor, scale: Tensor) -> Tensor:
    return codes.float().mul_(scale[:, None])


def _of_four_bits(name: str, stored: Tensor, scale: Tensor) -> Tensor:
    """Float32 [R, C] of codes [R, C/2] and the scales of their groups."""
    groups = (stored.shape[0], 2 * stored.shape[1] // GROUP) if stored.dim() == 2 else ()
    if not groups or 2 * stored.shape[1] % GROUP or scale.shape != groups or not scale.is_floating_point():
        raise ValueError(f"{name} has no scale for each of its groups")
    codes = torch.stack((stored & 15, stored >> 4), dim=-1).view(*groups, GROUP)
    return codes.float().sub_(MIDDLE).mul_(scale.float()[..., None]).view(stored.shape[0], -1)


def meta(folder: Path) -> dict[str, Any]:
    """What a bundle says of itself, read and checked."""
    try:
        found = json.loads(_text(folder, META))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{folder / META} is damaged ({error}): {CURE}.") from error
    if not isinstance(found, dict) or not _whole(found.get("schema")):
        raise UserError(f"{folder / META} is damaged (it names no schema): {CURE}.")
    if found["schema"] > SCHEMA:
        raise UserError(
            f"{folder} has format {found['schema']} and this version of scdd reads up to {SCHEMA}: upgrade scdd."
        )
    if (wrong := _wrong(found)) is not None:
        raise UserError(f"{folder / META} is damaged (no '{wrong}', or a wrong one): {CURE}.")
    return found


def _wrong(facts: Mapping[str, Any]) -> str | None:
    """The first entry that is not as `write` writes it."""
    vocab = facts.get("vocab")
    if not isinstance(vocab, dict) or not isinstance(vocab.get("hash"), str):
        return "vocab"
    whole: dict[str, Any] = {"size": vocab.get("size"), "mask_id": vocab.get("mask_id"), "step": facts.get("step")}
    for name, value in {**whole, "tokens": facts.get("tokens")}.items():
        if not _whole(value) or (name == "size" and value > MOST_IDS):
            return name
    if "network" not in facts or not isinstance(facts["network"], dict | None):
        return "network"
    if (
        wrong := next((name for name in ("extra", "versions") if not isinstance(facts.get(name), dict)), None)
    ) is not None:
        return wrong
    return None if isinstance(facts["extra"].get(CHAT_TEMPLATE, ""), str) else f"extra.{CHAT_TEMPLATE}"


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _required(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise UserError(f"{folder} has no {name}, so it is no complete checkpoint: {CURE}.")
    return folder / name


def _text(folder: Path, name: str, limit: int = CONFIG_LIMIT) -> str:
    try:
        with open(_required(folder, name), "rb") as handle:
            content = handle.read(limit + 1)
        if len(content) > limit:
            raise ValueError(f"it is larger than {limit >> 20} MiB")
        return content.decode("utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / name} is damaged ({error}): {CURE}.") from error


def _downloaded(source: str) -> Path:
    from scdd.bundle.hub import download

    return download(source)


def _sibling(target: Path, role: str) -> Path:
    return target.parent / f".{target.name}.{role}"  # / has no name, and is asked for nevertheless


def sha256_of(file: Path) -> str:
    """Of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(file, "rb") as handle:
        while chunk := handle.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
