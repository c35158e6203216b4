"""Scales and claims: found by name, read and checked as recipes are. Imports no torch."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from scdd.core.errors import UserError
from scdd.core.files import read_text
from scdd.recipe.load import LARGEST, options_from
from scdd.reproduce.claims import Claim, Claims
from scdd.reproduce.options import Scale

HERE = Path(__file__).parent
SCALES = HERE / "scales"


def shipped() -> list[str]:
    """Names of the scales inside the package."""
    return sorted(path.stem for path in SCALES.glob("*.yaml"))


def load_scale(name: str) -> Scale:
    """The scale in a file, or shipped under that name."""
    path = Path(name)
    if not path.is_file():
        path = SCALES / f"{name}.yaml"
        if name not in shipped():
            near = get_close_matches(name, shipped(), n=1)
            cure = f"did you mean {near[0]}" if near else f"choose one of {', '.join(shipped())}, or give a file"
            raise UserError(f"There is no scale {name}: {cure}.", "scale")
    return options_from(Scale, read_text(path, LARGEST), str(name))


def load_claims() -> tuple[Claim, ...]:
    """What the paper claims."""
    return options_from(Claims, read_text(HERE / "claims.yaml", LARGEST), "claims").claims
