"""How a run reads rows with the network of another model. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scdd.models.options import PretrainedOptions
from scdd.recipe.sections import Recipe


def as_read(spec: Recipe, description: Mapping[str, Any], causal: bool) -> Mapping[str, Any]:
    """The parent's network as this run needs it: how it reads rows is as the recipe names it, else the parent's, if it fits."""
    assert isinstance(spec.model, PretrainedOptions)
    named = spec.model.reread(description)
    if named.get("kind") == "import":  # its factory knows whether it is causal
        return named
    own: dict[str, Any] = {"causal": causal}
    if causal and spec.model.attention_window is None and "attention_window" in named:
        own["attention_window"] = None
    if spec.model.context is None and (named.get("context") or spec.data.length) < spec.data.length:
        own["context"] = None
    return {**named, **own}
