"""Portable checkpoints: `folder` reads and writes them, `packed` stores them in fewer bytes, `convert` imports others'."""
