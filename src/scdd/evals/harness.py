"""`python -m scdd.evals.harness …`: lm-eval's own command line, with the model `scdd` known to it whatever the tasks."""

from __future__ import annotations

from importlib import import_module


def main() -> None:
    """As `lm_eval`."""
    import_module("scdd.evals.measure.lm_eval_model")
    import_module("lm_eval.__main__").cli_evaluate()


if __name__ == "__main__":
    main()
