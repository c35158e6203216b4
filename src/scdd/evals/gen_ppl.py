"""Generative perplexity: what another language model thinks of the texts, in that model's own tokens.

The judge reads each text without a [BOS] and its first token is given (the convention of the paper's baselines); our own
autoregressive models read behind a [BOS] and are asked for every token. Texts longer than the judge's context are read
in windows, half of each being context. Padding is on the right, where a causal model does not look, so the number does
not depend on the batch.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scdd.bundle import folder as bundle
from scdd.core.errors import UserError
from scdd.evals import stats
from scdd.evals.likelihood import Watch, likelihood
from scdd.evals.subject import EvalModel, open_model
from scdd.lm.run import Window, windows

LONGEST = 2048  # for judges that do not say how much they can read


class Scored(NamedTuple):
    """A text's surprise: nats over so many tokens."""

    nats: float
    tokens: int


class Judge(Protocol):
    """Scores texts. `identity` goes into the hash of a cell."""

    name: str
    identity: dict[str, Any]

    def score(self, texts: Sequence[str], watch: Watch | None = None) -> list[Scored]:
        """One for each text; (0, 0) for a text of fewer than two tokens."""
        ...


def open_judge(name: str, device: torch.device | str = "cpu", batch_size: int = 8) -> Judge:
    """A hub name, a folder, a .gguf file, or a checkpoint of our own that is autoregressive."""
    found = bundle.locate(name)
    if found is not None and (found / "meta.json").is_file():
        return OwnJudge(open_model(name, device=device), batch_size)
    return HubJudge(name, device, batch_size)


class OwnJudge:
    """One of our own autoregressive checkpoints."""

    def __init__(self, subject: EvalModel, batch_size: int = 8) -> None:
        if subject.process is not None:
            raise UserError(
                f"The judge {subject.label} is a diffusion model: a judge must be autoregressive."
            )
        self.name = subject.label
        self.identity: dict[str, Any] = {"judge": subject.identity}
        self.lm, self.batch_size = subject.lm, batch_size

    def score(self, texts: Sequence[str], watch: Watch | None = None) -> list[Scored]:
        """Exact nats behind a [BOS], window by window."""
        engine = self.lm.engine
        found = []
        for text in texts:
            tokens = engine.tokenizer.encode(text) if text else []
            nats = 0.0
            for window in windows(len(tokens), engine.room):
                row = engine.framed(tokens[window.start : window.stop])
                nats += self._nats(row) - self._nats(row[: 1 + window.fresh - window.start])
            found.append(Scored(nats, len(tokens)))
            if watch is not None:
                watch(1)
        return found

    def _nats(self, row: list[int]) -> float:
        if len(row) < 2:
            return 0.0
        return likelihood(self.lm.network, None, [row], device=self.lm.device)[0].nats[0]


class HubJudge:
    """Any causal language model that transformers loads; a .gguf file too (then gguf and accelerate are needed)."""

    def __init__(self, name: str, device: torch.device | str = "cpu", batch_size: int = 8) -> None:
        self.name, self.device, self.batch_size = _short(name), torch.device(device), batch_size
        self.model, self.tokenizer = _loaded(name, self.device)
        self.identity: dict[str, Any] = {"judge": _identity(name)}
        said = getattr(self.model.config, "max_position_embeddings", None)
        self.context = int(said) if isinstance(said, int) and said > 1 else LONGEST

    def score(self, texts: Sequence[str], watch: Watch | None = None) -> list[Scored]:
        """Nats of every token but the first."""
        ids = [self.tokenizer(text, add_special_tokens=False)["input_ids"] if text else [] for text in texts]
        due = [(i, w) for i, row in enumerate(ids) if len(row) > 1 for w in windows(len(row), self.context)]
        due.sort(key=lambda item: item[1].stop - item[1].start)  # little padding
        nats, waiting = [0.0] * len(texts), [0] * len(texts)
        for i, _ in due:
            waiting[i] += 1
        if watch is not None:
            watch(waiting.count(0))
        for start in range(0, len(due), self.batch_size):
            some = due[start : start + self.batch_size]
            for (i, _), value in zip(some, self._window_nats(ids, some), strict=True):
                nats[i] += value
                waiting[i] -= 1
                if watch is not None and waiting[i] == 0:
                    watch(1)
        return [Scored(value, max(len(row) - 1, 0)) for value, row in zip(nats, ids, strict=True)]

    @torch.no_grad()
    def _window_nats(self, ids: list[list[int]], some: Sequence[tuple[int, Window]]) -> list[float]:
        rows = [ids[i][w.start : w.stop] for i, w in some]
        tokens, real = self._padded(rows)
        logits = self.model(input_ids=tokens, attention_mask=real).logits[:, :-1].float()
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
        found = []
        for r, (_, w) in enumerate(some):
            begin = max(w.fresh - w.start, 1) - 1
            found.append(float(losses[r, begin : len(rows[r]) - 1].double().sum()))
        return found

    @torch.no_grad()
    def features(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The last hidden state at each text's last token, for MAUVE; texts are cut to the context."""
        found = []
        for text in texts:
            ids = (self.tokenizer(text, add_special_tokens=False)["input_ids"] or [0])[: self.context]
            tokens, real = self._padded([ids])
            out = self.model(input_ids=tokens, attention_mask=real, output_hidden_states=True)
            found.append(out.hidden_states[-1][0, -1].float().cpu().numpy())
        return np.stack(found)

    def _padded(self, rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        longest = max(map(len, rows))
        tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=self.device)
        ends = torch.tensor([len(row) for row in rows], device=self.device)
        return tokens, (torch.arange(longest, device=self.device) < ends[:, None]).long()


def _loaded(name: str, device: torch.device) -> tuple[Any, Any]:
    try:
        transformers: Any = import_module(
            "transformers"
        )  # by name: its own types come and go with its versions
    except ImportError as error:
        raise UserError(f"The judge {name} needs transformers: pip install 'scdd[eval]'.") from error
    path = Path(name)
    where: dict[str, Any] = {"pretrained_model_name_or_path": name}
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(f"The judge {name} does not exist: give the path of a .gguf file.")
        where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # the bars of GGUF's conversion ask nobody
            tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
            model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    except (
        Exception
    ) as error:  # a wrong name, no connection, a damaged file: whatever it is, the cure is the same
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"The judge {name} cannot be loaded ({said}): give a causal language model's hub name, folder or .gguf file, "
            "or one of our own autoregressive checkpoints."
        ) from error
    return model.to(device).eval(), tokenizer


def _short(name: str) -> str:
    return Path(name).name


def _identity(name: str) -> str:
    """The name, and for a local file its size: a judge of the same name is the same judge."""
    path = Path(name)
    return f"{path.name}:{path.stat().st_size}" if path.is_file() else _short(name) if path.is_dir() else name


def gen_ppl(scores: Sequence[Scored], seed: int = 0) -> dict[str, Any]:
    """Perplexity over all texts with error and interval, and each text's own numbers."""
    nats, tokens = [s.nats for s in scores], [s.tokens for s in scores]
    return {**stats.perplexity(nats, tokens, seed), "nats": nats, "tokens": tokens}
