"""A run that loses a rank or a node goes on by itself, on as many ranks as there are."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from scdd.core import UserError
from scdd.data.files import locked
from scdd.lm.training import train
from scdd.training.meeting import _agreed
from scdd.training.parallel import world

from .conftest import Launch, curve, said, weights

pytestmark = pytest.mark.dist
SETS = ["training.steps=12", "training.save_every=4", "training.validate_every=12", "training.log_every=2"]


def alike(one: Path, other: Path) -> None:
    for mine, theirs in zip(curve(one), curve(other), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3)


@pytest.fixture
def calm(launch: Launch, tmp_path: Path) -> Path:
    assert launch(tmp_path / "calm", sets=SETS) == [0]
    return tmp_path / "calm"


def test_two_nodes_of_which_one_loses_a_rank_go_on_by_themselves(launch: Launch, tmp_path: Path, calm: Path) -> None:
    """Two of torchrun's agents with two ranks each; a copy of the model is shared by the ranks of each."""
    out = tmp_path / "killed"
    codes = launch(out, 4, [*SETS, "training.parallel=hsdp"], nodes=2, hook=["hooks:die_in_step", 2, 9])
    assert codes == [0, 0], said(tmp_path, out)
    assert "on 4 × cpu (hsdp)" in said(tmp_path, out)
    assert said(tmp_path, out).count("resuming from") == 1
    assert f"resuming from {out / 'checkpoints' / 'step-00000008'}" in said(tmp_path, out)
    alike(calm, out)


def test_four_ranks_then_two_then_one_are_as_one_all_along(launch: Launch, tmp_path: Path, calm: Path) -> None:
    """Each number of ranks ends with one of them killed; gradients are accumulated over pieces of different sizes."""
    out = tmp_path / "fewer"
    for ranks, rows, step in ((4, 1, 5), (2, 2, 9)):
        sets = [*SETS, "training.parallel=fsdp", f"training.micro_batch_size={rows}"]
        assert launch(out, ranks, sets, hook=["hooks:die_in_step", 1, step]).count(-signal.SIGKILL) >= 1
    assert launch(out, sets=[*SETS, "training.parallel=fsdp"]) == [0], said(tmp_path, out)
    for step in (4, 8):
        assert f"resuming from {out / 'checkpoints' / f'step-{step:08d}'}" in said(tmp_path, out)
    alike(calm, out)
    one, other = weights(calm), weights(out)
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(other[name], one[name], atol=2e-4, rtol=2e-3, msg=name)


def test_a_rank_that_does_not_answer_ends_the_run_in_time(launch: Launch, tmp_path: Path) -> None:
    """It is alive and says nothing: no connection is closed."""
    out, began = tmp_path / "silent", time.monotonic()
    sets = [*SETS, "training.timeout=3", "training.parallel=fsdp", "training.save_every=1"]
    codes = launch(out, 2, sets, hook=["hooks:sleep_in_step", 1, 1])
    assert time.monotonic() - began < 60
    assert codes[0] == 1
    assert "imed out" in said(tmp_path, out)


def test_a_restarted_run_waits_for_the_one_before_to_let_go(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with ExitStack() as held:
        held.enter_context(locked(out))
        with pytest.raises(UserError, match="in use by another process"):
            train(recipe_file, out, overrides=["training.steps=1"], progress=False)
        monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
        threading.Timer(0.5, held.close).start()
        train(recipe_file, out, overrides=["training.steps=1"], progress=False)


def test_a_number_of_ranks_that_makes_no_copies_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "4", "RANK": "0", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="shard_ranks is 3, which 4 processes are no multiple of"), world("hsdp", "cpu"):
        pass


def test_ranks_meet_in_spite_of_what_earlier_starts_left(tmp_path: Path) -> None:
    """The store is full of an earlier start's keys, which name ranks that are gone."""
    store = torch.distributed.HashStore()
    limit = timedelta(seconds=20)
    names = []
    for size in (3, 3, 2):
        found: dict[int, str] = {}

        def come(rank: int, size: int = size, found: dict[int, str] = found) -> None:
            found[rank] = _agreed(store, rank, size, limit)

        ranks = [threading.Thread(target=come, args=(rank,)) for rank in reversed(range(size))]
        for each in ranks:
            each.start()
            time.sleep(0.03)  # rank 0 comes last, and the others find the meeting of the start before
        for each in ranks:
            each.join(20)
        assert len(found) == size
        assert len(set(found.values())) == 1
        names.append(found[0])
    assert len(set(names)) == 3


# -- torchrun itself --------------------------------------------------------------------------------------------------


def torchrun(recipe: Path, out: Path, port: int, nodes: str, log: Path) -> subprocess.Popen[bytes]:
    """One node's agent, with two ranks."""
    rendezvous = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
    command = [*(sys.executable, "-m", "torch.distributed.run"), f"--nnodes={nodes}", "--nproc-per-node=2"]
    command += ["--max-restarts=3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=run"]
    command += [f"--rdzv-conf={rendezvous}", "--local-addr=127.0.0.1", "--monitor-interval=0.2"]
    command += ["-m", "scdd", "train", str(recipe), "--out", str(out), "--device", "cpu"]
    command += [part for each in (*SETS, *LONG) for part in ("--set", each)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if ":" in nodes:  # without it, torchrun 2.13 waits in vain for a node that comes later
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env=environment)


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def until(there: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


LONG = ["training.steps=200", "training.save_every=20", "training.validate_every=200", "training.parallel=fsdp"]
LONG += ["training.learning_rate=1e-3"]  # in so many steps a larger one makes roundings visible


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["rank", "node"])
def test_torchrun_goes_on_without_a_rank_or_a_node(
    launch: Launch, recipe_file: Path, tmp_path: Path, lost: str
) -> None:
    """kill -9 at whatever moment it is: one rank, which is started anew, or all of a node, without which the other goes on."""
    assert launch(tmp_path / "calm", sets=[*SETS, *LONG]) == [0]
    out = tmp_path / "killed"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    nodes, logs = "2" if lost == "rank" else "1:2", [tmp_path / f"agent{node}" for node in range(2)]
    agents = [torchrun(recipe_file, out, port, nodes, logs[0])]
    try:
        time.sleep(1)  # the first one has the store of the rendezvous, and is not lost
        agents.append(torchrun(recipe_file, out, port, nodes, logs[1]))
        until(lambda: any((out / "checkpoints").glob("step-00000020")))
        until(lambda: "on 4 × cpu" in logs[0].read_text() + logs[1].read_text())
        ranks = children(agents[1].pid)
        if lost == "node":
            agents[1].kill()
        for pid in ranks if lost == "node" else ranks[:1]:
            os.kill(pid, signal.SIGKILL)
        for agent in agents if lost == "rank" else agents[:1]:
            assert agent.wait(240) == 0, logs[0].read_text()[-3000:]
    finally:
        for agent in agents:
            for pid in (*children(agent.pid), agent.pid) if agent.poll() is None else ():
                os.kill(pid, signal.SIGKILL)
            agent.wait()
    told = "".join(log.read_text() for log in logs)
    assert "on 4 × cpu (fsdp)" in told
    assert "resuming from" in told
    assert ("on 2 × cpu (fsdp)" in told) == (lost == "node")
    end, same = curve(out)[-1], curve(tmp_path / "calm")[-1]
    assert end == pytest.approx(same, rel=1e-3)
