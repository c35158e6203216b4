"""Plain statements of every op: dense, in float64, differentiable by autograd. Tests hold the fast paths to these."""
