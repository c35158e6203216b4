"""An animated image of one sample's trajectory, drawn with Pillow (an optional dependency)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scdd.core.errors import UserError
from scdd.data.files import write_atomically
from scdd.data.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from scdd.lm.results import Correction, Sample, Trajectory

PAPER, INK, SOFT, HIDDEN = (251, 250, 247), (35, 34, 31), (111, 107, 98), (217, 212, 200)
COLOURS = {
    1: ((31, 122, 92), (214, 241, 228)),
    2: ((168, 72, 12), (255, 224, 199)),
    3: ((123, 63, 160), (237, 220, 248)),
}
WIDTH, MARGIN, LINE, MASK = 760, 18, 26, 30  # pixels
MOST_FRAMES = 150


class Piece(NamedTuple):
    """A token's place on the page."""

    line: int
    x: float
    width: float
    text: str
    kind: int
    masked: bool


def write_gif(path: Path, sample: Sample | Correction, tokenizer: TextTokenizer) -> None:
    """Write the file; long trajectories are thinned out to a bounded number of frames, the last one stays for a while."""
    from PIL import Image, ImageDraw, ImageFont

    trajectory = sample.trajectory
    if trajectory is None or not trajectory.moments:
        raise UserError("trace has no step to show: take at least one step, and a final other than none.", "trace")
    font = ImageFont.load_default(size=16)
    chosen = _thinned(len(trajectory.moments))
    pages = [list(_laid_out(trajectory, frame, tokenizer, font)) for frame in chosen]
    lines = max((piece.line for page in pages for piece in page), default=0) + 1
    images = []
    for frame, page in zip(chosen, pages, strict=True):
        image = Image.new("RGB", (WIDTH, (lines + 1) * LINE + 2 * MARGIN), PAPER)
        draw = ImageDraw.Draw(image)
        moment = trajectory.moments[frame]
        draw.text((MARGIN, MARGIN - 4), f"step {moment.step}    t = {moment.s:.3f}", SOFT, font)
        for piece in page:
            _paint(draw, font, piece)
        images.append(image.quantize(64))
    pauses = [90] * (len(images) - 1) + [2500]
    content = io.BytesIO()
    images[0].save(content, "GIF", save_all=True, append_images=images[1:], duration=pauses, loop=0, optimize=True)
    write_atomically(path, content.getbuffer())


def _thinned(count: int) -> list[int]:
    step = -(-count // MOST_FRAMES)
    return sorted({*range(0, count, step), count - 1})


def _laid_out(trajectory: Trajectory, frame: int, tokenizer: TextTokenizer, font: Any) -> Iterator[Piece]:
    """Every token in a line, as wide as it is, broken between tokens."""
    line, x = 0, 0.0
    moved = trajectory.moved[frame].tolist()
    for token, kind in zip(trajectory.tokens[frame].tolist(), moved, strict=True):
        masked = token == tokenizer.mask_id
        for i, text in enumerate([""] if masked else tokenizer.token(token).split("\n")):
            width = MASK if masked else font.getlength(text)
            if i or x + width > WIDTH - 2 * MARGIN:
                line, x = line + 1, 0.0
            if masked or text:
                yield Piece(line, x, width, text, kind, masked)
            x += width


def _paint(draw: Any, font: Any, piece: Piece) -> None:
    ink, ground = COLOURS.get(piece.kind, (INK, HIDDEN if piece.masked else None))
    x, y = MARGIN + piece.x, MARGIN + (piece.line + 1) * LINE
    if ground is not None:
        draw.rectangle((x, y, x + max(piece.width - 2, 1), y + LINE - 6), fill=ground)
    draw.text((x, y), piece.text, ink, font)
