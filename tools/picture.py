"""Film a trace page, for the README: `scdd demo`, then `python tools/picture.py demo.html docs/images/demo.gif`.

Needs playwright, a chromium (`--chromium PATH`; default: playwright's own) and Pillow.
"""

from __future__ import annotations

import argparse
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

SIZE = {"width": 900, "height": 1200}  # the window; the picture is as high as the page needs
PAUSE, LAST = 240, 4000  # milliseconds a step is shown, and the finished text


def film(page: Page) -> list[Image.Image]:
    """The first sample of the page before its first step and after each one, cut to the tallest of them."""
    steps = int(page.evaluate("sample.frames.length"))
    shots, bottom = [], 0.0
    for step in range(steps + 1):
        page.evaluate(f"show({step})")
        shots.append(Image.open(BytesIO(page.screenshot())).convert("RGB"))
        box = page.locator("main section").last.bounding_box()
        assert box is not None
        bottom = max(bottom, box["y"] + box["height"])
    return [shot.crop((0, 0, shot.width, round(bottom) + 16)) for shot in shots]


def main() -> None:
    """Write the animated picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--chromium", help="path of the browser")
    given = parser.parse_args()
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light", reduced_motion="reduce")
        page.goto(given.page.resolve().as_uri())
        shots = film(page)
        browser.close()
    palette = shots[len(shots) // 2].quantize()  # of a step with every colour in it, shared by all
    frames = [shot.quantize(palette=palette, dither=Image.Dither.NONE) for shot in shots]
    pauses = [PAUSE] * (len(frames) - 1) + [LAST]
    frames[0].save(given.picture, save_all=True, append_images=frames[1:], duration=pauses, loop=0, optimize=True)
    sys.stdout.write(f"{given.picture}: {len(frames)} frames, {given.picture.stat().st_size / 1e3:.0f} kB\n")


if __name__ == "__main__":
    main()
