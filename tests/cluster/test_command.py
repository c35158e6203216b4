"""`--ray` as it is typed, and what is refused before anything starts."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from scdd.cli.cluster import with_address
from scdd.cli.main import main


@pytest.mark.parametrize(
    ("words", "spelt"),
    [
        (["--ray"], ["--ray=local"]),
        (["--ray", "text.txt"], ["--ray=local", "text.txt"]),
        (["--ray", "--out", "x"], ["--ray=local", "--out", "x"]),
        (["--ray", "auto", "a"], ["--ray", "auto", "a"]),
        (["--ray", "10.0.0.1:6379"], ["--ray", "10.0.0.1:6379"]),
        (["--ray=head:6379", "a"], ["--ray=head:6379", "a"]),
        (["a", "--out", "b"], ["a", "--out", "b"]),
        (["--ray", "s3://corpus/text"], ["--ray=local", "s3://corpus/text"]),
        (["--ray", "ray://head:10001"], ["--ray", "ray://head:10001"]),  # which is refused
        ([], []),
    ],
)
def test_an_address_may_be_left_out(words: list[str], spelt: list[str]) -> None:
    assert with_address(words) == spelt


VERBS = [
    ["prepare", "text.txt", "--tokenizer", "bundled", "--out", "out"],
    ["eval", "likelihood", "--out", "out"],
    ["serve"],
]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nonsense", "is no address"),
        ("ray://head:10001", "--ray ray://head:10001 is Ray's client"),
        ("127.0.0.1:1", "cannot be reached"),
        ("127.0.0.1:99999", "cannot be reached"),
    ],
)
def test_addresses_that_cannot_be_are_refused_at_once(
    verb: list[str], address: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("A text.")
    assert main([*verb, f"--ray={address}"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_what_workers_would_not_hear_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "likelihood", "--no-graphs", "--ray"]) == 2
    assert capsys.readouterr().err == "error: --no-graphs is not heard on Ray: leave one of the two out.\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_one_sentence_says_what_to_install(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    def without_ray(name: str) -> Any:
        if name == "ray":
            raise ModuleNotFoundError("No module named 'ray'", name="ray")
        return importlib.import_module(name)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("scdd.cluster.connect.import_module", without_ray)
    assert main([*verb, "--ray"]) == 2
    assert capsys.readouterr().err == "error: --ray needs ray: in a checkout of scdd, pip install -e '.[ray]'.\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--replicas", "2"], "say --ray"),
        (["--ray", "--replicas", "0"], "--replicas is 0"),
        (["--ray", "--replicas", "3", "--max-replicas", "2"], "--max-replicas is 2"),
    ],
)
def test_replicas_that_cannot_be(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    assert main(["serve", *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("machines", "replicas", "cores"),
    [([2], 1, 2), ([2], 2, 1), ([2], 4, 1), ([8, 8], 1, 8), ([8, 8], 3, 4), ([16, 4], 3, 5), ([0, 6], 2, 3)],
)
def test_a_replica_lies_on_one_machine(machines: list[int], replicas: int, cores: int) -> None:
    pytest.importorskip("prometheus_client")
    from scdd.cluster.serving import equal_share

    assert equal_share(machines, replicas) == cores
