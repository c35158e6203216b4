"""Plain torch row functions for CPUs and any other device, with closed-form gradients."""
