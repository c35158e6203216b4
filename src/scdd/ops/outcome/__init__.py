"""What happens to each position in a reverse step. The definition is `samplers.base.outcomes`; the kernel does it in one launch."""
