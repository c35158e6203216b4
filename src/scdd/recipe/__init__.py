"""Recipes: every choice of a run as plain data, checked once at the door.

    from scdd.recipe.load import dumps, load, loads
    recipe = load("nano", overrides=["training.steps=50"])   # a file, a run folder, or a shipped recipe's name
    text = dumps(recipe)                                      # loads(text) == recipe, always

A recipe's sections are the components' own options; where there is a choice, `kind` says which. Nothing here imports
torch, and nothing below `assemble` sees a recipe.
"""
