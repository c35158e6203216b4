from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scdd.core.errors import UserError
from scdd.data.options import PairsOptions
from scdd.models.options import DiTOptions
from scdd.objectives.options import ArOptions as ArObjectiveOptions
from scdd.objectives.options import ElboOptions, PrismOptions
from scdd.processes.options import AutoregressiveOptions, MdlmOptions
from scdd.recipe.load import dumps, from_dict, load, loads, parse, render, schema, shipped, to_dict
from scdd.recipe.sections import Recipe
from scdd.recipe.tree import settings as all_settings
from scdd.samplers.options import ArOptions as ArSamplerOptions
from scdd.samplers.options import RemdmOptions, SamplingOptions
from scdd.schedules.options import PeakedOptions
from scdd.training.options import TrainingOptions

ROOT = Path(__file__).resolve().parent.parent

LEAST = """
name: least
data: {kind: shards, path: shards}
process: {kind: scdd}
training: {steps: 10, batch_size: 2}
"""


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Any recipe: Hypothesis reads the fields and their bounds off the dataclasses, so new ones are covered too."""
    st.register_type_strategy(
        RemdmOptions,
        st.builds(RemdmOptions, t_on=st.floats(0.5, 0.9), t_off=st.floats(0.1, 0.4), alpha_on=st.floats(0.1, 0.9)),
    )
    finite = st.floats(min_value=1e-12, max_value=1e12)
    st.register_type_strategy(float, finite)
    inside = st.floats(0.01, 0.99)
    st.register_type_strategy(  # most exponents would not fit most peaks
        PeakedOptions, st.builds(PeakedOptions, p_u=inside, exponent=inside, t_peak=inside)
    )
    st.register_type_strategy(  # dynamic weights need continuous time
        ElboOptions, st.builds(ElboOptions, weighting=st.just("elbo")) | st.builds(ElboOptions, steps=st.none())
    )
    size = draw(st.sampled_from(["nano", "small", "custom"]))
    heads = draw(st.integers(1, 64))
    shape = {"depth": 2, "width": 2 * heads * draw(st.integers(1, 32)), "heads": heads} if size == "custom" else {}
    absent: dict[str, Any] = {"depth": None, "width": None, "heads": None}
    micro = draw(st.none() | st.integers(1, 64))
    batch_size = (micro or 1) * draw(st.integers(1, 64))
    training = draw(st.builds(TrainingOptions, batch_size=st.just(batch_size), micro_batch_size=st.just(micro)))
    model = draw(st.builds(DiTOptions, size=st.just(size), **{key: st.just(v) for key, v in (absent | shape).items()}))
    # A diffusion recipe by construction; then, at times, one of the two combinations that go together otherwise.
    process = draw(st.from_type(_hint("process")))
    objective = draw(st.from_type(_hint("objective")))
    sampling = draw(st.from_type(SamplingOptions))
    if isinstance(process, AutoregressiveOptions) or isinstance(objective, ArObjectiveOptions):
        process, objective, sampling = (
            AutoregressiveOptions(),
            ArObjectiveOptions(),
            replace(sampling, sampler=ArSamplerOptions()),
        )
    elif isinstance(objective, PrismOptions):
        process = MdlmOptions()
    data = draw(st.from_type(_hint("data")))
    assume(not (isinstance(objective, PrismOptions) and isinstance(data, PairsOptions)))
    assume(isinstance(process, AutoregressiveOptions) == isinstance(sampling.sampler, ArSamplerOptions))
    return draw(
        st.builds(
            Recipe,
            process=st.just(process),
            objective=st.just(objective),
            data=st.just(data),
            sampling=st.just(sampling),
            training=st.just(training),
            model=st.just(model),
        )
    )


def _hint(key: str) -> Any:
    from scdd.recipe.tree import hints

    return hints(Recipe)[key]


@settings(max_examples=20)
@given(recipes())
def test_a_written_recipe_reads_back_unchanged(recipe: Recipe):
    assert loads(dumps(recipe)) == recipe
    assert from_dict(to_dict(recipe)) == recipe
    assert yaml.safe_load(dumps(recipe)) == to_dict(recipe)  # and any other YAML reader agrees


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
))  # fmt: skip
def test_yaml_text_keeps_any_value(value: Any):
    assert parse(render(value)) == value


@settings(max_examples=20)
@given(recipes(), st.data())
def test_setting_a_value_to_itself_changes_nothing(recipe: Recipe, data: st.DataObject):
    tree = to_dict(recipe)
    path = data.draw(st.sampled_from(sorted(_leaves(tree))))
    node: Any = tree
    for key in path.split("."):
        node = node[key]
    assert from_dict(tree, overrides=[f"{path}={render(node).removesuffix('...' + chr(10))}"]) == recipe


def _leaves(tree: dict[str, Any], prefix: str = "") -> list[str]:
    paths: list[str] = []
    for key, value in tree.items():
        paths += _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]
    return paths


def test_every_shipped_recipe_is_right_and_its_round_trip_too():
    assert "nano" in shipped()
    for name in shipped():
        recipe = load(name)
        assert loads(dumps(recipe)) == recipe


def test_the_repository_shows_the_shipped_recipes():
    assert {path.stem for path in (ROOT / "recipes").glob("*.yaml")} == {n for n in shipped() if "/" not in n}


def test_recipes_are_found_by_file_by_run_folder_and_by_name(tmp_path: Path):
    recipe = loads(LEAST)
    (tmp_path / "recipe.yaml").write_text(dumps(recipe), encoding="utf-8")
    assert load(tmp_path) == load(tmp_path / "recipe.yaml") == recipe
    assert load("nano") == load("nano.yaml")


def test_sections_are_frozen_and_hashable():
    recipe = loads(LEAST)
    with pytest.raises(FrozenInstanceError):
        recipe.seed = 1
    assert hash(recipe) == hash(loads(LEAST))
    assert asdict(recipe)["training"]["betas"] == (0.9, 0.999)


@pytest.mark.parametrize(
    ("text", "value"),
    [("5e-4", 5e-4), ("1e3", 1000.0), ("1_000", 1000), ("no", "no"), ("1:30", "1:30"), ("017", "017"), ("", None)],
)
def test_yaml_reads_numbers_as_people_mean_them(text: str, value: Any):
    assert parse(text) == value
    assert type(parse(text)) is type(value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("process.schedule.p_uu=0.1", "process.schedule.p_uu is not a known key; did you mean p_u?"),
        ("stepz=1", "stepz is not a known key; the keys here are name, seed, data,"),
        ("learning_rate=1", "learning_rate is not a known key here; did you mean training.learning_rate?"),
        ("trainin.steps=1", "trainin is not a known key; did you mean training?"),
        ("process.kind=scd", 'process.kind is "scd": choose one of scdd, gidd, mdlm, ar; did you mean scdd?'),
        ("process={schedule: {kind: peaked}}", "process.kind is missing; choose one of scdd, gidd, mdlm, ar."),
        ("process.schedule={kind: masked, p_u: 0.1}", "p_u is not a known key of kind masked; it belongs to kind peaked"),
        ("training.precision=bfloat16", 'training.precision is "bfloat16": choose one of bf16, fp8, float32; did you mean bf16?'),
        ("model.size=smal", "model.size is \"smal\": choose one of nano, mini, tiny, small, medium, custom; did you mean small?"),
        ("process.schedule.p_u=1.0", "process.schedule.p_u is 1.0: choose one in [0, 1)"),
        ("training.steps=many", 'training.steps is "many": give a whole number'),
        ("training.steps='5'", 'training.steps is "5": give a whole number'),
        ("training.compile=1", "training.compile is 1: it should be a valid boolean"),
        ("training.learning_rate=.inf", "training.learning_rate is Infinity: choose a finite one above 0"),
        ("training.betas=[0.9, 1.5]", "training.betas.1 is 1.5: it should be less than 1"),
        ("training.betas.0=0.5", "training.betas is a value, not a section; set training.betas as a whole"),
        ("name.first=x", "name is a value, not a section"),
        ("training=5", "training is 5: it should be a section"),
        ("training={steps: 1}", "training.batch_size is missing"),
        ("model.size=custom", "size custom needs depth"),
        ("model.depth=3", "depth is given although size is small: set size to custom"),
        ("training.micro_batch_size=3", "batch_size 2 is not a multiple of micro_batch_size 3"),
        ("objective.kind=ar", "objective.kind ar does not fit process.kind scdd"),
        ("objective.kind=prism", "objective.kind prism needs process.kind mdlm, not scdd"),
        ("sampling.sampler.kind=ar", "sampling.sampler.kind ar does not fit process.kind scdd"),
        ("training.steps", "write it as path.to.key=value"),
        ("training..steps=1", "write it as path.to.key=value"),
        ("training.steps=[", "is not YAML"),
    ],
)  # fmt: skip
def test_a_mistake_in_set_is_named_with_its_place_and_a_cure(change: str, message: str):
    with pytest.raises(UserError) as caught:
        loads(LEAST, "my.yaml", [change])
    assert message in str(caught.value)
    assert re.search(r"[^.][.?]$", str(caught.value)), "one full stop, or a question"
    if "fit process" not in message and "needs process" not in message:  # those lie between two settings
        assert str(caught.value).startswith(f"{change}: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LEAST.replace("steps", "step"), "my.yaml: training.step is not a known key; did you mean steps?"),
        (LEAST.replace("scdd}", "scdd, schedule: {kind: peaked, p_uu: 1}}"), "my.yaml: process.schedule.p_uu is not"),
        (LEAST.replace("kind: shards, ", ""), "my.yaml: data.kind is missing; choose one of shards, text, pairs."),
        ("name: x\nname: y\n", "my.yaml: it is not YAML in line 2: the key 'name' is there twice."),
        ("name: [\n", "my.yaml: it is not YAML"),
        ("", "my.yaml: it should hold keys and values"),
        ("- name\n", "my.yaml: it should hold keys and values"),
        (LEAST + "1: 2\n", "my.yaml: 1 is not a known key"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_place_and_a_cure(text: str, message: str):
    with pytest.raises(UserError) as caught:
        loads(text, "my.yaml")
    assert message in str(caught.value)


def test_a_section_that_does_not_agree_names_the_override_that_made_it_so():
    with pytest.raises(UserError, match=r"^training.micro_batch_size=7: .* is not a multiple"):
        load("nano", ["training.steps=4", "training.micro_batch_size=7"])


def test_every_mistake_is_named_at_once():
    with pytest.raises(UserError) as caught:
        loads(LEAST, "my.yaml", ["training.stepz=1", "model.sise=tiny"])
    assert len(str(caught.value).splitlines()) == 2


def test_missing_and_unreadable_files_are_user_errors(tmp_path: Path):
    with pytest.raises(UserError, match="there is no such recipe; did you mean nano"):
        load("nanno")
    (tmp_path / "latin.yaml").write_bytes("name: é".encode("latin-1"))
    with pytest.raises(UserError, match="not UTF-8"):
        load(tmp_path / "latin.yaml")


def test_set_fills_in_the_defaults_around_it_and_a_new_kind_drops_what_it_does_not_know():
    times = loads(LEAST, overrides=["objective.times.kind=importance"]).objective
    assert (times.steps, times.times.power) == (1000, 2.0)
    swept = loads(LEAST, overrides=["process.schedule.p_u=0.1", "process.schedule.kind=masked"])
    assert to_dict(swept)["process"]["schedule"] == {"kind": "masked", "shape": "log-linear"}
    masked = loads(LEAST, overrides=["process.schedule.p_u=0.1", "process.kind=mdlm"])
    assert masked.process == MdlmOptions()
    gidd = loads(LEAST, overrides=["process.schedule.p_u=0.1", "process.kind=gidd"])
    assert gidd.process.schedule.p_u == 0.1


def test_set_does_not_change_the_callers_tree():
    tree = to_dict(loads(LEAST))
    from_dict(tree, overrides=["training.steps=99"])
    assert tree["training"]["steps"] == 10


def test_the_schema_describes_every_setting_and_refuses_unknown_keys():
    sections = [*schema()["$defs"].values(), schema()]
    for section in sections:
        assert section["additionalProperties"] is False
        assert section["description"]
        for key, field in section["properties"].items():
            assert key == "kind" or field.get("description"), f"{section['title']}.{key} has no description"
    named = {path.rpartition(".")[2] for path in all_settings()}
    assert named == {key for section in sections for key in section["properties"]}
