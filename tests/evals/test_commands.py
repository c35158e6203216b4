"""The verbs end to end on tiny checkpoints: tables, JSON, cells that are kept, the report, several ranks, refusals."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from scdd.cli.eval_systems import parse_system
from scdd.cli.main import main
from scdd.core.errors import UserError
from scdd.evals.measure.model import EvalModel, open_model, weights_hash
from scdd.evals.measure.specs import SamplingSpec
from scdd.evals.measure.store import Measurement, Store, digest, parsed, read_measurements
from scdd.evals.report.compare import against_table, best_of, by_budget, check_names, entropy_table, generation_table
from scdd.evals.report.page import html_of
from scdd.evals.report.paper import paper, printed
from scdd.evals.report.sections import gather
from scdd.evals.report.summaries import Point, frontier_table, pareto
from scdd.evals.report.tables import Entry, Table, number, with_error
from scdd.lm.model import LM
from scdd.models.heads import QualityHead
from tests import tiny

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def run(capsys: pytest.CaptureFixture[str], *command: str) -> list[dict[str, Any]]:
    assert main([*command, "--json"]) == 0, capsys.readouterr().err
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_likelihood(
    tmp_path: Path, text: Path, checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--out", str(tmp_path / "out"))
    models = [f"--model={name}={path}" for name, path in checkpoints.items()]
    cells = run(capsys, "eval", "likelihood", *models, "--text", str(text), "--looks", "2", *out)
    assert [cell["label"] for cell in cells] == ["scdd", "gidd", "mdlm", "ar"]
    for cell in cells:
        assert cell["result"]["bits_per_byte"] > 0
        assert cell["result"]["bytes"] == len(text.read_text())
        assert cell["made"]["recipe"].startswith("name: tiny")
        assert cell["made"]["versions"]["scdd"]
    assert cells[3]["result"]["error"] == 0.0
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.json")}
    again = run(capsys, "eval", "likelihood", *models, "--text", str(text), "--looks", "2", *out)
    assert again == cells
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.json")}, "not measured again"
    assert main(["eval", "likelihood", *models, "--text", str(text), "--looks", "2", *out]) == 0
    assert "| scdd |" in capsys.readouterr().out
    command = ("eval", "likelihood", models[0], "--text", str(text), "--steps", "50", *out, "--convention")
    [theirs] = run(capsys, *command, "authors")
    assert theirs["settings"]["convention"] == "authors"
    assert theirs["result"]["nats"] != cells[0]["result"]["nats"]
    assert main([*command, "reference"]) == 2
    assert capsys.readouterr().err == "error: --convention reference is not known: choose ours or authors.\n"


def test_compare_and_report(
    tmp_path: Path, text: Path, checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    out, judge = str(tmp_path / "out"), str(checkpoints["ar"])
    systems = [f"ours={checkpoints['scdd']}", f"re={checkpoints['mdlm']},sampler=remdm-cap,top_p=0.9"]
    compared = ("--judge", judge, "--steps", "2,4", "--num", "6", "--text", str(text), "--looks", "2")
    cells = run(capsys, "eval", "compare", *systems, *compared, "--out", out)
    assert [cell["kind"] for cell in cells] == ["likelihood"] * 2 + ["generation"] * 4
    for cell in cells[2:]:
        assert cell["result"]["nfe"]["value"] == cell["settings"]["nfe"], "equal evaluations"
    model = f"--model=ours={checkpoints['scdd']}"
    run(
        capsys,
        "eval",
        "generation",
        model,
        "--judge",
        judge,
        "--steps",
        "2",
        "--temperature",
        "0.7,1.0",
        "--num",
        "4",
        "--out",
        out,
    )
    run(capsys, "eval", "correction", model, "--judge", judge, "--steps", "2,4", "--num", "4", "--out", out)
    run(
        capsys,
        "eval",
        "recovery",
        model,
        "--k",
        "2,3",
        "--num",
        "3",
        "--last",
        "1",
        "--steps",
        "8",
        "--text",
        str(text),
        "--out",
        out,
    )
    page = tmp_path / "report.html"
    assert main(["report", out, "--out", str(page), "--title", "Ours & <theirs>"]) == 0
    shown, plain = page.read_text(), page.with_suffix(".md").read_text()
    for heading in (
        "Likelihood",
        "Generation",
        "Self-correction",
        "Recovery",
        "Typing errors",
        "Samples",
        "Provenance",
    ):
        assert f"<h2>{heading}</h2>" in shown
    assert shown.count("<svg") == 5
    assert "Ours &amp; &lt;theirs&gt;" in shown
    assert "#123456" not in shown
    assert "currentColor" in shown
    assert not re.search(r'(src|href)="(?!#)', shown), "nothing is fetched"
    assert "http" not in re.sub(
        r'(xmlns(:\w+)?|resource)="http[^"]*"|<!DOCTYPE[^>]*>|rdf:about="[^"]*"|http://purl[^<"]*', "", shown
    )
    ids = re.findall(r' id="([^"]+)"', shown)
    assert len(ids) == len(set(ids))
    for cell in read_measurements(out):
        if cell.kind not in ("samples",):
            assert cell.hash in plain
    assert "recipe" in plain.lower()
    assert "kind: dit" in plain


def test_default_texts_are_the_recipes_own(
    tmp_path: Path, checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(checkpoints["scdd"])
    cells = run(capsys, "eval", "likelihood", "--model", model, "--limit", "2", "--looks", "2", "--out", str(tmp_path))
    assert cells[0]["result"]["sequences"] == 2


@pytest.mark.parametrize(
    ("command", "cure"),
    [
        (["eval", "likelihood", "--model", "nowhere"], "no checkpoint folder"),
        (["eval", "likelihood", "--model", "a=x", "--model", "a=y"], "Two systems are called a"),
        (["eval", "likelihood", "--looks", "3"], "--looks is 3: give an even number"),
        (["eval", "likelihood"], "name a text (--text)"),
        (["eval", "likelihood", "--convention", "mine"], "ours or authors"),
        (["eval", "likelihood", "--corpus", "C4"], "LM1B or OWT"),
        (["eval", "generation", "--steps", "0"], "positive numbers"),
        (["eval", "generation", "--top-p", "x"], "list of positive numbers"),
        (["eval", "compare", "a=b,wrong=1"], "choose from"),
        (["eval", "compare", "a=b,top_p=much"], "is not a number"),
        (["eval", "compare", "a="], "names no checkpoint"),
        (["eval", "judge", "a=b", "--llm", "x"], "give two"),
        (["eval", "recovery", "--model", "bundled,top_p=0.8"], "would have no effect"),
        (["eval", "recovery", "--k", "x"], "--k x is no list"),
        (["eval", "recovery", "--last", "0"], "--last 0 is no list"),
        (["eval", "likelihood", "--out", "file.txt"], "file.txt is a file"),
        (["report", "nowhere"], "not a folder"),
        (["report", ".", "--out", "x.pdf"], "ends in .html"),
    ],
)
def test_refusals(
    command: list[str], cure: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("a text")
    assert main(command) == 2
    assert cure in capsys.readouterr().err


@pytest.mark.parametrize(
    ("last", "cure"),
    [("SCDD,length=99", "context holds"), ("SCDD,sampler=remdm-cap", "remdm"), ("SCDD,process=mdlm", "mdlm")],
)
def test_a_mistake_in_the_last_system_is_heard_first(
    last: str, cure: str, checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    systems = [f"good={checkpoints['mdlm']}", last.replace("SCDD", str(checkpoints["scdd"]))]
    command = ["eval", "compare", *systems, "--steps", "2", "--num", "1", "--out", str(tmp_path / "out")]
    assert main([*command, "--judge", str(checkpoints["ar"])]) == 2
    assert cure in capsys.readouterr().err.lower()
    assert not list(tmp_path.rglob("*.json")), "nothing was measured"


def test_an_empty_folder_has_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no measurements" in capsys.readouterr().err


def test_help_needs_no_torch() -> None:
    code = "import sys; from scdd.cli.main import main; main(['eval', '--help']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for verb in ("likelihood", "generation", "correction", "recovery", "repair", "zero-shot", "judge", "compare"):
        assert verb in done.stdout


@pytest.mark.dist
def test_two_ranks_measure_the_same(
    tmp_path: Path, text: Path, checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"m={checkpoints['scdd']}"
    asked = [
        ["eval", "likelihood", "--model", model, "--text", str(text), "--looks", "2"],
        ["eval", "correction", "--model", model, "--steps", "3", "--samples", "5", "--judge", str(checkpoints["ar"])],
    ]
    alone = [run(capsys, *command, "--out", str(tmp_path / "one"))[0] for command in asked]
    for command, expected in zip(asked, alone, strict=True):
        launched = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--standalone",
            "-m",
            "scdd",
            *command,
        ]
        done = subprocess.run(
            [*launched, "--out", str(tmp_path / "two"), "--json", "--device", "cpu"],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            timeout=200,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert len(lines) == 1, "only rank 0 prints"
        assert lines[0]["made"]["ranks"] == 2
        assert lines[0]["hash"] == expected["hash"]
        flat, also = _flat(lines[0]["result"]), _flat(expected["result"])
        assert flat.keys() == also.keys()
        for key, value in flat.items():
            assert value == pytest.approx(also[key], rel=1e-4, nan_ok=True), key


def _flat(tree: Any, path: str = "") -> dict[str, float]:
    if isinstance(tree, dict):
        return {k: v for key, node in tree.items() for k, v in _flat(node, f"{path}.{key}").items()}
    if isinstance(tree, list):
        return {k: v for i, node in enumerate(tree) for k, v in _flat(node, f"{path}.{i}").items()}
    return {path: tree} if isinstance(tree, int | float) else {}


# -- the parts ------------------------------------------------------------------------------------------------------


def test_a_cell_is_its_settings(tmp_path: Path, scdd: EvalModel) -> None:
    store, calls = Store(tmp_path), []

    def measure() -> dict[str, Any]:
        calls.append(1)
        return {"value": len(calls)}

    first = store.measurement("kind", scdd, {"a": 1, "b": (2, 3)}, measure)
    assert store.measurement("kind", scdd, {"b": [2, 3], "a": 1}, measure).result == first.result
    assert store.measurement("kind", scdd, {"a": 2, "b": [2, 3]}, measure).result == {"value": 2}
    assert store.measurement("other", scdd, {"a": 1, "b": [2, 3]}, measure).result == {"value": 3}
    assert first.hash == digest("kind", first.settings)
    assert first.path is not None
    first.path.write_text("{")
    with pytest.raises(Exception, match="delete it"):
        store.measurement("kind", scdd, {"a": 1, "b": (2, 3)}, measure)
    assert parsed(json.dumps(first.json()), tmp_path / "x").result == first.result


def test_identity_is_the_weights(checkpoints: dict[str, Path], scdd: EvalModel, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    os.symlink(checkpoints["scdd"], moved)
    assert open_model(moved, device="cpu").identity == scdd.identity
    assert open_model(checkpoints["scdd"], process="gidd", device="cpu").identity != scdd.identity


def _made(
    ppl: float, spread: float, label: str = "x", nfe: int = 8, name: str | None = None, entropy: float = 1.0
) -> Measurement:
    import math

    tokens = [100.0] * 50
    nats = [100 * math.log(ppl) + spread * (-1) ** i for i in range(50)]
    result = {
        **{"ppl": ppl, "error": ppl * spread / 700, "nats": nats, "tokens": tokens, "judge": "j"},
        **{"nfe": {"value": nfe}, "length": 9, "diversity": {"entropy": {"value": entropy, "error": 0.1}}},
    }
    return Measurement("generation", label, {"nfe": nfe, "num": 50}, result, {"paper": name})


def test_bold_is_significant() -> None:
    clear = {"a": _made(10.0, 1.0), "b": _made(12.0, 1.0), "c": _made(11.0, 1.0)}
    assert best_of(clear) == "a"
    assert best_of({"a": _made(10.0, 90.0), "b": _made(10.1, 90.0)}) is None
    assert best_of({"a": _made(10.0, 1.0)}) is None
    table = generation_table(
        {"a": {32: _made(60.0, 1.0, nfe=32, name="SCDD (p_u=0.2)")}, "b": {32: _made(90.0, 1.0, nfe=32)}}
    )
    assert table.rows[0][1].bold
    assert table.rows[0][1].paper == "74.5"
    assert table.rows[1][1].paper is None
    unfair = generation_table({"a": {8: _made(5.0, 1.0, nfe=9)}, "b": {8: _made(9.0, 1.0)}})
    assert not unfair.rows[0][1].bold
    assert any("left out" in note for note in unfair.notes)


def test_texts_that_repeat_themselves_win_nothing() -> None:
    table = generation_table(
        {
            "p2": {8: _made(2.0, 1.0, entropy=1.8), 16: _made(2.0, 1.0, nfe=16, entropy=4.4)},
            "a": {8: _made(9.0, 1.0, entropy=4.7), 16: _made(9.0, 1.0, nfe=16, entropy=4.7)},
            "b": {8: _made(11.0, 1.0, entropy=4.8), 16: _made(11.0, 1.0, nfe=16, entropy=4.8)},
        }
    )
    assert [row[1].bold for row in table.rows] == [False, True, False]
    assert [row[2].bold for row in table.rows] == [True, False, False]
    assert [row[1].text.endswith("‡") for row in table.rows] == [True, False, False]
    assert any(note.startswith("‡ p2: an entropy") for note in table.notes)
    pair = {"p2": {8: _made(2.0, 1.0, entropy=1.8)}, "a": {8: _made(9.0, 1.0, entropy=4.7)}}
    assert not any(row[1].bold for row in generation_table(pair).rows)


def test_one_system_against_the_others() -> None:
    grid = {
        "a": {8: _made(10.0, 1.0, "a"), 16: _made(9.0, 9.0, "a", nfe=16)},
        "b": {8: _made(12.5, 1.0, "b"), 16: _made(9.1, 9.0, "b", nfe=16)},
        "c": {8: _made(8.0, 1.0, "c")},
        "ar": {8: _made(2.0, 1.0, "ar", nfe=99)},
        "p2": {8: _made(2.0, 1.0, "p2", entropy=0.1)},
    }
    table = against_table(grid, "a")
    assert table.head == ["against", "8", "16"]
    assert [[e.text for e in row] for row in table.rows] == [["b", "−20.0 %**", "−1.1 %"], ["c", "+25.0 %**", "–"]]
    assert [[e.bold for e in row[1:]] for row in table.rows] == [[True, False], [False, False]]
    every = [cell for row in grid.values() for cell in row.values()]
    check_names(["a", "p2"], every)
    with pytest.raises(UserError, match=r"no system x to set against the others: choose one of a, b, c, ar, p2\."):
        check_names(["x"], every)


def test_the_papers_numbers() -> None:
    assert printed("tab:genppl-comparison", "SCDD (p_u=0.2)", "OWT", 1024) == "55.7"
    assert printed("tab:genppl-comparison", "ReMDM-Cap 0.01", "LM1B", 256) == "96.8"
    assert printed("tab:entropy-comparison", "MDLM", "OWT", 32) == "5.26"
    assert printed("tab:genppl-comparison", None, "OWT", 32) is None
    assert printed("tab:genppl-comparison", "MDLM", "OWT", 33) is None
    for label, table in paper().items():
        assert label.startswith("tab:")
        for row in table["rows"].values():
            if isinstance(row, dict):
                assert all(len(values) == len(table["steps"][corpus]) for corpus, values in row.items())
            else:
                assert len(row) == len(table.get("columns") or table["steps"])


def test_names_of_the_papers_systems(checkpoints: dict[str, Path], scdd: EvalModel) -> None:
    assert scdd.paper_name(None) == f"SCDD (p_u={scdd.lm.process.schedule.p_u:g})"  # type: ignore[union-attr]
    masked = open_model(checkpoints["mdlm"], device="cpu")
    assert [masked.paper_name(name) for name in (None, "remdm-conf", "p2")] == ["MDLM", "ReMDM-Confidence", None]
    assert masked.paper_name("remdm-cap", {"eta": 0.01}) == "ReMDM-Cap 0.01"
    assert masked.paper_name("remdm-cap", {"eta": 0.05}) is None
    assert (open_model(checkpoints["gidd"], device="cpu").paper_name(None) or "").startswith("GIDD+")


def test_weights_are_known_with_their_quality_head() -> None:
    def model(quality: QualityHead | None) -> LM:
        return LM(tiny.network(), None, tiny.tokenizer(), 40, quality=quality)

    heads = [QualityHead(32, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    assert len({weights_hash(model(quality)) for quality in (None, *heads, heads[0])}) == 3


def test_systems_are_read() -> None:
    system = parse_system("a=runs/x,sampler=remdm-cap,top_p=0.9,process=gidd")
    assert (system.label, system.source, system.process) == ("a", "runs/x", "gidd")
    assert system.spec(SamplingSpec(4, 8)) == SamplingSpec(4, 8, changes={"sampler": "remdm-cap", "top_p": 0.9})
    assert parse_system("runs/y/").label == "y"
    assert parse_system("bundled").source == "bundled"


def test_pareto() -> None:
    a, b, c, d = (Point("x", 8, 1.0, 1.0, ppl, entropy) for ppl, entropy in ((10, 2), (20, 3), (25, 2.5), (10, 2)))
    assert pareto([a, b, c]) == {a, b}
    assert pareto([a, d]) == {a}
    other = Point("x", 16, 1.0, 1.0, 1.0, 9.0)
    assert pareto([a, other]) == {a, other}, "other budgets do not count"
    assert pareto([a, b, c._replace(vocab="others")]) == {a, b, c._replace(vocab="others")}, "nor do other tokens"


def test_entropies_of_other_tokens_are_not_compared_in_silence() -> None:
    cells = gather([RESULTS / "bundled"])  # two vocabularies, in one table
    drawn = [one for one in cells if one.kind == "generation"]
    one_vocab = [one for one in drawn if one.label == "before"]
    assert frontier_table(drawn).head[-1] == "word entropy", "which is of one unit"
    for made in (frontier_table, lambda them: entropy_table(by_budget(them))):
        assert any("different vocabularies" in note for note in made(drawn).notes)
        assert not any("different vocabularies" in note for note in made(one_vocab).notes)


def test_tables() -> None:
    assert with_error(12.3456, 0.234) == "12.35 ± 0.23"
    assert with_error(1234.5, 67.0) == "1234 ± 67"
    assert number(float("nan")) == "–"
    table = Table("T", ["", "a"], [[Entry("x|y"), Entry("1", bold=True, paper="2")]], ["note"])
    assert "x\\|y" in table.markdown()
    assert "**1** [2]" in table.markdown()
    shown = html_of(table.markdown())
    assert '<td style="text-align:right"><strong>1</strong> <span class="paper">[2]</span></td>' in shown
    assert "<td>x|y</td>" in shown
