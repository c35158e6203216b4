"""Small texts in memory, split into training and validation."""

from __future__ import annotations

import numpy as np

from scdd.data.loader import Permutation


def split_texts(texts: list[str], share: float) -> tuple[list[str], list[str]]:
    """(validation, training): whole documents, or the end of the text if there is only one."""
    if len(texts) == 1:
        at = max(1, round(len(texts[0]) * (1 - share)))
        return [texts[0][at:]], [texts[0][:at]]
    chosen = set(Permutation(len(texts), 0)(np.arange(max(1, round(len(texts) * share)))).tolist())
    return [texts[i] for i in sorted(chosen)], [text for i, text in enumerate(texts) if i not in chosen]
