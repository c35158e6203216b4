"""The noise distribution of a run: counted in its training data or read from a file, once, and kept in the run's folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from scdd.core.errors import UserError, at
from scdd.core.files import CONFIG_LIMIT, read_json, read_text
from scdd.core.types import Vocab
from scdd.data.files import write_atomically
from scdd.data.shards import TokenStream
from scdd.processes.noise import Noise, read, unigram
from scdd.processes.options import NoisyOptions, ProcessOptions
from scdd.training.parallel import World

NOISE = "noise.json"  # of the run, beside its tokenizer
PIECE = 1 << 24  # tokens counted at a time


def run_noise(options: ProcessOptions, vocab: Vocab, train: object, run: Path, world: World) -> Noise | None:
    """The noise that a recipe's process names, None for uniform; rank 0 finds it, and a resumed run has it already."""
    if not isinstance(options, NoisyOptions) or options.noise == "uniform":
        return None
    file = run / NOISE

    def settle() -> None:
        if not file.is_file():
            with at("process"):
                found = _unigram(vocab, train) if options.noise == "unigram" else noise_file(vocab, options.noise)
            run.mkdir(parents=True, exist_ok=True)
            write_atomically(file, (json.dumps(found.saved()) + "\n").encode())

    world.on_main(settle)
    return read(read_json(file), vocab, str(file))


def count_tokens(stream: TokenStream, vocab: Vocab) -> Tensor:
    """How often each id occurs in a stream, [V]; what blocks add to it ([BOS], padding) is not counted."""
    counts = torch.zeros(vocab.size, dtype=torch.int64)
    for start in range(0, stream.n_tokens, PIECE):
        piece = torch.from_numpy(stream.read(start, min(start + PIECE, stream.n_tokens)))
        counts += torch.bincount(piece, minlength=vocab.size)
    return counts


def noise_file(vocab: Vocab, name: str) -> Noise:
    """A distribution in a file: K numbers as a .npy array, or as text, one a line."""
    path = Path(name)
    if not path.is_file():
        raise UserError(
            f"noise is {name}, and there is no such file: choose uniform, unigram, or a file that exists.", "noise"
        )
    try:
        if path.suffix == ".npy":
            if os.path.getsize(path) > CONFIG_LIMIT:
                raise ValueError(f"it is larger than {CONFIG_LIMIT >> 20} MiB")
            values = np.load(path, allow_pickle=False).astype(np.float64)
        else:
            values = np.array([float(word) for word in read_text(path).split()])
    except (ValueError, OSError, TypeError) as error:
        raise UserError(f"{path} holds no numbers ({error}): give one for each ordinary token.", "noise") from error
    return Noise(vocab, torch.from_numpy(values), path.name)


def _unigram(vocab: Vocab, train: object) -> Noise:
    if not isinstance(train, TokenStream):
        raise UserError(
            "noise unigram is counted in a stream of texts, and these data are pairs: give a file instead.", "noise"
        )
    return unigram(vocab, count_tokens(train, vocab))
