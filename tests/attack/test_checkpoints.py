"""A .ckpt is a program in a zip file: neither its numbers nor its files make memory, and it changes nothing of ours."""

from __future__ import annotations

import io
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scdd.models.weights.checkpoint import NetworkFile
from scdd.models.weights.inert import Inert, find
from scdd.models.weights.unpickle import StoredTensor, read_checkpoint
from tests.attack.bounds import attacked, bounded, mutated, refused


def archive(file: Path, program: bytes, kind: int = zipfile.ZIP_STORED, **others: bytes) -> Path:
    with zipfile.ZipFile(file, "w", kind) as written:
        written.writestr("a/data.pkl", program)
        for name, content in others.items():
            written.writestr(f"a/{name}", content)
    return file


def saved(file: Path) -> Path:
    state = {"backbone.a": torch.arange(6.0).view(2, 3), "backbone.b": torch.zeros(4)[::2]}
    torch.save({"state_dict": state, "global_step": 7, "hyper_parameters": {"length": 64}}, file)
    return file


def test_a_memo_of_billions_makes_no_memory(tmp_path: Path) -> None:
    put = b"\x80\x02N" + pickle.LONG_BINPUT + struct.pack("<I", 2**32 - 2) + b"."
    with bounded():
        assert read_checkpoint(archive(tmp_path / "a.ckpt", put)) is None


def test_promised_lengths_make_no_memory(tmp_path: Path) -> None:
    for code in (pickle.BINBYTES8, pickle.BYTEARRAY8, pickle.BINUNICODE8, pickle.FRAME):
        refused(
            lambda code=code: read_checkpoint(archive(tmp_path / "a.ckpt", b"\x80\x05" + code + b"\0\0\0\0\x01\0\0\0"))
        )  # type: ignore[misc]


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    bomb = bytes(64 << 20)
    refused(lambda: read_checkpoint(archive(tmp_path / "a.ckpt", bomb, zipfile.ZIP_DEFLATED)), "compressed")
    with zipfile.ZipFile(tmp_path / "b.ckpt", "w") as written:
        written.writestr("a/data.pkl", pickle.dumps({}, 2))
        written.writestr("a/byteorder", bomb, zipfile.ZIP_DEFLATED)
    refused(lambda: read_checkpoint(tmp_path / "b.ckpt"), "compressed")
    refused(lambda: read_checkpoint(archive(tmp_path / "c.ckpt", bytes(9 << 20))), "at most")


def test_a_list_of_a_hundred_thousand_files_is_not_made(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.ckpt", "w") as written:
        for i in range(20_000):
            written.writestr(f"{i:0200}", b"")
    refused(lambda: read_checkpoint(tmp_path / "a.ckpt"), "list of files")


def test_copies_of_copies_are_bounded(tmp_path: Path) -> None:
    pairs = pickle.dumps([(i, i) for i in range(20_000)], 2)[2:-1]
    program = b"\x80\x02ccollections\nOrderedDict\nr\xfe\xff\x00\x00" + pairs
    program += b"\x85r\xff\xff\x00\x00" + b"j\xfe\xff\x00\x00j\xff\xff\x00\x00R" * 2000
    refused(lambda: read_checkpoint(archive(tmp_path / "a.ckpt", program + b".")), "again and again")
    wide = (
        b"\x80\x02cx\ny\nq\x01" + b"(" + b"N" * 100_000 + b"tr\xff\xff\x00\x00" + b"h\x01j\xff\xff\x00\x00\x81" * 5000
    )
    refused(lambda: read_checkpoint(archive(tmp_path / "b.ckpt", wide + b".")), "arguments")
    names = b"\x80\x02" + b"".join(b"cx\n%d\n" % i for i in range(10_000))
    refused(lambda: read_checkpoint(archive(tmp_path / "c.ckpt", names + b".")), "foreign names")


def test_keys_of_one_hash_do_not_take_for_ever(tmp_path: Path) -> None:
    program = pickle.dumps({i * (2**61 - 1): None for i in range(9, 3000)}, 2)
    refused(lambda: read_checkpoint(archive(tmp_path / "a.ckpt", program)), "numbers of many digits")


DOUBLED = b")" + b"2\x86" * 60  # a tuple of itself twice, sixty times: its hash takes 2**60 steps
KEYS = {
    "SETITEM": b"}" + DOUBLED + b"Ns",
    "SETITEMS": b"}(" + DOUBLED + b"Nu",
    "DICT": b"(" + DOUBLED + b"Nd",
    "ADDITEMS": b"\x8f(" + DOUBLED + b"\x90",
    "FROZENSET": b"(" + DOUBLED + b"\x91",
    "foreign": b"cx\ny\n)\x81" + DOUBLED + b"Ns",
    "pairs": b"ccollections\nOrderedDict\n]" + DOUBLED + b"N\x86a\x85R",
    "a million deep": b"})" + b"\x85" * 1_000_000 + b"Ns",  # a crash in C, once
    "a list": b"}]Ns",
}


@pytest.mark.parametrize("how", KEYS)
def test_what_is_hashed_is_hashed_in_one_step(tmp_path: Path, how: str) -> None:
    file = archive(tmp_path / "a.ckpt", b"\x80\x04" + KEYS[how] + b".")
    refused(lambda: read_checkpoint(file), "as a key or an element of a set", seconds=5)


def test_keys_that_checkpoints_have_are_read(tmp_path: Path) -> None:
    tree = {"a": 1, 2: 3, 0.5: [4], None: 5, b"c": 6, True: 7, torch.float16: 8, Path: {9, "d"}, "e": frozenset({10})}
    torch.save(tree, tmp_path / "a.ckpt", pickle_protocol=4)
    read = read_checkpoint(tmp_path / "a.ckpt")
    assert [*read.values()] == [*tree.values()]
    assert [key for key in read if not isinstance(key, type)] == [key for key in tree if key is not Path]


def test_numbers_as_keys_are_bounded_in_the_memo_too(tmp_path: Path) -> None:
    memo = b"\x80\x02N" + b"".join(b"p%d\n" % (i * (2**61 - 1)) for i in range(100_000)) + b"."
    refused(lambda: read_checkpoint(archive(tmp_path / "a.ckpt", memo)), "memo", seconds=5)
    far = b"\x80\x02N" + b"".join(b"r" + struct.pack("<I", 2**32 - i) for i in range(1, 70_000)) + b"."
    refused(lambda: read_checkpoint(archive(tmp_path / "b.ckpt", far)), "keys that are numbers", seconds=5)
    wide = pickle.dumps(dict.fromkeys(range(70_000)), 2)
    refused(lambda: read_checkpoint(archive(tmp_path / "c.ckpt", wide)), "keys that are numbers", seconds=5)
    refused(lambda: read_checkpoint(archive(tmp_path / "d.ckpt", b"\x80\x04" + b"\x8f" * 100_000)), "sets")


@pytest.mark.parametrize(
    "program",
    [
        b")" + b"\x85" * 200_000,
        b"]" * 200_000 + b"a" * 199_999,
        b"}N" * 100_000 + b"}" + b"s" * 100_000,
        b"cx\ny\nq\x010)" + b"q\x020h\x01h\x02\x85\x81" * 100_000,
        b"cx\ny\nq\x01)\x81" + b"q\x020h\x01)\x81h\x02b" * 100_000,
        b")" + b"2\x86" * 600,
    ],
)
def test_deep_nesting_is_refused_and_freed(tmp_path: Path, program: bytes) -> None:
    refused(lambda: read_checkpoint(archive(tmp_path / "a.ckpt", b"\x80\x02" + program + b".")), "inside each other")
    dropped = archive(tmp_path / "b.ckpt", b"\x80\x02" + program + b"0N.")
    with bounded():
        assert read_checkpoint(dropped) is None


@given(
    st.recursive(
        st.none() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
        lambda inner: (
            st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner)
        ),
    ),
    st.sampled_from([3, 4]),
)
def test_plain_data_is_read_as_it_was_written(tree: Any, protocol: int) -> None:
    with TemporaryDirectory() as place:
        assert read_checkpoint(archive(Path(place) / "a.ckpt", pickle.dumps(tree, protocol))) == tree


def test_what_holds_itself_is_read(tmp_path: Path) -> None:
    held = read_checkpoint(archive(tmp_path / "a.ckpt", b"\x80\x02]q\x01h\x01a}q\x02X\x01\x00\x00\x00kh\x02s\x86."))
    assert held[0][0] is held[0]
    assert held[1]["k"] is held[1]
    assert find(held, "nothing") is None


def built(target: bytes, state: Any) -> bytes:
    return b"\x80\x02" + target + pickle.dumps(state, 2)[2:-1] + b"b."


def test_state_is_set_on_foreign_objects_alone(tmp_path: Path) -> None:
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00K\x04\x85K\x01\x85\x89NtR"
    whole = read_checkpoint(archive(tmp_path / "a.ckpt", b"\x80\x02" + tensor + b"."))
    assert isinstance(whole, StoredTensor)
    assert whole.shape == (4,)
    for target in (storage, tensor, b"ctorch._utils\n_rebuild_tensor_v2\n", b"cx\ny\n", b"ctorch\nSize\n", b"]"):
        for state in ({"file": "/etc/passwd", "shape": (1 << 40,)}, (None, {"__defaults__": (1,), "origin": 2})):
            program = built(target, state)
            refused(lambda program=program: read_checkpoint(archive(tmp_path / "b.ckpt", program)), "sets the state")  # type: ignore[misc]
    made = read_checkpoint(archive(tmp_path / "c.ckpt", built(b"cx\ny\n)\x81", {"_val": 3})))
    assert isinstance(made, Inert)
    assert made.state == {"_val": 3}


def test_tensors_of_impossible_shapes_are_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"w": torch.zeros(4)}, buffer)
    with zipfile.ZipFile(buffer) as written:
        [name] = [each for each in written.namelist() if each.endswith("data.pkl")]
        program = written.read(name)
    for shape in (b"(J\xff\xff\xff\xfftq", b"(\x8a\x09\0\0\0\0\0\0\0\0\x01tq", b"(" + b"K\x01" * 70 + b"tq"):
        hostile = program.replace(b"K\x04\x85q", shape)
        assert hostile != program
        refused(lambda hostile=hostile: read_checkpoint(archive(tmp_path / "a.ckpt", hostile)))  # type: ignore[misc]
    large = archive(
        tmp_path / "b.ckpt", program.replace(b"K\x04\x85q", b"J\xff\xff\xff\x7f\x85q"), **{"data/0": bytes(16)}
    )
    refused(lambda: read_checkpoint(large)["w"].load(), "damaged")


def inputs(place: Path, dice: random.Random) -> Iterator[Callable[[], Any]]:
    """Three of ten have odd bytes anywhere, the others an odd program."""
    whole = saved(place / "whole.ckpt").read_bytes()
    with zipfile.ZipFile(place / "whole.ckpt") as written:
        program = written.read(next(name for name in written.namelist() if name.endswith("data.pkl")))
    codes = tuple(getattr(pickle, name) for name in ("BUILD", "REDUCE", "NEWOBJ", "TUPLE", "DUP", "APPENDS", "GLOBAL"))
    file = place / "a.ckpt"

    def used() -> None:
        opened = NetworkFile.open(file)
        find(opened.tree, "nothing")
        for tensor in opened.state.values():
            tensor.load()  # type: ignore[attr-defined]
        assert opened.step >= 0

    for turn in count():
        if turn % 10 < 3:
            file.write_bytes(mutated(whole, dice))
        else:
            archive(file, mutated(program, dice, codes), **{"data/0": bytes(24), "data/1": bytes(16)})
        yield used


def test_any_mutation_of_a_checkpoint_is_read_or_refused(tmp_path: Path) -> None:
    attacked(inputs, tmp_path, 1000)
