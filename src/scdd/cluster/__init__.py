"""Many machines: what runs on Ray. Nobody below knows of it, and without `--ray` nothing here is imported."""
