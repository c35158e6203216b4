"""Weights of networks from elsewhere, under their names and ours."""
