"""Every benchmark runs at toy size on a CPU and prints its table, with numbers in it that are finite."""

from __future__ import annotations

import json
import math
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import scdd
from scdd.bundle.folder import read
from scdd.cli.main import main
from tests import tiny
from tests.docs.pages import tool

FOLDER = Path(__file__).parents[2] / "benchmarks"
SHARED = {"common", "output"}  # what the benchmarks import, no benchmark itself
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?")
Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """run(name, *flags) → what the script prints, in this process: torch is imported already."""
    monkeypatch.syspath_prepend(str(FOLDER))
    modules, precision = set(sys.modules), torch.get_float32_matmul_precision()

    def start(name: str, *flags: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, flags)])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        out = capsys.readouterr().out
        assert not re.search(r"\b(nan|inf)\b", out, re.I), out
        return out

    yield start
    torch.set_float32_matmul_precision(precision)
    for name in {path.stem for path in FOLDER.glob("*.py")} & set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join([tiny.TEXT * 3] * 40), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def shards(text: Path) -> Path:
    out, held = text.parent / "shards", text.with_name("held.txt")
    held.write_text(text.read_text(encoding="utf-8"), encoding="utf-8")  # the same file would be left out of training
    command = ["prepare", str(text), "--valid", str(held), "--out", str(out)]
    assert main([*command, "--train-tokenizer", "300", "--workers", "1"]) == 0
    return out


def row(out: str, label: str) -> list[float]:
    """The numbers of the line that begins with a label; there must be some."""
    lines = [line for line in out.splitlines() if line.strip(" |").startswith(label)]
    assert lines, f"no line begins with {label!r} in\n{out}"
    numbers = [float(found.replace(",", "")) for found in NUMBER.findall(lines[0].partition(label)[2])]
    assert numbers, lines[0]
    assert all(map(math.isfinite, numbers))
    return numbers


def finite(path: Path) -> Any:
    """What a benchmark wrote as JSON, which knows no NaN here."""

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} in {path}")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


TOY = ("--device", "cpu", "--repeats", 2, "--size", "nano", "--vocab", 65, "--length", 16, "--batch", 2)


def test_train_step(run: Run, tmp_path: Path) -> None:
    out = run("train_step", *TOY, "--json", tmp_path / "out.json")
    for label in (
        "plain cross-entropy",
        "SCDD p_u 0.2, T = 1000",
        "GIDD p_u 0.2",
        "MDLM, T = 1000",
        "MDLM, T = 1000, clean",
    ):
        assert row(out, label)
    assert row(out, "scdd_over_plain:")[0] > 0
    assert len(finite(tmp_path / "out.json")["results"]) == 7


def test_train_step_of_a_decoder(run: Run) -> None:
    sizes = ("--vocab", 65, "--length", 16, "--batch", 3, "--micro", 2, "--depth", 1)
    out = run("train_step", "--network", "llama", "--device", "cpu", "--repeats", 2, *sizes, "--only", "MDLM")
    assert row(out, "MDLM, T = 1000")
    assert "smollm2-135m" in out


def test_denoise_step(run: Run, tmp_path: Path) -> None:
    out = run("denoise_step", *TOY, "--json", tmp_path / "out.json")
    for label in ("bare forward, with the head", "denoising step, top-p", "denoising step, no filter"):
        assert row(out, label)
    assert all(line["median_ms"] > 0 for line in finite(tmp_path / "out.json")["results"])


def test_fp8_linear(run: Run, tmp_path: Path) -> None:
    sizes = ("--networks", "nano", "--tokens", 32)
    out = run("fp8_linear", "--device", "cpu", "--repeats", 2, *sizes, "--json", tmp_path / "out.json")
    for label in ("nano: bf16", "nano: FP8", "nano: FP8, dW in bf16", "nano: products alone, FP8", "nano: casts alone"):
        assert row(out, label)
    assert finite(tmp_path / "out.json")["failed"] == []


def test_elbo_op(run: Run, tmp_path: Path) -> None:
    sizes = ("--rows", "16,32", "--vocab", 65, "--width", 8, "--checked", 16)
    out = run("elbo_op", "--device", "cpu", "--repeats", 2, *sizes, "--json", tmp_path / "out.json")
    for label in ("op, N = 16", "op, N = 32", "dense reference"):
        assert row(out, label)
    errors = finite(tmp_path / "out.json")["gradient_errors"]
    assert all(0 <= error < 1e-3 for error in errors.values())


def test_sample(run: Run) -> None:
    out = run("sample", *TOY, "--steps", 3)
    assert row(out, "frames_off")[0] > 0
    assert row(out, "frames_on")[0] > 0


def test_nelbo_variance(run: Run, text: Path, tmp_path: Path) -> None:
    model = tiny.checkpoint(tmp_path / "model")
    sizes = ("--rows", 4, "--looks", 2, "--repeats", 3, "--device", "cpu")
    out = run("nelbo_variance", model, "--text", text, *sizes)
    for label in ("authors' convention", "exact bound, uniform", "ours"):
        assert row(out, label)[-1] > 0


def test_row_length(run: Run, text: Path, tmp_path: Path) -> None:
    """What is seen is what a line says, whatever window the model itself has; a window as wide as the row changes no bit."""
    assert main(["convert", "bundled", "--attention-window", "5", "--out", str(tmp_path / "near")]) == 0
    sizes = ("--row", 32, "--cuts", 2, "--windows", "7,40", "--rows", 2, "--device", "cpu", "--dtype", "float32")
    found: list[dict[str, float]] = []
    for model in ((), ("--model", tmp_path / "near")):
        run("row_length", text, *model, *sizes, "--json", tmp_path / "found.json")
        lines = json.loads((tmp_path / "found.json").read_text())
        found.append({each["way"]: each["nats"] for each in lines if each["masks"] == 0.4})
    usual, near = found
    assert len(usual) == 6
    assert usual["one row of 30, all of it seen"] == usual["… 40 to either side alone"]
    assert usual["one row of 30, all of it seen"] != usual["… 7 to either side alone"]
    for way, nats in usual.items():  # the converted one's 8 bits were rounded once more
        assert near[way] == pytest.approx(nats, abs=1e-3), way
    out = run("row_length", text, "--bound", 2, *sizes)
    assert row(out, "difference")[1] > 0


def test_recovery_limit(run: Run, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One pass is what `scdd eval recovery` measures; whoever is told where the wrong tokens are restores as many or more."""
    model, found = tiny.checkpoint(tmp_path / "model"), tmp_path / "found.json"
    sizes = ("--k", "6", "--length", "32", "--num", "8", "--threshold", "0.3")
    run("recovery_limit", text, "--model", model, *sizes, "--parts", 2, "--json", found)
    one_pass, two_looks, told, *others = json.loads(found.read_text())
    assert len(others) == 5
    assert told["recovered"] >= one_pass["recovered"]
    assert one_pass["damaged"] > 0
    assert two_looks["damaged"] <= one_pass["damaged"], "nothing else is looked at again"
    assert {each["damaged"] for each in (told, *others)} == {0}
    measure = ("--model", str(model), "--text", str(text), "--no-typos", "--last", "1", "--out", str(tmp_path / "eval"))
    assert main(["eval", "recovery", *measure, *sizes, "--json", "--quiet"]) == 0
    lines = [json.loads(line)["result"] for line in capsys.readouterr().out.splitlines()]
    [measured] = [each for each in lines if each["damage"]["value"] == one_pass["damaged"]]
    assert measured["recovery"]["value"] == one_pass["recovered"]


def test_unchanged(run: Run, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    run("unchanged", "--model", tiny.checkpoint(tmp_path / "model"), "--rounds", 1, "--json", found)
    for line in json.loads(found.read_text()):
        assert 0 < line["changed"]["evaluations"] <= line["all"]["evaluations"]
    assert line["changed"]["evaluations"] < line["all"]["evaluations"]


def test_packing(run: Run, tmp_path: Path) -> None:
    """It stops by itself where texts differ."""
    found, model = tmp_path / "found.json", tiny.checkpoint(tmp_path / "model")
    out = run(
        "packing", "--model", model, "--lengths", 9, "--steps", 8, "--rounds", 1, "--dtype", "float32", "--json", found
    )
    assert "first" in out
    [line] = json.loads(found.read_text())
    assert line["texts"] == 8
    assert min(line["apart"]["peak_mib"], line["together"]["first"], line["together"]["second"]) > 0


def test_prepare(run: Run, text: Path) -> None:
    sizes = ("--length", 16, "--batch-size", 4, "--batches", 3)
    out = run("prepare", text, "--workers", 1, 2, "--train-tokenizer", 300, *sizes)
    for label in ("1 |", "2 |", "wrap, prefetch 0", "documents, prefetch 4"):
        assert row(out, label)


LEARNER = ("--device", "cpu", "--depth", 1, "--width", 16, "--length", 16, "--batch", 4)


def test_loader(run: Run, shards: Path, tmp_path: Path) -> None:
    sizes = ("--steps", 2, "--turns", 2, "--warm", 1, "--batches", 3)
    out = run("loader", shards, *LEARNER, *sizes, "--json", tmp_path / "out.json")
    assert row(out, "ratio:")[0] > 0
    assert finite(tmp_path / "out.json")["loader_tokens_per_second"] > 0


def test_time_sampling(run: Run, shards: Path, tmp_path: Path) -> None:
    sizes = ("--seconds", 0.1, "--warm", 1, "--timed", 2, "--valid", 4, "--looks", 2, "--looks-at", 0.5, 1.0)
    variants = "uniform,adaptive,dynamic-then-elbo,gidd+,mdlm"
    out = run("time_sampling", shards, *LEARNER, *sizes, "--variants", variants, "--out", tmp_path)
    for name in variants.split(","):
        assert row(out, f"{name}:")
    curves = finite(tmp_path / "time_sampling.json")["curves"]
    assert [len(points) for points in curves.values()] == [2] * 5


def test_speedrun(run: Run, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = (
        "data.length=16", "training.batch_size=4", "training.compile=false", "training.precision=float32",
        "training.warmup_steps=1", "objective.ar_steps=2",
        "model={kind: llama, size: custom, depth: 1, width: 16, heads: 2, kv_heads: 2, mlp_width: 16, qk_norm: true, tied: false}",
    )  # fmt: skip
    flags = [
        shards,
        "--seconds",
        0.5,
        "--device",
        "cpu",
        "--note",
        "a | try",
        *(f for s in small for f in ("--set", s)),
    ]
    first = tmp_path / "first.json"
    out = run("speedrun", *flags, "--rows", 6, "--out", tmp_path / "run", "--json", first)
    assert re.search(r"step (\d+)/\1 ", out)  # the schedule's end and the last step are the same
    record = next(line for line in out.splitlines() if line.startswith("| "))
    assert float(record.split("|")[1]) <= 5.0  # seconds, of half a one
    assert scdd.load(tmp_path / "run").generate(steps=1, length=4)
    trained = read(tmp_path / "run")
    assert yaml.safe_load(trained.recipe)["training"]["steps"] == trained.step
    out = run("speedrun", *flags, "--rows", 6, "--out", tmp_path / "again", "--against", first)
    mean, error, *_ = row(out, "NELBO beside first:")
    assert abs(mean) < 1
    assert 0 <= error < 1
    assert finite(first)["steps"] == trained.step - 1
    for wrong in (tmp_path / "nobody.json", tmp_path / "run"):
        with pytest.raises(SystemExit, match="is no file that another run's"):
            run("speedrun", *flags, "--out", tmp_path / "fewer", "--against", wrong)
    with pytest.raises(SystemExit, match="other rows were measured there"):
        run("speedrun", *flags, "--rows", 5, "--out", tmp_path / "fewer", "--against", first)
    assert not (tmp_path / "fewer").exists(), "told before anything is trained"
    for more, why in ((["--rows", 6], "the data is another"), ([], "the data is another")):
        with pytest.raises(SystemExit, match=why):
            run("speedrun", *flags, *more, "--out", tmp_path / "other", "--write")
    with pytest.raises(SystemExit, match="exists: choose a new folder"):
        run("speedrun", *flags, "--out", tmp_path / "run")
    with pytest.raises(SystemExit, match="begins with random weights"):
        run("speedrun", *flags, "--out", tmp_path / "other", "--set", "training.start_from=bundled", "--write")
    assert not (tmp_path / "other").exists()
    page, own = tmp_path / "page.md", (FOLDER.parent / "docs" / "speedrun.md").read_text(encoding="utf-8")
    page.write_text(own, encoding="utf-8")
    runpy.run_path(str(FOLDER / "speedrun.py"))["record"](page, record)
    assert page.read_text(encoding="utf-8").replace(f"{record}\n", "") == own
    before = page.read_text(encoding="utf-8").partition(record)[0].rstrip().splitlines()[-1]
    assert before == [line for line in own.splitlines() if "NVIDIA H200" in line][-1]


@pytest.mark.parametrize("which", [("--size", "nano", "--vocab", 300), ()])
def test_step_kernels(run: Run, which: tuple[object, ...], tmp_path: Path) -> None:
    """What is listed adds up; without a size it is the bundled model."""
    file = tmp_path / "kernels.json"
    out = run("step_kernels", *which, "--rows", 2, "--length", 8, "--steps", 2, "--repeats", 1, "--json", file)
    found = finite(file)
    assert sum(spent for _, _, spent in found["kernels"]) == pytest.approx(found["kernels_us"])
    assert 0 < found["products_us"] < found["kernels_us"]
    assert "a step by the clock" in out


@pytest.mark.parametrize(("lone", "apart"), [(False, None), (True, 0), (True, 1)])
def test_serve(run: Run, tmp_path: Path, lone: bool, apart: int | None) -> None:
    model, file = tiny.checkpoint(tmp_path / "model"), tmp_path / "out.json"
    sizes = ("--model", model, "--length", 8, "--steps", 2, "--clients", 2, "--requests", 4, "--repeats", 1)
    chosen = [] if apart is None else ["--http-processes", apart]
    out = run("serve", *sizes, *chosen, *(["--lone"] if lone else []), "--json", file)
    assert finite(file)["http_processes"] == (apart or 0), "what the server says of itself"
    for label in ("in Python", "request", "a lone request") if lone else ("one at a time", "batched"):
        assert row(out, label)[0] > 0
    assert lone or "answers equal to serial ones: True" in out


@pytest.mark.parametrize("flags", [(), ("--gpus", 8, "--recompute")])
def test_memory(run: Run, flags: tuple[object, ...]) -> None:
    """Parts add up, and what is shared or computed again is less."""
    plain, out = run("memory"), run("memory", *flags)
    for label in ("SmolLM2-135M", "Llama-2-7B"):
        _, *parts, total = row(out, label)
        assert sum(parts) == pytest.approx(total, abs=0.25)
        assert total <= row(plain, label)[-1]


def test_plan(run: Run, tmp_path: Path) -> None:
    out = run("plan", "--smoke", "--device", "cpu", "--repeats", 2, "--json", tmp_path / "out.json")
    assert row(out, "2 × 32")[-1] > -100
    made = finite(tmp_path / "out.json")
    assert [line["size"] for line in made] == ["2 × 32", "llama 2 × 32"]
    assert all(line["memory"] > 0 < line["tokens_per_second"] for line in made)


def test_cpu(run: Run) -> None:
    out = run("cpu", "--length", 8, "--steps", 2, "--rounds", 1, "--busy", 0, "--patience", 0, "--ways", "torch first")
    whole, least, text, *_ = row(out, "torch first")
    assert whole >= least > text > 0


def test_serve_host(run: Run) -> None:
    sizes = ("--length", 8, "--steps", 2, "--rows", 4, "--turns", 5)
    for more in ((), ("--replayed", "--profile")):
        out = run("serve_host", *sizes, *more)
        assert all(row(out, label)[0] > 0 for label in ("server", "rows.add", "rows.step", "rows.remove", "wall"))
    out = run("serve_host", *sizes, "--replayed", "--http", 2, "--requests", 6)
    assert all(row(out, label)[0] > 0 for label in ("worker", "http", "all"))


def test_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What went well is not measured again, what failed is, and the last figure is one that the time is too short for."""
    figures = tool("figures", FOLDER)
    toy = '--device cpu --size nano --vocab 65 --length 16 --batch 2 --eager --only "SCDD p_u 0.2, T"'
    monkeypatch.setattr(figures, "memory", lambda: 10.0)
    good, bad = (
        figures.Figure("train", "a, b", "train_step", toy, 1),
        figures.Figure("train", "c", "train_step", "--size x"),
    )
    monkeypatch.setattr(figures, "FIGURES", (good, bad, figures.Figure("serve", "d", "serve", "", seconds=1e6)))
    monkeypatch.setattr(sys, "argv", ["figures", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"Not measured: c; d\."):
        figures.main()
    said = capsys.readouterr().out
    assert "compiled: a, b (exit code 0)" in said
    assert "invalid choice: 'x'" in said
    assert finite(tmp_path / "train-a,-b.json")["results"]
    assert not list(tmp_path.glob("*.part"))
    monkeypatch.setattr(sys, "argv", ["figures", "--out", str(tmp_path), "--list"])
    figures.main()
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["c", "d"]


def test_figures_name_flags_that_their_benchmarks_have(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {each.benchmark: (FOLDER / f"{each.benchmark}.py").read_text() for each in tool("figures", FOLDER).FIGURES}
    common = (FOLDER / "common.py").read_text() + (FOLDER / "output.py").read_text()
    for figure in tool("figures", FOLDER).FIGURES:
        for flag in (word for word in figure.command("--json", "x")[2:] if word.startswith("--")):
            assert f'"{flag}"' in known[figure.benchmark] + common, (figure.name, flag)


def test_every_benchmark_is_here() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in FOLDER.glob("*.py")} - SHARED <= tested
