"""Training: the loop, the optimiser, several devices, checkpoints to go on from, and the log."""
