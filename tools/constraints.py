"""Write constraints.txt from the environment that runs this: `make constraints`.

Triton is pinned to what the CUDA build of the pinned torch demands, so that the same file serves CPU and GPU machines. A
pin whose package has left Python 3.10 behind carries a marker, so that older interpreters choose for themselves.
"""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from pathlib import Path

from packaging.specifiers import SpecifierSet

SKIPPED = {"scdd", "pip"}
DEMANDED = {"triton": "3.7.1"}  # by torch 2.13.0; change them together
HEADER = """\
# Versions that the test suite passes with; only the Makefile reads this. Written by `make constraints`.
# torch is pinned here and not in pyproject.toml, where any torch from 2.6 on will do.
"""


def marker(requires: str | None) -> str:
    """The condition under which a pin applies."""
    supported = SpecifierSet(requires or "")
    if "3.10.99" in supported:
        return ""
    oldest = next(minor for minor in range(11, 20) if f"3.{minor}.99" in supported)
    return f' ; python_version >= "3.{oldest}"'


def main() -> None:
    """Pin every installed distribution."""
    pins = {}
    for found in distributions():
        name = found.metadata["Name"].lower().replace("_", "-")
        if name not in SKIPPED:
            # A local build such as 2.13.0+cpu satisfies 2.13.0.
            version = DEMANDED.get(name, found.version).partition("+")[0]
            pins[name] = f"{name}=={version}{marker(found.metadata.get('Requires-Python'))}"
    Path("constraints.txt").write_text(HEADER + "".join(f"{pins[name]}\n" for name in sorted(pins)), encoding="utf-8")
    sys.stdout.write(f"constraints.txt: {len(pins)} pins\n")


if __name__ == "__main__":
    main()
