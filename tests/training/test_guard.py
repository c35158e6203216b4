"""When a loss or a gradient is not finite, or the loss leaps: the step is left out, or the run goes back and on."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scdd.assemble import training as build
from scdd.core.errors import UserError
from scdd.recipe.load import load
from scdd.training.guard import Guard
from scdd.training.options import GuardOptions
from scdd.training.parallel import World
from scdd.training.trainer import Trainer

from .conftest import Launch, curve, said, weights

SHORT = ["training.steps=16", "training.validate_every=16"]


def trainer_of(recipe_file: Path, run: Path, *changes: str) -> Trainer:
    spec = load(recipe_file, changes)
    return build.trainer(spec, run, World(), build.corpus(spec))


def events(out: Path) -> list[tuple[int, str]]:
    return [(int(line["step"]), str(line["event"])) for line in curve(out) if "event" in line]


def same(a: Path, b: Path) -> None:
    one, two = weights(a), weights(b)
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


@pytest.mark.parametrize("muon", ["null", "0.02"])
def test_a_step_that_is_not_finite_changes_nothing_but_its_number(muon: str, recipe_file: Path, tmp_path: Path) -> None:
    """With accumulation, the second of four pieces being bad; nothing waits for the device."""
    changes = [f"training.muon={muon}", "training.micro_batch_size=2"]
    trainer = trainer_of(recipe_file, tmp_path / "run", *changes)
    batches = iter(trainer.loader)
    for _ in range(3):
        trainer.advance(next(batches))
    seen = trainer.objective.state_dict()["seen"].clone()
    before = {name: tensor.clone() for name, tensor in trainer.state().items() if not name.startswith("objective.")}
    forward = trainer.parallel.forward

    def spoilt(tokens: Any, documents: Any, learnt: Any, part: Any) -> Any:
        loss = forward(tokens, documents, learnt, part)
        if part.first != 2:
            return loss
        trainer.objective.times.density._fresh += torch.inf  # type: ignore[attr-defined]
        return loss._replace(total=loss.total + torch.inf, nats=loss.nats + torch.inf)

    trainer.parallel.forward = spoilt  # type: ignore[method-assign]
    trainer.advance(next(batches))
    after = trainer.state()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    assert torch.isfinite(after["objective.seen"]).all()
    assert (after["objective.seen"] <= seen).all(), "what was seen of it is forgotten, too"
    assert trainer.step == 4
    trainer.parallel.forward = forward  # type: ignore[method-assign]
    trainer.advance(next(batches))
    assert not torch.equal(before["model.network.output.weight"], trainer.state()["model.network.output.weight"])
    assert all(torch.isfinite(tensor).all() for tensor in trainer.state().values())


@pytest.mark.dist
def test_one_rank_s_bad_loss_is_left_out_on_all_and_told(launch: Launch, tmp_path: Path) -> None:
    """Infinite on the second rank alone, with a gradient that is finite: ranks must not part."""
    spoil = {"what": "loss", "batches": [6], "ranks": [1]}
    alone = {**spoil, "ranks": [0]}
    assert launch(tmp_path / "one", 1, SHORT, call="spoilt", spoil=alone) == [0]
    told = [(7, "the loss is not finite, step left out")]
    for kind in ("ddp", "fsdp"):
        out = tmp_path / kind
        assert launch(out, 2, [*SHORT, f"training.parallel={kind}"], call="spoilt", spoil=spoil) == [0, 0], kind
        assert events(out) == events(tmp_path / "one") == told
        assert "step 7: the loss is not finite, step left out" in said(tmp_path, out)
        one = weights(tmp_path / "one")
        for name, value in weights(out).items():
            torch.testing.assert_close(value, one[name], atol=2e-4, rtol=2e-3, msg=f"{kind}: {name}")


def test_a_roll_back_is_the_run_that_never_saw_those_batches(launch: Launch, recipe_file: Path, tmp_path: Path) -> None:
    """Batches 7, 8, 9 are bad: back to step 5, on with batch 10. Bit for bit, killed or not, looked at often or not."""
    sets = [*SHORT, "training.guard.not_finite=3"]
    how = {"call": "spoilt", "spoil": {"what": "gradient", "batches": [7, 8, 9]}}
    assert launch(tmp_path / "run", 1, [*sets, "training.keep_last=9"], **how) == [0]
    [(step, text)] = events(tmp_path / "run")
    assert step == 5, "what came after is forgotten"
    assert "rolled back to here, and batches up to that of step 10 are skipped, 5 in all" in text
    assert [line["step"] for line in curve(tmp_path / "run") if "loss" in line] == [3, 6, 9, 12, 15, 16]
    facts = json.loads((tmp_path / "run/checkpoints/step-00000010/resume/facts.json").read_text())
    assert facts["guard"] == {"skipped": 5, "rollbacks": 1, "bad": 0, "high": 0, "losses": []}
    assert facts["loader"]["cursor"] == (10 + 5) * 8

    # never saw them
    shutil.copytree(tmp_path / "run", tmp_path / "by-hand")
    for later in sorted((tmp_path / "by-hand/checkpoints").glob("step-*"))[1:]:
        shutil.rmtree(later)
    trainer = trainer_of(recipe_file, tmp_path / "by-hand", *SHORT)
    trainer.resume()
    trainer.guard.skipped, trainer.loader.cursor = 5, 10 * 8
    trainer.run()
    same(tmp_path / "by-hand", tmp_path / "run")

    # killed as it rolls back, and after the next checkpoint
    out = tmp_path / "killed"
    for file in ("not-finite-step-7.safetensors", "checkpoints/step-00000010/meta.json"):
        assert launch(out, 1, sets, signal=[str(out / file), int(signal.SIGKILL)], **how) == [-signal.SIGKILL]
    assert launch(out, 1, [*sets, "training.log_every=7"], **how) == [0]
    assert f"resuming from {out / 'checkpoints/step-00000010'}" in said(tmp_path, out)
    same(out, tmp_path / "run")


@pytest.mark.dist
def test_ranks_roll_back_together(launch: Launch, tmp_path: Path) -> None:
    sets = [*SHORT, "training.guard={spike: 30, spike_steps: 2, window: 10}"]
    how = {"call": "spoilt", "spoil": {"what": "leap", "batches": [8, 9], "ranks": [1]}}
    assert launch(tmp_path / "run", 2, [*sets, "training.parallel=fsdp"], **how) == [0, 0]
    [(step, text)] = events(tmp_path / "run")
    assert step == 5
    assert "the loss was a spike 2 times" in text
    assert "from step 9 on" in text
    assert (tmp_path / "run/spike-step-8.safetensors").is_file()


def test_a_run_goes_back_only_so_often(launch: Launch, tmp_path: Path) -> None:
    out, sets = tmp_path / "run", [*SHORT, "training.guard={not_finite: 2, rollbacks: 1}"]
    how = {"call": "spoilt", "spoil": {"what": "loss", "batches": list(range(7, 40))}}
    assert launch(out, 1, sets, **how) == [2]
    assert "guard.rollbacks allows no more than 1" in said(tmp_path, out)
    assert "error: training.learning_rate: the loss or its gradient was NaN or infinite 2 times from step 6 on" in said(
        tmp_path, out
    )
    assert "Traceback" not in said(tmp_path, out)
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["step-00000005"]
    # The cure is allowed: how trouble is met may change when a run goes on.
    calm = {"call": "spoilt", "spoil": {"what": "loss", "batches": []}}
    assert launch(out, 1, [*SHORT, "training.guard.rollbacks=5"], **calm) == [0]


# -- what is a spike -----------------------------------------------------------------------------------------------------


class Still:
    """A trainer that is only told things."""

    def __init__(self, changes_at: int = 0) -> None:
        self.log, self.told = self, []  # type: ignore[var-annotated]
        self.objective, self.changes_at = self, changes_at

    def text(self, step: int, name: str, text: str) -> None:
        self.told.append((step, text))


def weighed(guard: Guard, losses: list[float], norm: float = 1.0, changes_at: int = 0) -> list[Any]:
    still: Any = Still(changes_at)
    return [guard._weigh(still, loss, norm) for loss in losses]


def guard(**options: Any) -> Guard:
    return Guard(GuardOptions(**options), torch.device("cpu"), 4)


def test_spikes_are_losses_far_above_the_median_several_times_running() -> None:
    watching = guard(spike=6.0, spike_steps=3, window=8)
    steady = [4.0, 4.2, 3.8, 4.1, 3.9, 4.0, 4.3, 3.7]
    assert weighed(watching, steady) == [None] * 8
    # median 4.0, median absolute deviation 0.15: spikes are above 4.9
    assert weighed(watching, [5.5, 5.5, 4.8, 5.5, 5.5]) == [None] * 5, "never three running"
    assert watching.high == 2
    assert list(watching.losses)[-1] == 4.8, "spikes do not move the median"
    [found] = weighed(watching, [5.5])
    assert (found.first, found.last, found.kind) == (11, 13, "spike")
    assert weighed(guard(window=8, spike_steps=1), [*steady, 1e9]) == [None] * 9, "off unless asked for"
    assert weighed(guard(spike=6.0, spike_steps=1, window=8), [4.0, 4.0, 4.0, 99.0]) == [None] * 4, "too few to tell"


def test_a_loss_of_another_kind_is_no_spike() -> None:
    """Which begins with a batch (objective.ar_steps), whatever was skipped before it; from then on spikes are above its own median."""
    steady, options = [4.0, 4.2, 3.8, 4.1, 3.9, 4.0, 4.3, 3.7], {"spike": 6.0, "spike_steps": 1, "window": 8}
    above = [3 + loss for loss in steady]
    for skipped in (0, 3):
        watching = guard(**options)
        watching.skipped = skipped
        assert weighed(watching, [*steady, *above], changes_at=8 + skipped) == [None] * 16
        assert list(watching.losses) == above
        [found] = weighed(watching, [9.0], changes_at=8 + skipped)
        assert found.kind == "spike"
    [found] = [each for each in weighed(guard(**options), [*steady, above[0]]) if each]
    assert found.kind == "spike", "the same without such a batch"


def test_bad_steps_must_follow_each_other() -> None:
    watching = guard(not_finite=3)
    nan = float("nan")
    assert weighed(watching, [nan, nan, 4.0, nan, float("inf")]) == [None] * 5
    assert watching.in_doubt
    [found] = weighed(watching, [4.0], norm=nan)
    assert (found.first, found.last, found.kind) == (3, 5, "not-finite")


def test_what_a_checkpoint_says_is_checked() -> None:
    full = guard(spike=6.0, window=8)
    weighed(full, [4.0, 4.2, 3.8, 99.0])
    again = guard(spike=6.0, window=8)
    again.load(json.loads(json.dumps(full.state())), 4, Path("step"))
    assert again.state() == full.state()
    assert again.seen == 4
    again.load(None, 2, Path("step"))  # of a version that had no guard
    assert again.state() == guard().state()
    for wrong in ([], {"skipped": -1}, {"rollbacks": 1.5}, {"losses": "x"}, {"losses": [None]}, {"bad": True}):
        with pytest.raises(UserError, match="step is damaged"):
            again.load(wrong, 0, Path("step"))


def test_no_checkpoint_is_made_in_the_middle_of_trouble(recipe_file: Path, tmp_path: Path) -> None:
    trainer = trainer_of(
        recipe_file, tmp_path / "run", "training.save_every=2", "training.steps=6", "training.log_every=1"
    )
    forward = trainer.parallel.forward

    def spoilt(tokens: Any, documents: Any, learnt: Any, part: Any) -> Any:
        loss = forward(tokens, documents, learnt, part)
        return loss._replace(total=loss.total * torch.nan) if part.step in (1, 3) else loss

    trainer.parallel.forward = spoilt  # type: ignore[method-assign]
    trainer.options = replace(trainer.options, keep_last=9)
    trainer.run()
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000006"]
    assert all("gradient_norm" in line for line in curve(tmp_path / "run") if "loss" in line)
    assert "NaN" not in (tmp_path / "run/metrics.jsonl").read_text(), "which is no JSON"
    assert [step for step, _ in events(tmp_path / "run")] == [2, 4]
