"""Generative perplexity: how likely another language model finds the texts, in that model's own tokens.

The reference LM reads each text without a [BOS] and its first token is given (the convention of the paper's baselines); our
own autoregressive models read behind a [BOS] and are asked for every token. Texts longer than its context are read in
windows, half of each being context. Padding is on the right, where a causal model does not look, so the number does not
depend on the batch.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from scdd.bundle import folder as bundle
from scdd.core.errors import UserError, missing_extra
from scdd.core.hub import cached_only, why
from scdd.evals.measure import stats
from scdd.evals.measure.likelihood import batches, next_token_nats, padded
from scdd.evals.measure.model import EvalModel, open_model
from scdd.evals.measure.progress import Watch, unwatched
from scdd.evals.measure.store import MeasureContext, fingerprint, shared
from scdd.lm.run import Window, windows

_TF32 = threading.Lock()
UNREAD = (".md", ".png", ".jpg", ".log", ".pt", ".pth", ".h5", ".msgpack", ".ot", ".onnx", ".tflite")
PREFERRED = ("model.safetensors", "model.safetensors.index.json")  # to weights in .bin files
LONGEST = 2048  # for models that do not say how much they can read
CAUSAL = "a causal language model's hub name, folder or .gguf file, or one of our own autoregressive checkpoints"


class TextNats(NamedTuple):
    """A text's surprise: nats over so many tokens."""

    nats: float
    tokens: int


class ReferenceLM(Protocol):
    """Scores texts. `identity` goes into the hash of a measurement."""

    name: str
    identity: dict[str, Any]

    def score(self, texts: Sequence[str], watch: Watch = unwatched) -> list[TextNats]:
        """One for each text; (0, 0) for a text of fewer than two tokens."""
        ...


def open_reference_lm(name: str, device: torch.device | str = "cpu", batch_size: int = 8) -> ReferenceLM:
    """A hub name, a folder, a .gguf file, or a checkpoint of our own that is autoregressive."""
    folder = bundle.locate(name)
    if folder is not None and (folder / "meta.json").is_file():
        return OwnReferenceLM(open_model(name, device=device))
    return HubReferenceLM(name, device, batch_size)


class OwnReferenceLM:
    """One of our own autoregressive checkpoints."""

    def __init__(self, model: EvalModel) -> None:
        if not model.engine.autoregressive:
            raise UserError(
                f"{model.label} is a diffusion model, and a reference LM must be autoregressive: give {CAUSAL}."
            )
        self.name, self.model = model.label, model
        self.identity: dict[str, Any] = {"judge": model.identity}

    def score(self, texts: Sequence[str], watch: Watch = unwatched) -> list[TextNats]:
        """Exact nats behind a [BOS], window by window."""
        ids = [self.model.lm.tokenizer.encode(text) if text else [] for text in texts]
        room, device = self.model.engine.room, self.model.lm.network.head.weight.device
        due = [(i, w) for i, row in enumerate(ids) if row for w in windows(len(row), room)]
        due.sort(key=lambda item: item[1].stop - item[1].start)  # little padding
        nats, waiting = [0.0] * len(texts), Counter(i for i, _ in due)
        watch(len(texts) - len(waiting))
        for part in batches([w.stop - w.start + 1 for _, w in due], device):
            for (i, _), value in zip(due[part], self._window_nats(ids, due[part]), strict=True):
                nats[i] += value
                waiting[i] -= 1
                watch(int(waiting[i] == 0))
        return [TextNats(value, len(row)) for value, row in zip(nats, ids, strict=True)]

    @torch.no_grad()
    def _window_nats(self, ids: list[list[int]], batch: Sequence[tuple[int, Window]]) -> list[float]:
        """The nats of each window's fresh tokens."""
        network, rows = self.model.lm.network, [self.model.engine.framed(ids[i][w.start : w.stop]) for i, w in batch]
        x, _ = padded(rows, network.head.weight.device)
        losses = next_token_nats(network, x).cpu()
        return [float(losses[r, w.fresh - w.start : w.stop - w.start].sum()) for r, (_, w) in enumerate(batch)]


class HubReferenceLM:
    """Any causal language model that transformers loads; a .gguf file too (then gguf and accelerate are needed)."""

    def __init__(self, name: str, device: torch.device | str = "cpu", batch_size: int = 8) -> None:
        self.name, self.device, self.batch_size = Path(name).name, torch.device(device), batch_size
        self.model, self.tokenizer = _loaded(name, self.device)
        self.identity: dict[str, Any] = {"judge": _identity(name)}
        longest = getattr(self.model.config, "max_position_embeddings", None)
        self.context = int(longest) if isinstance(longest, int) and longest > 1 else LONGEST

    def score(self, texts: Sequence[str], watch: Watch = unwatched) -> list[TextNats]:
        """Nats of every token but the first."""
        ids = self._tokens(texts)
        due = [(i, w) for i, row in enumerate(ids) if len(row) > 1 for w in windows(len(row), self.context)]
        due.sort(key=lambda item: item[1].stop - item[1].start)  # little padding
        nats, waiting = [0.0] * len(texts), Counter(i for i, _ in due)
        watch(len(texts) - len(waiting))
        for start in range(0, len(due), self.batch_size):
            batch = due[start : start + self.batch_size]
            for (i, _), value in zip(batch, self._window_nats(ids, batch), strict=True):
                nats[i] += value
                waiting[i] -= 1
                watch(int(waiting[i] == 0))
        return [TextNats(value, max(len(row) - 1, 0)) for value, row in zip(nats, ids, strict=True)]

    @torch.no_grad()
    def _window_nats(self, ids: list[list[int]], batch: Sequence[tuple[int, Window]]) -> list[float]:
        rows = [ids[i][w.start : w.stop] for i, w in batch]
        tokens, real = self._padded(rows)
        with _tensor_cores(self.device):
            logits = self.model(input_ids=tokens, attention_mask=real).logits[:, :-1].float()
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        found = losses.view(len(rows), -1).double().cpu()  # one wait for the GPU a batch
        begins = [max(w.fresh - w.start, 1) - 1 for _, w in batch]
        return [float(found[r, begin : len(rows[r]) - 1].sum()) for r, begin in enumerate(begins)]

    @torch.no_grad()
    def features(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The last hidden state at each text's last token, for MAUVE; texts are cut to the context."""
        states = []
        for ids in self._tokens(texts):
            tokens, real = self._padded([(ids or [0])[: self.context]])
            out = self.model(input_ids=tokens, attention_mask=real, output_hidden_states=True)
            states.append(out.hidden_states[-1][0, -1].float().cpu().numpy())
        return np.stack(states)

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        found = iter(
            self.tokenizer([text for text in texts if text], add_special_tokens=False)["input_ids"]
            if any(texts)
            else ()
        )
        return [list(next(found)) if text else [] for text in texts]

    def _padded(self, rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        tensors = [torch.tensor(row, device=self.device) for row in rows]
        return pad_sequence(tensors, True), pad_sequence([torch.ones_like(row) for row in tensors], True)


@contextlib.contextmanager
def _tensor_cores(device: torch.device) -> Iterator[None]:
    """Products of float32 on a GPU's tensor cores, their factors rounded to ten bits."""
    settings = torch.backends.cuda.matmul
    with _TF32:  # the whole process's
        before, settings.allow_tf32 = settings.allow_tf32, settings.allow_tf32 or device.type == "cuda"
        try:
            yield
        finally:
            settings.allow_tf32 = before


def _loaded(name: str, device: torch.device) -> tuple[Any, Any]:
    try:
        # by name: its own types come and go with its versions
        transformers: Any = import_module("transformers")
    except ImportError as error:
        raise UserError(missing_extra(f"The reference LM {name} needs transformers", "eval")) from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        # the bars of GGUF's conversion ask nobody
        with _source(name) as where, contextlib.redirect_stderr(io.StringIO()):
            tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
            model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    except UserError:
        raise
    except Exception as error:  # a wrong name, no connection, a damaged file: the cure is the same
        cached = not Path(name).exists() and cached_only()
        raise UserError(f"The reference LM {name} cannot be loaded ({why(error, cached)}): give {CAUSAL}.") from error
    return model.to(device).eval(), tokenizer


@contextlib.contextmanager
def _source(name: str) -> Iterator[dict[str, Any]]:
    """What transformers is to be told. A .gguf file is shown to it alone: a tokenizer.json that happens to lie beside it would be
    taken for the file's own, and every text misread without a word."""
    path = Path(name)
    if path.suffix != ".gguf":
        yield {"pretrained_model_name_or_path": name, "local_files_only": path.is_dir() or cached_only()}
        return
    if not path.is_file():
        raise UserError(f"The reference LM {name} does not exist: give the path of a .gguf file.")
    with tempfile.TemporaryDirectory() as alone:
        try:
            (Path(alone) / path.name).symlink_to(path.resolve())
        except OSError:  # where only administrators may link
            shutil.copyfile(path, Path(alone) / path.name)
        yield {"pretrained_model_name_or_path": alone, "gguf_file": path.name}


def _identity(name: str) -> str | dict[str, str]:
    """What a local model's files hold, wherever they lie and whatever they are called; of the hub's the name."""
    path = Path(name)
    if path.is_file():
        return {"weights": _checksum(path)}
    if not path.is_dir():
        return name
    files = sorted(file for file in path.iterdir() if _counts(file))
    return {"weights": fingerprint([[ascii(file.name), _checksum(file)] for file in files])}


def _counts(file: Path) -> bool:
    """Whether it may decide what transformers makes of a folder: weights it can read, configurations, tokenizers."""
    if not file.is_file() or file.name.startswith(".") or file.suffix in UNREAD:
        return False
    return file.suffix != ".bin" or not any((file.parent / better).is_file() for better in PREFERRED)


def _checksum(file: Path) -> str:
    """SHA-256, read once a process as long as the file stays as it is."""
    found = file.stat()
    return _checksum_of(file.resolve(), found.st_size, found.st_mtime_ns)


@cache
def _checksum_of(file: Path, size: int, changed: int) -> str:
    return bundle.sha256_of(file)


def scored(context: MeasureContext, reference: ReferenceLM, texts: Sequence[str]) -> list[TextNats]:
    """Scores of the texts, each rank scoring its share."""
    return shared(texts, lambda own, _: reference.score(own, context.watch), context.world)


def columns(scores: Sequence[TextNats]) -> tuple[list[float], list[int]]:
    """(Nats, tokens) of each text."""
    return [score.nats for score in scores], [score.tokens for score in scores]


def short_ppl(scores: Sequence[TextNats], seed: int = 0) -> dict[str, Any]:
    """Perplexity over all texts with error and interval."""
    return stats.perplexity(*columns(scores), seed)


def gen_ppl(scores: Sequence[TextNats], seed: int = 0) -> dict[str, Any]:
    """`short_ppl`, and each text's own numbers."""
    nats, tokens = columns(scores)
    return {**short_ppl(scores, seed), "nats": nats, "tokens": tokens}
