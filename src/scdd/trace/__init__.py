"""Samples, corrections and scores to look at: a page that plays them, an animated image, HTML for notebooks."""
