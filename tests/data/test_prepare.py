from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from scdd.assemble import training as build
from scdd.cli.main import main
from scdd.core.errors import UserError
from scdd.data.collect import PrepareProgress
from scdd.data.corpus import discover, documents
from scdd.data.detokenize import wikitext
from scdd.data.options import SEPARATORS, Separator
from scdd.data.prepare import Preparation, prepare
from scdd.data.shards import Shards
from scdd.data.tokenizer import TextTokenizer
from scdd.recipe.load import load as load_recipe
from tests.data.conftest import article


def run(corpus: Path, out: Path, **more: Any) -> PrepareProgress:
    settings: dict[str, Any] = {"train_tokenizer": 400, "shard_tokens": 15000, "valid_fraction": 0.1, **more}
    return list(prepare(Preparation([str(corpus)], out, **settings)))[-1]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared")
    assert run(corpus, out).stage == "done"
    return out


def test_every_document_is_there_once(prepared: Path) -> None:
    train, valid = Shards(prepared), Shards(prepared, "valid")
    tokenizer = train.tokenizer()
    kept = [[tokenizer.decode(ids.tolist()) for ids in split.documents()] for split in (train, valid)]
    articles = [article(i) for i in range(600)]
    assert sorted(kept[0] + kept[1]) == sorted(articles)
    assert 30 < len(kept[1]) < 90, "about a tenth"
    order = {text: i for i, text in enumerate(articles)}
    assert kept[0] == sorted(kept[0], key=order.__getitem__), "documents keep the order of the corpus"
    assert train.info.characters + valid.info.characters == sum(map(len, articles))
    assert train.info.bytes + valid.info.bytes == sum(len(text.encode()) for text in articles)
    assert train.info.documents + valid.info.documents == 600
    assert len(train.info.shards) > 3
    assert all(shard.tokens >= 15000 for shard in train.info.shards[:-1])


@pytest.mark.dist
@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_workers_makes_no_difference(corpus: Path, prepared: Path, tmp_path: Path, workers: int) -> None:
    run(corpus, tmp_path / "out", workers=workers)
    assert contents(tmp_path / "out") == contents(prepared)


def test_the_size_of_batches_makes_no_difference(
    corpus: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scdd.data.corpus.BATCH_BYTES", 777)
    run(corpus, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(prepared)


def test_the_split_follows_the_document_not_its_place(corpus: Path, prepared: Path, tmp_path: Path) -> None:
    lines = [line for path in sorted(corpus.iterdir()) for line in path.read_text().splitlines() if line]
    random.Random(1).shuffle(lines)
    (tmp_path / "shuffled.jsonl").write_text("\n".join(lines))
    tokenizer = str(prepared / "tokenizer.json")
    run(tmp_path / "shuffled.jsonl", tmp_path / "out", train_tokenizer=None, tokenizer=tokenizer)
    one, two = (
        {tuple(d.tolist()) for d in Shards(folder, "valid").documents()} for folder in (prepared, tmp_path / "out")
    )
    assert one == two


class Crash(BaseException):
    """Stands for a power cut: nothing of ours may catch it."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_write_loses_nothing(
    corpus: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Crash at every single rename of a run, resume, and compare every byte with the run that was left alone."""
    rename = os.replace
    monkeypatch.setattr("scdd.data.corpus.BATCH_BYTES", 5000)
    for step in range(1, 1000):
        out, calls = tmp_path / f"{step}", 0

        def replace(source: Any, target: Any, step: int = step) -> None:
            nonlocal calls
            calls += 1
            if calls == step and when == "before":
                raise Crash
            rename(source, target)
            if calls == step:
                raise Crash

        monkeypatch.setattr(os, "replace", replace)
        try:
            run(corpus, out)
        except Crash:
            monkeypatch.setattr(os, "replace", rename)
            last = run(corpus, out)
            assert {k: v for k, v in contents(out).items() if not k.endswith(".tmp")} == contents(prepared)
            assert not [name for name in contents(out) if name.endswith(".tmp")]
            noted = max(0, (calls - 3) // 3)  # shards that were certainly noted before the crash
            assert last.resumed_bytes > 0 or noted < 2, "finished shards are kept"
        else:
            assert step > 8
            return
    raise AssertionError("the run never got through")


@pytest.mark.dist
@pytest.mark.slow
def test_kill_9_at_random_moments_then_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    big = tmp_path / "big.jsonl"
    big.write_text("".join(json.dumps({"text": article(i) * 20}) + "\n" for i in range(900)))
    command = [
        sys.executable,
        "-m",
        "scdd",
        "prepare",
        str(big),
        "--train-tokenizer",
        "400",
        "--shard-tokens",
        "40000",
        "--workers",
        "2",
    ]
    subprocess.run([*command, "--out", str(tmp_path / "left-alone")], check=True, capture_output=True)
    out, rng, kills = tmp_path / "killed", random.Random(3), 0
    for _ in range(40):
        process = subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        shards, limit = len(list(out.glob("*.bin"))), time.monotonic() + 60
        # Once there is one more shard, kill it a moment later; the first time, before there is any.
        while process.poll() is None and len(list(out.glob("*.bin"))) <= shards and kills and time.monotonic() < limit:
            time.sleep(0.005)
        time.sleep(rng.random() * 0.1 + (0 if kills else 0.3))
        if kills == 4:
            process.wait(60)
        if process.poll() is not None:
            assert process.returncode == 0, process.stderr and process.stderr.read()
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills >= 3, "it ended too early to be killed"
    assert contents(out) == contents(tmp_path / "left-alone")


def test_a_finished_folder_is_left_alone(corpus: Path, prepared: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in prepared.iterdir()}
    last = run(corpus, prepared)
    assert last.resumed_bytes == last.text_bytes > 0
    assert {path: path.stat().st_mtime_ns for path in prepared.iterdir()} == before


def test_other_settings_need_force(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(corpus, out)
    with pytest.raises(UserError, match=r"\(other valid_fraction\).*\(force\)"):
        run(corpus, out, valid_fraction=0.2)
    (out / "notes.txt").write_text("mine")
    run(corpus, out, valid_fraction=0.2, force=True)
    assert Shards(out, "valid").n_documents > 80
    assert (out / "notes.txt").read_text() == "mine"


def test_a_damaged_folder_says_so(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(corpus, out)
    good = contents(out)
    data = bytearray(good["train-00001.bin"])
    data[-1] ^= 1
    (out / "train-00001.bin").write_bytes(data)
    with pytest.raises(UserError, match=r"train-00001\.bin is damaged"):
        run(corpus, out)
    run(corpus, out, force=True)
    assert contents(out) == good


def test_an_edited_source_is_not_spliced_into_a_resumed_run(
    tmp_path: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scdd.data.corpus.BATCH_BYTES", 5000)
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    rows = [json.dumps({"text": article(i)}) for i in range(300)]
    source.write_text("\n".join([*rows, "broken"]))
    settings = {"train_tokenizer": None, "tokenizer": str(tokenizer.save(tmp_path)), "shard_tokens": 1000}
    for _ in range(2):
        with pytest.raises(UserError, match="line 301: not a valid JSON line"):
            run(source, out, **settings)
        assert len(list(out.glob("train-*.bin"))) > 3
    source.write_text("\n".join(rows))
    with pytest.raises(UserError, match=r"other sources, times"):
        run(source, out, **settings)
    assert run(source, out, **settings, force=True).documents == 300


def test_a_first_try_that_made_nothing_is_forgotten(tmp_path: Path) -> None:
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    source.write_text('{"text": "fine"}\nbroken\n')
    with pytest.raises(UserError, match="line 2"):
        run(source, out)
    source.write_text('{"text": "fine"}\n{"text": "mended"}\n')
    assert run(source, out, valid_fraction=0).documents == 2


def test_validation_files(corpus: Path, tmp_path: Path) -> None:
    parts = sorted(str(path) for path in corpus.iterdir())
    job = Preparation(parts[:2], tmp_path / "out", train_tokenizer=400, valid=parts[2:])
    last = list(prepare(job))[-1]
    assert (Shards(job.out).n_documents, Shards(job.out, "valid").n_documents) == (400, 200)
    assert last.documents == 600


def test_what_is_validated_on_is_not_trained_on(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus)
    held = sorted(path.name for path in corpus.iterdir())[0]
    (tmp_path / "link").symlink_to(corpus)
    command = ["prepare", str(tmp_path / "link"), "--train-tokenizer", "400", "--workers", "1", "--out"]
    for _ in range(2):  # again: it is finished, and says so as well
        assert main([*command, str(tmp_path / "out"), "--valid", held]) == 0
        assert f"left out of training, since --valid names it: {held}" in capsys.readouterr().out
    assert (Shards(tmp_path / "out").n_documents, Shards(tmp_path / "out", "valid").n_documents) == (400, 200)
    assert main([*command, str(tmp_path / "none"), "--valid", str(corpus)]) == 2
    assert "--valid names every text" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_without_a_tokenizer_the_flags_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "--train-tokenizer 8192, or give --tokenizer bundled" in capsys.readouterr().err


def test_detokenised_text_is_what_is_stored(tmp_path: Path) -> None:
    article_text = " \n = Title = \n \n A guest @-@ starring role , he said . \n"
    (tmp_path / "wiki.tokens").write_text(article_text * 3)
    run(tmp_path / "wiki.tokens", tmp_path / "out", valid_fraction=0, detokenizer="wikitext")
    shards = Shards(tmp_path / "out")
    assert shards.n_documents == 3
    found = {shards.tokenizer().decode(d.tolist()) for d in shards.documents()}
    assert found == {"= Title =\n\nA guest-starring role, he said."}


def test_a_given_tokenizer_may_lie_in_the_folder_it_replaces(corpus: Path, prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((prepared / "tokenizer.json").read_bytes())
    given = {"train_tokenizer": None, "tokenizer": str(tmp_path / "tokenizer.json")}
    with pytest.raises(UserError, match="not ours to replace"):
        run(corpus, tmp_path, **given)
    run(corpus, tmp_path, **given, force=True)
    assert Shards(tmp_path).tokenizer().hash == TextTokenizer.load(prepared).hash


def test_one_preparation_at_a_time(corpus: Path, tmp_path: Path) -> None:
    first = prepare(Preparation([str(corpus)], tmp_path, train_tokenizer=400))
    next(first)
    with pytest.raises(UserError, match="in use by another process"):
        run(corpus, tmp_path)
    first.close()  # type: ignore[attr-defined]
    assert run(corpus, tmp_path).stage == "done"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tokenizer": "x.json"}, "leave one of the two out"),
        ({"train_tokenizer": None}, "There is no tokenizer"),
        ({"train_tokenizer": 10}, "train_tokenizer is 10: choose 259 or more"),
        ({"valid_fraction": 1.0}, "valid_fraction is 1.0: choose from 0 up to"),
        ({"valid": ["x.txt"]}, "choose one of them"),
        ({"detokenizer": "ptb"}, "not known"),
        ({"separator": "page"}, "not known"),
        ({"workers": 0}, "workers is 0: choose 1 or more"),
        ({"field": "body"}, r"name the one that holds it \(field\)"),
    ],
)
def test_mistakes_are_named(corpus: Path, tmp_path: Path, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        run(corpus, tmp_path / "out", **settings)
    assert "--" not in str(caught.value), "a library knows no flags"


@pytest.mark.parametrize("content", [b"", b"caf\xe9"])
def test_a_refused_source_leaves_nothing_behind(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(UserError):
        run(tmp_path / "bad.txt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_out_that_cannot_be_made_is_named(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made a folder"):
        run(corpus, tmp_path / "file" / "out")


def test_blank_sources_are_named(tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(UserError, match="no text found"):
        run(tmp_path / "blank.txt", tmp_path / "out")


def test_the_command_line(corpus: Path, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from scdd.cli.main import main

    arguments = ["prepare", str(corpus), "--out", str(tmp_path / "out"), "--train-tokenizer", "400", "--workers", "1"]
    assert main([*arguments, "--valid-fraction", "0.1", "--shard-tokens", "15000"]) == 0
    said = capsys.readouterr().out
    assert "vocabulary of 400 ids" in said
    assert "peak memory" in said
    assert contents(tmp_path / "out") == contents(prepared)
    other = ["prepare", str(tmp_path / "none.txt"), "--out", str(tmp_path / "o"), "--train-tokenizer"]
    assert main([*other, "400"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'none.txt'} does not exist")
    assert main([*other, "400", "--separator", "page"]) == 2
    assert capsys.readouterr().err.startswith("error: --separator page is not known: choose one of auto, ")
    assert main([*other, "40"]) == 2
    assert capsys.readouterr().err == "error: --train-tokenizer is 40: choose 259 or more.\n"


@pytest.mark.parametrize("separator", SEPARATORS)
def test_a_recipe_and_a_preparation_read_the_same_documents(tmp_path: Path, separator: Separator) -> None:
    from scdd.assemble.training import corpus as read_corpus
    from scdd.recipe import load as recipe

    source = tmp_path / "a.txt"
    source.write_bytes("\n\n".join(article(i) for i in range(40)).replace("\n", "\r\n").encode())
    run(source, tmp_path / "out", valid_fraction=0, separator=separator)
    shards = Shards(tmp_path / "out")
    changes = [f"data.path={source}", f"data.separator={separator}", f"data.tokenizer={tmp_path / 'out'}"]
    data = read_corpus(recipe.load("nano", changes))
    assert data.valid is not None
    parts = [
        data.tokenizer.decode(stream.read(stream.end(i - 1) if i else 0, stream.end(i) - 1).tolist())
        for stream in (data.train, data.valid)
        for i in range(stream.n_documents)
    ]
    prepared = [data.tokenizer.decode(ids.tolist()) for ids in shards.documents()]
    if len(prepared) == 1:  # whose end is for validation
        parts = ["".join(parts)]
    assert sorted(parts) == sorted(prepared)


@pytest.mark.data
def test_wikitext_103_whole(data_folder: Path, tmp_path: Path) -> None:
    source = data_folder / "wikitext-103" / "wiki.valid.tokens.xz"
    gpt2 = str(data_folder / "gpt2" / "tokenizer.json")
    run(source, tmp_path / "out", train_tokenizer=None, tokenizer=gpt2, valid_fraction=0, detokenizer="wikitext")
    shards = Shards(tmp_path / "out")
    assert shards.n_documents == 60
    assert shards.vocab_size == 50258
    plain = Tokenizer.from_file(gpt2)  # the library alone, on whole articles
    articles = [wikitext(text) for text in documents(discover([source]))]
    assert [d.tolist() for d in shards.documents()] == [plain.encode(text).ids for text in articles]


def test_few_documents_keep_one_for_validation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 40 files a share of 0.01 left none, and training skipped its validation without a word."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i}.txt").write_text(f"Text number {i}.", encoding="utf-8")
    out = tmp_path / "out"
    assert main(["prepare", str(folder), "--out", str(out), "--train-tokenizer", "300", "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert "a share of 0.01 would have left nothing for validation: one document was taken" in said
    assert "cut into documents at blank lines; --separator file keeps each whole" in said
    assert Shards(out, "valid").info.documents == 1
    assert Shards(out).info.documents == 39
    assert list(prepare(Preparation([str(folder)], out, train_tokenizer=300)))[-1].stage == "done", (
        "and it is found again"
    )


def test_without_a_validation_split_it_is_said_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("The only document. " * 40, encoding="utf-8")
    out = tmp_path / "out"
    assert (
        main(["prepare", str(tmp_path / "a.txt"), "--out", str(out), "--train-tokenizer", "280", "--workers", "1"]) == 0
    )
    assert "no document is left for validation, so training will not validate: give --valid" in capsys.readouterr().out
    spec = load_recipe("nano", ["data.kind=shards", f"data.path={out}", "data.length=16"])
    [notice] = build.corpus(spec).notices
    assert "holds no validation split, so nothing is validated" in notice


def test_the_help_says_what_ends_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "one document for each paragraph between blank lines; --separator file keeps it whole" in said


def test_a_name_that_is_no_utf_8_is_noted_nevertheless(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a\xff.txt")
    path.write_text("One.\n\nTwo.", encoding="utf-8")
    assert run(path, tmp_path / "out", train_tokenizer=280).stage == "done"
