"""From a recipe to the things it names: `model` for whoever samples, `training` for whoever trains."""
