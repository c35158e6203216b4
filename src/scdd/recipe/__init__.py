"""Recipes: every choice of a run as plain data, checked once at the door.

    recipe = load("nano", overrides=["training.steps=50"])   # a file, a run folder, or a shipped recipe's name
    text = dumps(recipe)                                      # loads(text) == recipe, always

A recipe is a tree of frozen dataclasses; where there is a choice, `kind` says which. Nothing here imports torch, and
nothing below `build.py` sees a recipe.
"""

from scdd.recipe.load import dumps, from_dict, load, loads, schema, shipped, to_dict
from scdd.recipe.objective import (
    AdaptiveTimes,
    ArObjective,
    ElboObjective,
    ImportanceTimes,
    LowDiscrepancyTimes,
    Objective,
    PrismObjective,
    Times,
    UniformTimes,
)
from scdd.recipe.process import (
    ArProcess,
    ConstantCurve,
    CosineCurve,
    Curve,
    DecoupledSchedule,
    MaskedProcess,
    MaskedSchedule,
    NoisyProcess,
    PeakedSchedule,
    PolynomialCurve,
    Process,
    Schedule,
)
from scdd.recipe.sampling import (
    AncestralSampler,
    ArSampler,
    GiddCorrectSampler,
    Grid,
    InformedSampler,
    P2Sampler,
    PrismSampler,
    RemdmSampler,
    Sampler,
    Sampling,
    ThresholdSampler,
)
from scdd.recipe.sections import Data, Model, Recipe, ShardsData, TextData, Training

__all__ = [
    "AdaptiveTimes",
    "AncestralSampler",
    "ArObjective",
    "ArProcess",
    "ArSampler",
    "ConstantCurve",
    "CosineCurve",
    "Curve",
    "Data",
    "DecoupledSchedule",
    "ElboObjective",
    "GiddCorrectSampler",
    "Grid",
    "ImportanceTimes",
    "InformedSampler",
    "LowDiscrepancyTimes",
    "MaskedProcess",
    "MaskedSchedule",
    "Model",
    "NoisyProcess",
    "Objective",
    "P2Sampler",
    "PeakedSchedule",
    "PolynomialCurve",
    "PrismObjective",
    "PrismSampler",
    "Process",
    "Recipe",
    "RemdmSampler",
    "Sampler",
    "Sampling",
    "Schedule",
    "ShardsData",
    "TextData",
    "ThresholdSampler",
    "Times",
    "Training",
    "UniformTimes",
    "dumps",
    "from_dict",
    "load",
    "loads",
    "schema",
    "shipped",
    "to_dict",
]
