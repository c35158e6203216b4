"""Scales are data that is checked, parts are known by what they depend on, and finished ones are found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scdd.cli.main import main
from scdd.core.errors import UserError
from scdd.recipe.load import options_from
from scdd.reproduce.cost import estimate, own_rates, task_table
from scdd.reproduce.expand import all_parts
from scdd.reproduce.load import load_scale, shipped
from scdd.reproduce.options import Scale
from scdd.reproduce.parts import Choices, Part, chosen
from scdd.reproduce.records import Record, Records, compact, of_parts, parsed, thinned
from scdd.reproduce.run import group
from scdd.reproduce.tuning import candidates, choose
from scdd.reproduce.work import Place

SCALE = """
name: mini
about: one run, and little of it
seeds: [0]
corpus: {sources: [bundled], vocab_size: 300, valid_fraction: 0.1}
changes:
  - data.length=24
  - "model={kind: dit, size: custom, depth: 1, width: 16, heads: 2}"
  - training.steps=30
  - training.batch_size=4
  - training.warmup_steps=2
  - training.save_every=10
  - training.validate_every=30
  - training.validate_batches=1
  - training.log_every=10
trainings: {scdd: {recipe: nano}}
systems: {SCDD: {training: scdd}}
measurements:
  - {kind: likelihood, looks: 2, rows: 4}
  - {kind: correction, nfe: [2, 4], num: 2}
  - {kind: recovery, counts: [3], rows: 4}
  - {kind: zero-shot, data: sample, tasks: [piqa], passes: 2}
rates: {device: a core, unit: core-hours, train: 1000, read: 1000, draw: 1000, judge: 1000}
"""


def scale(*swaps: tuple[str, str]) -> Scale:
    text = SCALE
    for old, new in swaps:
        assert old in text
        text = text.replace(old, new)
    return options_from(Scale, text, "mini")


@pytest.mark.parametrize("name", shipped())
def test_shipped_scales_have_their_parts(name: str, tmp_path: Path) -> None:
    """Every part needs parts that come before it, and each has an id of its own."""
    parts = all_parts(load_scale(name), tmp_path, Choices(llm="judge"))
    before: set[str] = set()
    for part in parts:
        assert before.issuperset(part.needs), part.name
        before.add(part.name)
    assert len({part.id for part in parts}) == len(parts)
    kinds = {"train", "tune", "likelihood", "generation", "correction", "recovery", "zero-shot", "judge"}
    assert kinds <= {part.kind for part in parts}
    assert {"ours", "authors"} == {part.convention for part in parts}


def test_the_small_scale_holds_what_it_must() -> None:
    held = load_scale("small")
    assert held.seeds == (0, 1, 2)
    drawn = [one for one in held.measurements if one.kind == "generation"]
    budgets = {
        (part.convention, part.settings["nfe"])
        for part in all_parts(held, Path("x"))
        if part.kind == "generation" and part.system == "SCDD elbo 0.2" and not part.tuned
    }
    assert budgets == {(convention, nfe) for convention in ("ours", "authors") for nfe in (8, 32, 128, 1024)}
    assert {one.tuned for one in drawn} == {"no", "only"}
    assert {0.008, 0.015, 0.02} <= set(held.systems["ReMDM-cap"].tune["eta"])
    assert held.systems["P2-Self"].tune["eta"]
    parts = all_parts(held, Path("x"))
    trained = Counter(part.training for part in parts if part.kind == "train")
    few = {"ar": 1, "scdd-peak-0.25": 2, "scdd-peak-0.75": 2}
    assert len(trained) == 11
    assert all(count == few.get(name, 3) for name, count in trained.items())
    tasks = group(parts, Place(Path("x")), drop_weights=True)
    cost = estimate(tasks, held, parts, {})
    assert cost.seconds < 40 * 60, "half an hour, where two processes share the GPU"
    assert task_table(tasks, cost.rates, 1440.0).rows[-1][3].text == "2"
    order = [(task.turn, task.parts[-1].seed, -len(task.parts)) for task in tasks]
    assert order == sorted(order), "first seeds first, and of each what has most to do"
    assert len({turn for turn, _, _ in order}) == 2, "only the first seed, which is tuned, is waited for"
    tuned = [part for part in parts if part.stage != "tune"]
    assert len({task.turn for task in group(tuned, Place(Path("x")), drop_weights=True)}) == 1, "and then nobody"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("looks: 2", "look: 2", r"measurements.0.look is not a known key; did you mean looks"),
        ("kind: recovery", "kind: recovry", r"measurements.2.kind is \"recovry\".*did you mean recovery"),
        ("seeds: [0]", "seeds: []", "seeds is empty"),
        ("training: scdd", "training: gidd", r"systems.SCDD.training gidd is not one of scdd"),
        ("nfe: [2, 4]", "nfe: [0]", r"measurements.1.nfe.0 is 0"),
        ("nfe: [2, 4], num: 2", "nfe: [2], num: 2, tuned: also", "there is no tuning"),
        ("sources: [bundled]", "path: x, sources: [bundled]", "corpus needs a path or sources"),
        ("kind: zero-shot", "kind: generation, nfe: [2], num: 1", "measurements.3"),
    ],
)
def test_mistakes_in_a_scale_are_named(old: str, new: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        scale((old, new))


def test_mistakes_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "mini.yaml"
    own.write_text(SCALE.replace("sources: [bundled]", "path: nowhere, how: scdd prepare X"), encoding="utf-8")
    out = ["--out", str(tmp_path / "out")]
    for command, told in (
        (["tony"], "did you mean toy"),
        ([str(own), "--only", "nothing"], "--only nothing is no part's name"),
        ([str(own)], "nowhere holds no prepared text: make it (scdd prepare X)"),
        ([str(own), "--report"], "holds no records"),
        (["toy", "--minutes", "0"], "--minutes is 0: give more than 0"),
        (["toy", "--minutes", "-1"], "--minutes is -1"),
        (["toy", "--minutes", "nan"], "--minutes is nan"),
    ):
        assert main(["reproduce", *command, *out]) == 2
        assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def ids(parts: Sequence[Part]) -> dict[str, str]:
    return {part.name: part.id for part in parts}


def test_a_part_is_known_by_what_it_depends_on(tmp_path: Path) -> None:
    first = ids(all_parts(scale(), tmp_path / "a"))
    assert ids(all_parts(scale(), tmp_path / "b")) == first, "folders may move"
    assert ids(all_parts(scale(("save_every=10", "save_every=5")), tmp_path)) == first, (
        "how often is saved changes nothing"
    )
    longer = ids(all_parts(scale(("steps=30", "steps=40")), tmp_path))
    assert longer["data"] == first["data"]
    assert all(longer[name] != first[name] for name in first if name != "data")
    other = ids(all_parts(scale(("counts: [3]", "counts: [4]")), tmp_path))
    assert first.keys() ^ other.keys() == {f"measure/recovery/SCDD/seed-0/ours/k-{k}" for k in (3, 4)}
    toy = load_scale("toy")
    judged = [ids(all_parts(toy, tmp_path, Choices(reference=judge))) for judge in ("a/x.gguf", "b/x.gguf", "y")]
    assert judged[0] == judged[1] != judged[2], "a judge is known by its name"


def test_only_some_parts(tmp_path: Path) -> None:
    parts = all_parts(load_scale("toy"), tmp_path)
    names = [part.name for part in chosen(parts, ["tune/PRISM"])]
    trained = ["train/mdlm/seed-0", "train/judge/seed-100", "train/prism/seed-0"]
    assert names == ["data", *trained, "tune/PRISM"]
    run = chosen(parts, ["ar/seed-0"])
    assert {part.training for part in run} == {"ar", "judge", ""}
    assert {part.kind for part in run} == {"data", "train", "likelihood", "generation", "zero-shot"}
    assert chosen(parts, []) == parts


def finish(
    records: Records, part: Part, weights: str = "w", device: str = "cpu", more: dict[str, Any] | None = None
) -> None:
    """As if it were done, with the weights of whatever it needs called so."""
    used = {name: weights for name in part.needs if name.startswith("train/")}
    made = {"seconds": 2.0, "date": "2026", "weights": weights, "used": used, "device": device, "versions": {}}
    records.write(part, {"value": 1.0}, made | (more or {}))


def test_finished_parts_are_found(tmp_path: Path) -> None:
    records, parts = Records(tmp_path), all_parts(scale(), tmp_path)
    by_name = {part.name: part for part in parts}
    data, train, *measured = parts
    assert records.unfinished(parts) == parts
    finish(records, data)
    finish(records, train)
    assert records.unfinished(parts) == [train, *measured], "measuring needs the weights, and there are none"
    for part in measured:
        finish(records, part)
    assert records.unfinished(parts) == [], "nobody needs them any more"
    finish(records, train, "others")
    assert records.unfinished(parts) == [train, *measured], "these numbers are of other weights"
    finish(records, train)
    (records.folder / f"{measured[0].id}.json").unlink()
    assert records.unfinished(parts) == [train, measured[0]], "a CPU trains it to the same bits"
    finish(records, measured[1], device="a GPU")
    assert records.unfinished(parts) == [train, *measured[:2]], "a GPU does not"
    finish(records, measured[0])
    finish(records, measured[1])
    published = records.publish()
    for path in (tmp_path / "records").iterdir():
        path.unlink()
    assert records.unfinished(parts) == []
    assert of_parts(parts, records.read()).keys() == by_name.keys()
    assert published.read_text().count("\n") == len(parts)
    elsewhere = all_parts(scale(("rows: 4", "rows: 5")), tmp_path)
    kept = of_parts(elsewhere, records.read())
    assert kept.keys() == {"data", "train/scdd/seed-0", *(n for n in by_name if "correction" in n or "zero" in n)}
    assert of_parts(elsewhere, records.read(), by_name=True).keys() == by_name.keys()


def test_what_was_tuned_otherwise_is_measured_again(tmp_path: Path) -> None:
    records, parts = Records(tmp_path), chosen(all_parts(load_scale("toy"), tmp_path), ["ours-tuned"])
    for part in parts:
        finish(records, part, more={"chosen": {"eta": 1}})
        if part.kind == "tune":
            records.write(part, {"chosen": {"eta": 1}}, {"device": "cpu"})
    assert records.unfinished(parts) == []
    records.write(next(part for part in parts if part.name == "tune/PRISM"), {"chosen": {"eta": 2}}, {"device": "cpu"})
    again = [part for part in records.unfinished(parts) if part.kind != "train"]
    assert {part.system for part in again} == {"PRISM"}
    assert {part.seed for part in again} == {0, 1}


def test_damaged_records_are_named(tmp_path: Path) -> None:
    records, parts = Records(tmp_path), all_parts(scale(), tmp_path)
    finish(records, parts[0])
    [path] = (tmp_path / "records").iterdir()
    good: dict[str, Any] = json.loads(path.read_text())
    for text in ("{", "[]", json.dumps({**good, "format": 9}), json.dumps({**good, "result": 1})):
        with pytest.raises(UserError, match="is damaged"):
            parsed(text, "x")
    assert isinstance(parsed(json.dumps(good), "x"), Record)


def test_records_hold_numbers_and_no_texts() -> None:
    result = {
        **{
            "texts": ["a"] * 3,
            "nats": [1.0] * 64,
            "ppl": 3.0,
            "samples": ["s" * 900, "t"],
            "inside": {"before": ["b"]},
        },
        **{"cumulative": [i / 100 for i in range(1, 101)], "few": [1, 2]},
    }
    kept = compact(result)
    assert kept.keys() == {"ppl", "inside", "cumulative", "few", "sample"}
    assert kept["inside"] == {}
    assert len(kept["sample"]) == 600
    assert kept["cumulative"] == pytest.approx([k / 32 for k in range(33)]), "a straight line stays one"
    assert thinned([1.0]) == pytest.approx([k / 32 for k in range(33)])
    assert thinned([]) == [0.0] * 33


def test_tuning_takes_the_best_that_stays_varied() -> None:
    assert candidates({"t": [1, 2]}, {"eta": [3, 4]}) == [{"t": t, "eta": e} for t in (1, 2) for e in (3, 4)]
    tried = [
        {"values": name, "ppl": ppl, "entropy": entropy}
        for name, ppl, entropy in (
            ("dull", 2.0, 1.0),
            ("good", 50.0, 4.95),
            ("plain", 60.0, 5.0),
            ("as good", 50.0, 5.2),
        )
    ]
    best = choose(tried, 5.0, 0.1)
    assert best is not None
    assert best["values"] == "good"
    assert choose(tried[:1], 5.0, 0.1) is None


def test_cost_follows_the_work_and_the_folders_own_speed(tmp_path: Path) -> None:
    plan = scale()
    parts = all_parts(plan, tmp_path)
    tasks = group(parts, Place(tmp_path))
    assert [task.name for task in tasks] == ["data", "train/scdd/seed-0", "measure/scdd/seed-0"]
    work = {"train": 30 * 4 * 24, "read": 4 * 24 * 2 + 2 * 3 * 24 * 2, "draw": 2 * 2 * 24 * (2 + 4) + 4 * 24}
    judged = 3 * 2 * 24 * 2 + 3 * 4 * 24
    cost = estimate(tasks, plan, parts, {}, workers=2)
    assert cost.seconds == pytest.approx(
        2 * plan.rates.start + 3 * plan.rates.task + (sum(work.values()) + judged) / 1000
    )
    assert sum(map(cost.rates.of, tasks)) == pytest.approx(cost.seconds - 2 * plan.rates.start)
    drawn = next(part for part in parts if part.name.endswith("correction/SCDD/seed-0/ours/nfe-4"))
    slow = own_rates(replace(plan.rates, step=10.0), parts, {})
    assert slow.part(drawn) == pytest.approx(2 * 4 * 10 + 3 * 2 * 24 / 1000), "two walks, however few the texts"
    train = parts[1]
    done = Record({**vars(train), "settings": {}}, {}, {"seconds": train.work["train"] / 500})
    slower = estimate(tasks, plan, parts, {train.id: done}, workers=2)
    assert slower.rates.measured
    assert slower.seconds - cost.seconds == pytest.approx(train.work["train"] / 1000), "half as fast as was said"
    assert replace(train, work={}).work == {}


def test_what_shares_weights_is_one_task_and_first_seeds_come_first(tmp_path: Path) -> None:
    """Train, measure, drop: each task leaves nothing behind that a later one needs but numbers."""
    parts = all_parts(load_scale("toy"), tmp_path, Choices(llm="judge"))
    tasks = group(parts, Place(tmp_path), drop_weights=True)
    assert sorted(part.name for task in tasks for part in task.parts) == sorted(part.name for part in parts)
    done: set[str] = set()
    for task in tasks:
        for part in task.parts:
            kept = {part.name for part in task.parts if part.kind == "train"} | {"train/judge/seed-100"}
            assert all(need in kept for need in part.needs if need.startswith("train/")), part.name
            assert done.issuperset(part.needs), part.name
            done.add(part.name)
    assert [task.name for task in tasks][:4] == [
        "data", "judge/seed-100", "scdd/seed-0+gidd+/seed-0", "mdlm/seed-0+prism/seed-0"
    ]  # fmt: skip
    assert [part.seed for task in tasks[2:] for part in task.parts] == sorted(
        p.seed for t in tasks[2:] for p in t.parts
    )
    assert tasks[1].drop == ()
    assert tasks[3].drop == ("mdlm/seed-0", "prism/seed-0")
    rates = own_rates(load_scale("toy").rates, parts, {})
    pieces = [row[3].text for row in task_table(tasks, rates, rates.start + rates.of(tasks[2])).rows]
    assert pieces[:4] == ["1", "1", "2", "3"], "each of the last two fills a piece"
