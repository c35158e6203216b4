"""The front door: `scdd.load(path).generate(…)`, `.infill(…)`, `.correct(…)`, `.score(…)`."""
