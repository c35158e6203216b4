"""`python -m scdd.evals.harness …`: lm-eval's own command line, with the model `scdd` known to it whatever the tasks."""

from importlib import import_module

if __name__ == "__main__":
    import_module("scdd.evals.measure.lm_eval_model")
    import_module("lm_eval.__main__").cli_evaluate()
