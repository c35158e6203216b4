"""Edits of any length: candidates for doubtful words, the model's opinion of them, and the noisy channel that decides."""
