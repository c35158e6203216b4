"""Networks: hidden states in, a vocabulary head beside them."""
