"""Cores by the control groups' quotas, on made-up trees; and how threads are told to wait, whoever came first."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scdd.core import machine

ONE_AND_HALF = "150000 100000\n"


def tree(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, math.inf),
        ("0::/a/b\n", {"sys/fs/cgroup/a/cpu.max": ONE_AND_HALF, "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 1.5),
        ("0::/a/b\n", {"sys/fs/cgroup/a/cpu.max": "400000 100000", "sys/fs/cgroup/a/b/cpu.max": "50000 100000"}, 0.5),
        # a container that sees the host's name of its group, and its own group as the root
        ("0::/docker/1f\n", {"sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3.0),
        (
            "4:memory:/\n3:cpu,cpuacct:/pod/one\n",
            {
                "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/pod/one/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/pod/one/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        ("2:cpu:/x\n", {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "70000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 0.7),
        ("2:cpuset:/\n", {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "70000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "0"}, math.inf),
        ("0::/../../up\n", {"sys/fs/cgroup/cpu.max": "nonsense\n"}, math.inf),
        ("nonsense", {}, math.inf),
    ],
)  # fmt: skip
def test_quota(cgroup: str, files: dict[str, str], expected: float, tmp_path: Path) -> None:
    assert machine.quota(tree(tmp_path, cgroup, files)) == expected


def test_cores_are_whole_at_least_one_and_never_more_than_may_be_run_on(tmp_path: Path) -> None:
    allowed = len(os.sched_getaffinity(0))
    assert machine.cores(tmp_path) == allowed, "no control groups here"
    for quota, expected in ((50_000, 1), (199_999, 1), (200_000, min(2, allowed)), (10**9, allowed)):
        root = tree(tmp_path, "0::/\n", {"sys/fs/cgroup/cpu.max": f"{quota} 100000\n"})
        assert machine.cores(root) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx512_vnni sse", True), ("fpu amx_int8", True), ("fpu avx_vnni", True), ("fpu avx2 avx512f", False)],
)
def test_eight_bits_by_the_flags(flags: str, expected: bool, tmp_path: Path) -> None:
    assert not machine.multiplies_eight_bits(tmp_path)
    tree(tmp_path, "", {"proc/cpuinfo": f"processor : 0\nflags\t\t: {flags}\n"})
    assert machine.multiplies_eight_bits(tmp_path) is expected


@pytest.mark.parametrize(
    ("load", "told"),
    [
        ("0.1 0.1 0.1 1/77 5", {"GOMP_SPINCOUNT": machine.SPINS}),
        ("0.1 0.1 0.1 2/77 5", {"OMP_WAIT_POLICY": "PASSIVE"}),
        ("", {"OMP_WAIT_POLICY": "PASSIVE"}),
        (None, {"OMP_WAIT_POLICY": "PASSIVE"}),
    ],
)
def test_threads_spin_only_where_nobody_else_runs(
    load: str | None, told: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if load is not None:
        tree(tmp_path, "", {"proc/loadavg": load})
    monkeypatch.setattr(machine, "_late", False)
    for name in machine.WAITING:
        monkeypatch.setenv(name, "mine")  # so that it is put back afterwards
    machine.calm_threads(tmp_path)
    assert os.environ["OMP_WAIT_POLICY"] == "mine", "what was set stays"
    for name in machine.WAITING:
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    machine.calm_threads(tmp_path)
    assert {name: os.environ[name] for name in machine.WAITING if name in os.environ} == told


SEEN = """
import os, sys, threading
{before}
import scdd
told = os.environ.get("OMP_WAIT_POLICY") or os.environ.get("GOMP_SPINCOUNT")
print(told, "torch" in sys.modules and not {late})
{after}
lm = scdd.LM
import torch
assert not scdd.core.machine._late
print(torch.get_num_threads(), [each.name for each in threading.enumerate() if each.name.startswith("scdd")])
"""


@pytest.mark.parametrize(
    ("before", "after", "told", "sleepers"),
    [
        ("", "import torch", ("PASSIVE", machine.SPINS), []),
        ("import torch", "", ("None",), ["scdd-outnumber"]),
        ("import torch; os.environ['OMP_WAIT_POLICY'] = 'ACTIVE'", "", ("ACTIVE",), []),
    ],
)
def test_threads_are_calmed_whoever_comes_first(
    before: str, after: str, told: tuple[str, ...], sleepers: list[str]
) -> None:
    """Before torch by the environment, after it by libgomp's rule for more threads than cores; never against the user."""
    code = SEEN.format(before=before, after=after, late="torch" in before)
    clean = {k: v for k, v in os.environ.items() if k not in (*machine.WAITING, *machine.COUNTING)}
    found = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True)
    first, second = found.stdout.splitlines()
    assert first in {f"{each} False" for each in told}
    threads, names = second.split(maxsplit=1)
    assert int(threads) == 1 << (machine.cores().bit_length() - 1)
    assert names == str(sleepers)


def test_alone_and_together() -> None:
    """One thread inside, all of them again within, and as before afterwards, whatever happens."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with machine.alone():
            inside = torch.get_num_threads()
            with machine.together():
                assert torch.get_num_threads() == 2
            with machine.alone():
                assert torch.get_num_threads() == inside
            assert torch.get_num_threads() == inside
        with pytest.raises(KeyError), machine.alone(), machine.together():
            raise KeyError
        assert torch.get_num_threads() == 2
        with machine.together():
            assert torch.get_num_threads() == 2
        assert inside == (1 if machine._libgomp() is not None else 2)
    finally:
        torch.set_num_threads(before)


FAULTS = """
import resource, torch
from scdd.core import machine
torch.set_num_threads(1)
kept = machine.keep_memory()
def used():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        parts = [torch.ones(1 << 21) for _ in range(4)]  # 8 MiB each
        del parts
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
used()
print(int(kept), used())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc is asked")
def test_freed_memory_is_kept_unless_somebody_chose() -> None:
    def faults(**more: str) -> list[int]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
        done = subprocess.run(
            [sys.executable, "-c", FAULTS], env={**clean, **more}, capture_output=True, text=True, check=True
        )
        return [int(word) for word in done.stdout.split()]

    (kept, few), (chosen, many) = faults(), faults(MALLOC_TRIM_THRESHOLD_="0")
    assert not chosen
    if kept:
        assert few < many / 10


def test_torchs_own_library_is_told_among_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Maps are in the order of addresses, which is chance."""
    line = "7f00-7f01 r-xp 00000000 08:01 123 {}\n"
    (tmp_path / "proc" / "self").mkdir(parents=True)
    for order in (("sklearn.libs", "torch/lib"), ("torch/lib", "sklearn.libs")):
        maps = "".join(line.format(f"/x/{place}/libgomp.so.1") for place in order)
        (tmp_path / "proc" / "self" / "maps").write_text(maps)
        monkeypatch.setattr(machine, "ROOT", tmp_path)
        monkeypatch.setattr(ctypes, "CDLL", lambda path: path)
        assert machine._libgomp.__wrapped__() == "/x/torch/lib/libgomp.so.1"
