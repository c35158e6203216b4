"""docs/results.md below its line, and its picture, from the measurements in docs/results: `python tools/results.py`.

What stands above the line is written by hand and stays. Needs matplotlib (`pip install -e '.[eval]'`).
"""

from __future__ import annotations

import sys
from pathlib import Path

from scdd.evals.report.compare import by_budget, fair
from scdd.evals.report.page import markdown
from scdd.evals.report.plots import generation_plot, svg
from scdd.evals.report.sections import gather, sections

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PICTURE, MEASURED = DOCS / "results.md", DOCS / "images" / "results.svg", DOCS / "results"
RUNS = [MEASURED / name for name in ("mdlm", "gidd", "scdd", "ar")]
ADAPTED, STUDENT, BUNDLED = (MEASURED / name for name in ("adapted", "student", "bundled"))
AGAINST = ("SCDD", "GIDD+")
BUDGETS = (8, 16, 32, 64, 128)
LINE = "<!-- Below this line: python tools/results.py -->\n"
GREY = "#7d8590"  # words and axes that can be read on white and on black


def report() -> str:
    """Everything below the line: the report without its title, the recipe's own way of sampling, the adapted parent, its student,
    and the bundled model that was made of that."""
    body = markdown("", RUNS, against=AGAINST).split("\n", 1)[1]
    return "\n".join(
        [
            "",
            body,
            "## As the recipe samples: quadratic grid, temperature 0.9\n",
            *tables_of(MEASURED / "defaults", "Generation"),
            "## SmolLM2-135M, made self-correcting\n",
            *tables_of(ADAPTED, "Likelihood", "Recovery", "Zero-shot", "Generation"),
            "## Fourteen of its blocks, the bundled model until the next\n",
            *tables_of(STUDENT, "Likelihood", "Recovery", "Repair", "Generation"),
            "## The bundled model: the same blocks, 9,216 ids\n",
            *tables_of(BUNDLED, "Likelihood", "Recovery", "Repair", "Generation"),
        ]
    )


def tables_of(folder: Path, *names: str) -> list[str]:
    """The tables of some sections of a report."""
    found = {section.name: section.tables for section in sections(gather([folder]))}
    return [table.markdown() for name in names for table in found[name]]


def picture() -> str:
    """Gen PPL by budget: systems with every budget, without mere repetition and without what has a budget of its own."""
    grid = by_budget([one for one in gather(RUNS) if one.kind == "generation"])
    shown = {name: row for name, row in grid.items() if all(fair(grid, name, n) for n in BUDGETS)}
    return svg(generation_plot(shown)).replace("currentColor", GREY)


def main() -> None:
    """Write both."""
    head = PAGE.read_text(encoding="utf-8").split(LINE)[0]
    PAGE.write_text(head + LINE + report(), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE} and {PICTURE}\n")


if __name__ == "__main__":
    main()
