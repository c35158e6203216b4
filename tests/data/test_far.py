"""Data of an address is the data of a disk: the same bytes written, the same batches read, whatever happens between."""

from __future__ import annotations

import gzip
import json
import lzma
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

from scdd.assemble import training as build
from scdd.cli.main import main
from scdd.core.errors import UserError
from scdd.data import ahead
from scdd.data.address import Address, place
from scdd.data.cache import ShardCache, Wanted
from scdd.data.corpus import discover, documents
from scdd.data.loader import Loader, Rank
from scdd.data.pack import Packing, cut
from scdd.data.prepare import Preparation, prepare
from scdd.data.shards import Shards, read_manifest
from scdd.recipe import load as recipe
from tests.data.conftest import article
from tests.data.test_prepare import Crash, contents, run

FAR = "memory://far/shards"


@pytest.fixture(autouse=True)
def memory() -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()


@pytest.fixture(scope="module")
def near(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("near")
    run(corpus, out, shard_tokens=6000)
    return out


def put(files: Any, folder: Path) -> str:
    for path in folder.iterdir():
        files.pipe_file(f"/far/shards/{path.name}", path.read_bytes())
    return FAR


def held(files: Any, folder: str = "/far/shards") -> dict[str, bytes]:
    return {name.rpartition("/")[2]: files.cat_file(name) for name in files.find(folder)}


def test_the_same_bytes_are_written(corpus: Path, near: Path, memory: Any) -> None:
    for path in corpus.iterdir():
        memory.pipe_file(f"/texts/deep/{path.name}", path.read_bytes())
    settings: dict[str, Any] = {"train_tokenizer": 400, "shard_tokens": 6000, "valid_fraction": 0.1}
    last = list(prepare(Preparation(["memory://texts"], FAR, **settings)))[-1]
    assert last.stage == "done"
    assert held(memory) == contents(near)
    again = list(prepare(Preparation(["memory://texts"], FAR, **settings)))[-1]
    assert again.resumed_bytes == again.text_bytes > 0, "nothing is left to do"
    memory.rm_file("/far/shards/train-00001.bin")
    with pytest.raises(UserError, match=r"shard memory://far/shards/train-00001\.bin is missing"):
        list(prepare(Preparation(["memory://texts"], FAR, **settings)))
    memory.pipe_file("/far/shards/notes.txt", b"mine")
    list(prepare(Preparation(["memory://texts"], FAR, force=True, **settings)))
    assert held(memory) == {**contents(near), "notes.txt": b"mine"}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_write_loses_nothing(
    corpus: Path, near: Path, memory: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """As on a disk: what is there meanwhile is not taken for finished, and the same command makes the same bytes."""
    corpus, pipe = corpus / "part-0.jsonl", type(memory).pipe_file
    monkeypatch.setattr("scdd.data.corpus.BATCH_BYTES", 50_000)
    settings = {"shard_tokens": 6000, "tokenizer": str(near / "tokenizer.json"), "train_tokenizer": None}
    run(corpus, place("memory://calm"), **settings)
    calm = held(memory, "/calm")
    for step in range(1, 1000):
        memory.store.clear()
        calls = 0

        def dying(self: Any, path: str, value: bytes, *, step: int = step, **more: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == step and when == "before":
                raise Crash
            pipe(self, path, value, **more)
            if calls == step:
                raise Crash

        monkeypatch.setattr(type(memory), "pipe_file", dying)
        try:
            run(corpus, place(FAR), **settings)
        except Crash:
            monkeypatch.setattr(type(memory), "pipe_file", pipe)
            whole = when == "after" and "index.json" in held(memory)
            if not whole:
                with pytest.raises(UserError, match="holds no prepared data"):
                    Shards(FAR)
            run(corpus, place(FAR), **settings)
            assert held(memory) == calm
        else:
            assert step > 10
            return
    raise AssertionError("the run never got through")


def test_every_kind_of_source_is_read_from_an_address(memory: Any, tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zstandard = pytest.importorskip("zstandard")
    rows = [article(i) for i in range(30)]
    lines = "".join(json.dumps({"text": row}) + "\n" for row in rows).encode()
    table = "id\ttext\n" + "".join(f'{i}\t"{row.replace(chr(34), chr(34) * 2)}"\n' for i, row in enumerate(rows))
    parquet.write_table(pyarrow.table({"text": rows}), tmp_path / "a.parquet", row_group_size=7)
    files = {
        "a.jsonl": lines,
        "a.jsonl.gz": gzip.compress(lines),
        "a.jsonl.xz": lzma.compress(lines),
        "a.jsonl.zst": zstandard.compress(lines),
        "a.tsv.gz": gzip.compress(table.encode()),
        "a.parquet": (tmp_path / "a.parquet").read_bytes(),
    }
    for name, content in files.items():
        memory.pipe_file(f"/texts/{name}", content)
        assert list(documents(discover([f"memory://texts/{name}"]))) == rows, name
    memory.pipe_file("/texts/b.txt", b"One.\n\nTwo.")
    assert list(documents(discover(["memory://texts/b.txt"]))) == ["One.", "Two."]
    memory.pipe_file("/texts/picture", b"\x89PNG\r\n\0\0")
    with pytest.raises(UserError, match=r"memory://texts/picture is a binary file and no text"):
        discover(["memory://texts/picture"])
    with pytest.raises(UserError, match=r"memory://texts/none does not exist"):
        discover(["memory://texts/none"])
    memory.pipe_file("/texts/a.jsonl.zst", files["a.jsonl.zst"][:-20])
    with pytest.raises(UserError, match=r"memory://texts/a\.jsonl\.zst is damaged or cut short"):
        list(documents(discover(["memory://texts/a.jsonl.zst"])))


def batches(stream: Shards, packing: Packing, window: int | None, first: int = 0, **more: Any) -> list[Any]:
    loader = Loader(cut(stream, 64, packing, window), 8, seed=5, **more)
    loader.cursor = first * 8
    found = list(islice(loader, 10 if window is None else 30))
    return [(batch.tokens, batch.documents) for batch in found]


def equal(one: list[Any], two: list[Any]) -> bool:
    pairs = [(a, b) for left, right in zip(one, two, strict=True) for a, b in zip(left, right, strict=True)]
    return all(torch.equal(a, b) if a is not None else b is None for a, b in pairs)


@pytest.mark.parametrize("packing", ["wrap", "documents"])
@pytest.mark.parametrize("window", [None, 2])
def test_the_same_batches_are_read_from_a_cache_that_holds_two_shards(
    near: Path, memory: Any, tmp_path: Path, packing: Packing, window: int | None
) -> None:
    local = Shards(near)
    sizes = sorted(shard.size for shard in local.info.shards)
    assert len(sizes) > 4
    cache = ShardCache(tmp_path / "cache", sizes[-1] + sizes[-2])
    far = Shards(put(memory, near), cache=cache)
    with Watched(cache) as watched:
        expected = batches(local, packing, window)
        assert equal(expected, batches(far, packing, window))
        later = batches(local, packing, window, first=17)
        assert equal(later, batches(far, packing, window, first=17)), "and gone on with anywhere"
        ranks = [batches(far, packing, window, rank=Rank(i, 2)) for i in range(2)]
        assert torch.equal(torch.cat([ranks[0][0][0], ranks[1][0][0]]), expected[0][0])
    assert 0 < watched.most <= cache.bound


class Watched:
    """The most bytes that the cache's files ever had, looked at all the time."""

    def __init__(self, cache: ShardCache) -> None:
        self.cache, self.most, self._over = cache, 0, threading.Event()

    def __enter__(self) -> Watched:
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.0005):
            sizes, names = {}, set(self.cache.folder.iterdir())
            for path in names:
                try:
                    about = path.stat()
                except FileNotFoundError:
                    continue
                sizes[about.st_ino] = about.st_size
            # Otherwise files that were never there together may have been counted.
            if set(self.cache.folder.iterdir()) == names:
                self.most = max(self.most, sum(sizes.values()))


def test_shards_are_there_before_they_are_read(
    near: Path, memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In windows of one shard, whoever reads never fetches but for the first one."""
    stream = Shards(put(memory, near), cache=ShardCache(tmp_path / "cache", 10**9))
    fetched: list[str] = []
    chunks = Address.chunks

    def noted(self: Address) -> Iterator[bytes]:
        fetched.append(threading.current_thread().name)
        return chunks(self)

    monkeypatch.setattr(Address, "chunks", noted)
    loader = Loader(cut(stream, 64, "wrap", 1), 8, seed=5, prefetch=0)
    step = iter(loader)
    next(step)
    for _ in range(500):  # the reader rests, and the next ones come
        if len(fetched) == len(stream.info.shards):
            break
        threading.Event().wait(0.01)
    assert len(fetched) == len(stream.info.shards)
    assert sum(name.startswith("scdd-fetch") for name in fetched) >= len(fetched) - 1
    step.close()  # type: ignore[attr-defined]
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("scdd-ahead", "scdd-fetch"))]


def test_what_is_read_ahead_pushes_out_nothing_that_is_needed_before(near: Path, memory: Any, tmp_path: Path) -> None:
    """With room for two shards in windows of one, an epoch fetches each shard once."""
    local = Shards(near)
    sizes = sorted(shard.size for shard in local.info.shards)
    far = Shards(put(memory, near), cache=ShardCache(tmp_path / "cache", sizes[-1] + sizes[-2]))
    blocks = cut(far, 64, "wrap", 1)
    asked: list[str] = []
    chunks = Address.chunks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Address, "chunks", lambda self: asked.append(self.name) or chunks(self))
        loader = Loader(blocks, 8, seed=5)
        for _ in islice(loader, len(blocks) // 8):
            pass
    # One epoch needs each once; what the next one begins with may have come as well, and on a busy machine one or the other
    # again. Without regard to the room there is, it would be twice as many.
    assert len(asked) <= len(sizes) * 3 // 2, asked
    assert len(set(asked)) == len(sizes)


def test_what_is_needed_before_is_kept(near: Path, memory: Any, tmp_path: Path) -> None:
    sizes = [shard.size for shard in Shards(near).info.shards]
    cache = ShardCache(tmp_path / "cache", sum(sorted(sizes)[-2:]))
    stream = Shards(put(memory, near), cache=cache)
    names = [Wanted(Address(FAR), shard).key for shard in stream.info.shards]
    for shard, keep in ((0, []), (1, []), (2, [0])):
        stream.fetch(shard, keep)
    assert {path.stem for path in cache.folder.glob("*.bin")} == {names[0], names[2]}


def test_a_reader_far_behind_stops_the_look_ahead(
    monkeypatch: pytest.MonkeyPatch, near: Path, memory: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr(ahead, "BATCHES", 3)
    stream = Shards(put(memory, near), cache=ShardCache(tmp_path / "cache", 10**9))
    looked: list[int] = []

    def wanted(batch: int) -> Any:
        looked.append(batch)
        return np.array([0])

    reader = ahead.ReadAhead(stream, wanted)
    for now in (0, 5):
        reader.reached(now)
        for _ in range(500):
            if looked and looked[-1] == now + 3:
                break
            threading.Event().wait(0.005)
        threading.Event().wait(0.02)
        assert looked[-1] == now + 3
    reader.close()


def spec(near: Path | str, *more: str) -> Any:
    return recipe.load("nano", ["data.kind=shards", f"data.path={near}", "data.length=64", *more])


def test_a_recipe_names_an_address(near: Path, memory: Any, tmp_path: Path) -> None:
    put(memory, near)
    own = f"data.cache={tmp_path / 'cache'}"
    data = build.corpus(spec(FAR, own), verify=True)
    assert data.notices == ()
    assert np.array_equal(data.train.read(0, 500), Shards(near).read(0, 500))  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"^data\.cache_bytes is 100, and a shard has .* bytes: choose room for two"):
        build.corpus(spec(FAR, own, "data.cache_bytes=100"))
    [notice] = build.corpus(spec(FAR, own, "data.cache_bytes=30000")).notices
    assert "so shards are fetched again and again" in notice
    assert build.corpus(spec(FAR, own, "data.cache_bytes=30000", "data.window=1")).notices == ()
    with pytest.raises(UserError, match=r"data\.path.*memory://nowhere holds no prepared data"):
        build.corpus(spec("memory://nowhere", own))
    memory.rm_file("/far/shards/train-00002.bin")
    with pytest.raises(UserError, match=r"train-00002\.bin is missing"):
        build.corpus(spec(FAR, own), verify=True)


def test_a_recipe_holds_no_password() -> None:
    for kind, path in (("shards", "s3://me:secret@bucket/a"), ("text", "https://host/a.txt?signature=secret")):
        with pytest.raises(UserError, match=r"data.*path.*every checkpoint would carry") as caught:
            recipe.load("nano", [f"data={{kind: {kind}, path: '{path}'}}"])
        assert "secret@" not in str(caught.value)
        assert "signature" not in str(caught.value)


def test_the_command_line_writes_and_measures_far_away(
    corpus: Path, memory: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["prepare", str(corpus), "--train-tokenizer", "400", "--workers", "1"]
    assert main([*command, "--out", "memory://far/shards"]) == 0
    assert "\nmemory://far/shards: vocabulary of 400 ids" in capsys.readouterr().out
    assert read_manifest(FAR)["splits"]["train"]["documents"] > 500
    assert main([*command, "--out", "nothing://user:secret@far/shards?x=secret"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: nothing://far/shards")
    assert "secret" not in said
