"""Every experiment of the paper as a function: honest numbers with their errors, kept in cells, gathered in a report.

likelihood, generation (gen_ppl, diversity, frontier), correction, recovery (typos), zero_shot, judge, compare, report.
A measurement takes a `EvalModel` (a loaded model and what it is), a `World` (ranks share the samples) and a seed.
"""
