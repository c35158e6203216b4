"""Samplers, and the loop that runs them: each decides which tokens move, and one function moves them."""
