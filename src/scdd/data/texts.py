"""Small texts at hand, held in memory: read, and split into training and validation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from scdd.core.errors import UserError
from scdd.data.order import Permutation


def read_texts(path: Path) -> list[str]:
    """One document a file: a text file, or every .txt below a folder in sorted order."""
    files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    try:
        texts = [text for file in files if (text := file.read_text(encoding="utf-8").strip())]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"data.path {path} cannot be read ({error}): give a UTF-8 text file or a folder of them."
        ) from error
    if not texts:
        raise UserError(f"data.path {path} holds no text: give a text file, or a folder of .txt files.")
    return texts


def split_texts(texts: list[str], share: float) -> tuple[list[str], list[str]]:
    """(validation, training): whole documents, or the end of the text if there is only one."""
    if len(texts) == 1:
        at = max(1, round(len(texts[0]) * (1 - share)))
        return [texts[0][at:]], [texts[0][:at]]
    held = set(Permutation(len(texts), 0)(np.arange(max(1, round(len(texts) * share)))).tolist())
    return [texts[i] for i in sorted(held)], [text for i, text in enumerate(texts) if i not in held]
