"""`evaluate` from Python: the same measurements as the command's, kept and found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from scdd.cli.main import main
from scdd.core import UserError
from scdd.evals.measure.evaluate import evaluate
from scdd.evals.measure.model import EvalModel, open_model
from scdd.evals.measure.specs import SamplingSpec
from scdd.evals.measure.store import read_measurements


def test_several_measures_at_once(tmp_path: Path, text: Path, checkpoints: dict[str, Path]) -> None:
    measures = ("likelihood", "generation", "correction", "recovery", "typos")
    asked = {"text": text, "reference_lm": checkpoints["ar"], "sampling": SamplingSpec(3, 2)}
    measured = evaluate(checkpoints["scdd"], measures, out=tmp_path, **asked)  # type: ignore[arg-type]
    assert [one.kind for one in measured] == list(measures)
    assert measured[0].made["text"] == "text.txt"
    again = evaluate(checkpoints["scdd"], measures, out=tmp_path, **asked)  # type: ignore[arg-type]
    assert [one.hash for one in again] == [one.hash for one in measured]
    assert [one.made["date"] for one in again] == [one.made["date"] for one in measured], "not made again"


def test_it_is_what_the_command_measures(tmp_path: Path, text: Path, checkpoints: dict[str, Path]) -> None:
    [ours] = evaluate(str(checkpoints["scdd"]), text=[str(text)], out=tmp_path / "a", progress=True)
    command = ["eval", "likelihood", "--model", str(checkpoints["scdd"]), "--text", str(text)]
    assert main([*command, "--out", str(tmp_path / "b")]) == 0
    [its] = read_measurements(tmp_path / "b")
    assert (ours.hash, ours.result) == (its.hash, its.result)


def test_a_loaded_model_is_taken_as_it_is(tmp_path: Path, scdd: EvalModel, timed: EvalModel) -> None:
    [of_lm] = evaluate(timed.lm, ("correction",), sampling=SamplingSpec(2, 2), out=tmp_path)
    [opened] = evaluate(timed, ("correction",), sampling=SamplingSpec(2, 2), out=tmp_path)
    assert (of_lm.label, of_lm.hash) == (opened.label, opened.hash)
    assert open_model("bundled").identity == open_model(None).identity


def test_repair_takes_its_folder_alone_or_in_a_list(tmp_path: Path, scdd: EvalModel) -> None:
    folder = tmp_path / "pairs"
    folder.mkdir()
    (folder / "src.txt").write_text("The rivr runs to the sea.\n", encoding="utf-8")
    (folder / "ref0.txt").write_text("The river runs to the sea.\n", encoding="utf-8")
    asked: list[str | list[str | Path]] = [str(folder), [folder]]
    one, same = (evaluate(scdd, "repair", text=text, out=tmp_path / "eval")[0] for text in asked)
    assert (one.made["text"], one.hash) == ("pairs", same.hash)


def test_refusals(tmp_path: Path, scdd: EvalModel, timed: EvalModel) -> None:
    with pytest.raises(UserError, match="no measure 'speed': choose from likelihood"):
        evaluate(scdd, ("speed",), out=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="needs a reference LM"):
        evaluate(scdd, ("generation",), out=tmp_path)
    for text in (None, [], ["a", "b"]):
        with pytest.raises(UserError, match=r"text for repair is one folder of src\.txt .*: name one"):
            evaluate("runs/none", "repair", text=text, out=tmp_path)
    with pytest.raises(UserError, match="says nothing of its data"):
        evaluate(timed, out=tmp_path)
