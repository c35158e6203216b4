"""What CONTRIBUTING.md shows from outside the package works: a schedule and a sampler that no recipe names."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import scdd
from scdd.assemble import training as build
from scdd.bundle.folder import FOREIGN
from scdd.core import Levels, Transition, UserError
from scdd.evals.measure.generation import measure_samples
from scdd.evals.measure.model import open_model
from scdd.evals.measure.specs import SamplingSpec
from scdd.evals.measure.store import MeasureContext, Store
from scdd.evals.measure.walk import settled
from scdd.processes.base import make_process
from scdd.recipe import load as recipe
from scdd.samplers import ancestral, remdm
from scdd.samplers.base import Context, Sampler
from scdd.schedules.base import Schedule
from scdd.training.parallel import World

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """(Where it ran, the names it left behind)."""
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.S)
    names: dict[str, Any] = {"__name__": "example"}
    folder = tmp_path_factory.mktemp("example")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(code, "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    return folder, names


def test_the_example_trains_and_samples(example: tuple[Path, dict[str, Any]]) -> None:
    folder, names = example
    assert names["trainer"].step == 3
    lm = scdd.load(folder / "late", process=names["process"])
    assert repr(lm.process).endswith("Late(power=3.0))")
    start = lm.generate(2, steps=8, length=16, sampler=names["Patient"](1.0))
    assert {sample.sampler for sample in start} == {"patient"}
    assert all(sample.corrections == 0 for sample in start), "nothing visible moves while it is patient"


def test_its_checkpoints_are_not_taken_for_the_recipes(example: tuple[Path, dict[str, Any]]) -> None:
    """The recipe beside them names another schedule: sampling by that one would go wrong in silence."""
    folder, names = example
    for wanted in (None, "gidd"):
        with pytest.raises(UserError, match=r"trained with SCDD\(.*Late\(power=3.0\)\).*process="):
            scdd.load(folder / "late", process=wanted)
    trainer = build.trainer(names["spec"], folder / "late", World(), names["data"])
    with pytest.raises(UserError, match=r"trained with .*Late.*the same objective"):
        trainer.resume()


def test_an_objective_like_the_recipes_leaves_no_mark(tmp_path: Path) -> None:
    spec = recipe.load("nano", ["training.steps=1", "training.batch_size=2", "training.validate_batches=1"])
    data = build.corpus(spec)
    aim = build.objective(spec, data.tokenizer.vocab)
    build.trainer(spec, tmp_path, World(), data, aim).run()
    assert repr(scdd.load(tmp_path).process) == repr(make_process(spec.process, data.tokenizer.vocab))
    [meta] = tmp_path.rglob("meta.json")
    assert FOREIGN not in json.loads(meta.read_text(encoding="utf-8"))["extra"]


def test_it_is_measured_under_its_own_settings(example: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, names = example
    model = open_model(folder / "late", process=names["process"], device="cpu")
    context = MeasureContext(Store(tmp_path))
    hashes = [
        measure_samples(context, model, SamplingSpec(1, 3, length=8, changes={"sampler": names["Patient"](share)})).hash
        for share in (0.5, 0.5, 0.75)
    ]
    assert hashes[0] == hashes[1] != hashes[2]
    cell = measure_samples(context, model, SamplingSpec(1, 3, length=8, changes={"sampler": names["Patient"](0.5)}))
    assert (cell.settings["sampler"], cell.settings["options"]) == ("patient", {"share": 0.5})
    assert cell.made["paper"] is None


def test_a_sampler_is_known_by_its_settings(example: tuple[Path, dict[str, Any]]) -> None:
    """However it keeps them."""
    folder, names = example

    @dataclass(frozen=True, slots=True)
    class Slotted(Sampler):
        share: float
        name: ClassVar[str] = "mine"

        def step(self, z_t: torch.Tensor, ctx: Context) -> Transition:
            raise NotImplementedError

    class Plain(Sampler):
        name: ClassVar[str] = "mine"

        def __init__(self, share: float) -> None:
            self.share = share

        def step(self, z_t: torch.Tensor, ctx: Context) -> Transition:
            raise NotImplementedError

    lm = scdd.load(folder / "late", process=names["process"])
    for kind in (Slotted, Plain):
        found = settled(SamplingSpec(changes={"sampler": kind(0.25)}), lm)
        assert (found["sampler"], found["options"]) == ("mine", {"share": 0.25})


def test_a_schedule_is_known_by_its_settings() -> None:
    """Not by its address in memory, which would make every process another one."""

    class Bent(Schedule):
        def __init__(self, power: float) -> None:
            self.power = power
            self._cache = 0

        def at(self, t: torch.Tensor) -> Levels:
            raise NotImplementedError

    assert repr(Bent(2.0)) == "Bent(power=2.0)"


def test_a_sampler_that_derives_from_ours_has_a_name_of_its_own(example: tuple[Path, dict[str, Any]]) -> None:
    """Else its measurements would be filed as the built-in's, and have the paper's numbers beside them."""
    folder, names = example

    class Eager(ancestral.Ancestral):
        pass

    class Ancestral(ancestral.Ancestral):
        pass

    lm = scdd.load(folder / "late", process=names["process"])
    found = [
        settled(SamplingSpec(changes={"sampler": each}), lm) for each in (ancestral.Ancestral(), Eager(), Ancestral())
    ]
    assert [each["sampler"] for each in found] == ["ancestral", "eager", f"{__name__}.ancestral"]
    assert [remdm.Remdm().name, Eager().name] == ["remdm", "eager"]
