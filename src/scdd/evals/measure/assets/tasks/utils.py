"""What the task files ask for: documents from a local folder, and the model `scdd` made known to the harness.

`lm_eval --model scdd --tasks THIS-FOLDER` reads this file before it looks for the model.
"""

from __future__ import annotations

from typing import Any

from scdd.evals.measure import lm_eval_model  # noqa: F401  (registers the model)
from scdd.evals.measure.benchmarks import documents


def load(name: str, data: str | None = None, **_: Any) -> dict[str, Any]:
    """The task's documents as the harness wants them; its `metadata` may name their folder `data`."""
    import datasets

    return {"test": datasets.Dataset.from_list(documents(name, data))}


def gold(doc: dict[str, Any]) -> int:
    """Which context is the right one."""
    return int(doc["gold"])
