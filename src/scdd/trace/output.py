"""Recorded samples as a file: a page that plays them, or an animated image."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from scdd.core.errors import UserError, missing_extra
from scdd.data.files import write_atomically
from scdd.data.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from scdd.lm.results import Correction, Sample

FORMATS = (".html", ".gif")


def check_path(path: Path) -> None:
    """Refuse what cannot be written, before anything is computed."""
    if path.suffix.lower() not in FORMATS:
        raise UserError(
            f"trace {path} should end in {' or '.join(FORMATS)}: those are the formats it can write.", "trace"
        )
    if not path.absolute().parent.is_dir():
        raise UserError(
            f"trace {path} lies in a folder that does not exist: make {path.absolute().parent} first.", "trace"
        )
    if path.suffix.lower() == ".gif" and find_spec("PIL") is None:
        raise UserError(missing_extra("trace to a .gif needs Pillow", "gif", ", or write an .html file"), "trace")


def write(
    path: Path, samples: Sequence[Sample | Correction], tokenizer: TextTokenizer, title: str, labels: Sequence[str] = ()
) -> None:
    """Write recorded samples in the format that the path ends in; a page calls them by `labels`."""
    check_path(path)
    if path.suffix.lower() == ".gif":
        from scdd.trace.gif import write_gif

        write_gif(path, samples[0], tokenizer)
    else:
        from scdd.trace.page import page

        write_atomically(path, page(samples, tokenizer, title, labels).encode())
