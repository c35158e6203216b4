"""Triton kernels: one program a row of logits, a few passes over it while it sits in the L2 cache."""
