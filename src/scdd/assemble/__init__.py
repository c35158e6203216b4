"""From a recipe to a training run."""
