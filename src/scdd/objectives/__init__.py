"""What is trained: the ELBO of every process, PRISM's head, and the autoregressive baseline."""
