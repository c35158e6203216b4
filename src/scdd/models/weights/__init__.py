"""Weights as others store them: Hugging Face's names, GGUF files, the authors' checkpoints, pickles read without running them."""
