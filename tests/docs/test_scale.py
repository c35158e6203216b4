"""The pages about scale: tables as they are calculated now, job files that shells and clusters can read, a Dockerfile that finds what it copies."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from scdd.assemble.machines import GIB
from scdd.assemble.measured import fitted
from scdd.cli.main import main
from scdd.cli.plan import large
from scdd.cli.serve import is_loopback
from tests.docs.pages import ROOT, blocks, tool
from tests.docs.test_commands import commands, parse

SCALE = ROOT / "docs" / "scale"


def test_the_tables_are_those_of_now() -> None:
    page = SCALE / "sizing.md"
    text = page.read_text(encoding="utf-8")
    assert tool("sizing").written(text) == text, "python tools/sizing.py writes them"
    assert f"({fitted().products:.2f} and {fitted().passes:.1f})" in text


def test_a_row_is_what_its_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = SCALE / "sizing.md"
    [arguments] = [each for block in blocks(page, "sh") for each in commands(block.code)]
    assert main([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    [row] = re.findall(r"^\| 3\.1 B \| 64 \| (.+) \|$", page.read_text(encoding="utf-8"), re.M)
    found = [
        said["parallel"],
        str(said["micro_batch_size"]),
        "yes",
        f"{said['memory']['needed'] / GIB:.0f}",
        large(said["tokens_per_second"]),
    ]
    assert row.split(" | ")[:5] == found


@pytest.mark.parametrize(("file", "language"), [("train.sbatch", "bash"), ("train-job.yaml", "yml")])
def test_files_are_shown_whole(file: str, language: str) -> None:
    [shown] = blocks(SCALE / "many-nodes.md", language)
    assert shown.code == (SCALE / file).read_text(encoding="utf-8")


def torchrun(words: list[str]) -> Any:
    """What torchrun makes of its flags; what it starts must be a command of scdd's."""
    known = get_args_parser().parse_args(words)
    assert (known.module, known.training_script) == (True, "scdd")
    parse(known.training_script_args)
    assert known.rdzv_backend == "c10d"
    assert known.max_restarts > 0
    return known


def test_the_slurm_file(tmp_path: Path) -> None:
    """It runs: with stand-ins for SLURM's commands that print what they are given."""
    file = SCALE / "train.sbatch"
    subprocess.run(["bash", "-n", str(file)], check=True)
    for name, body in {"scontrol": "echo node-a; echo node-b", "srun": 'printf "%s\\n" "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    around = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_NNODES": "2"}
    around |= {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "4", "SLURM_CPUS_PER_TASK": "32"}
    command = ["bash", str(file), "nano", "my run", "--set", "training.steps=3"]
    done = subprocess.run(command, env=around, capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    known = torchrun(words[words.index("torchrun") + 1 :])
    assert (known.nnodes, known.nproc_per_node, known.rdzv_endpoint, known.rdzv_id) == ("2", "4", "node-a:29500", "7")
    assert known.training_script_args[:4] == ["train", "nano", "--out", "my run"]
    assert known.training_script_args[-2:] == ["--set", "training.steps=3"]
    refused = subprocess.run(["bash", str(file), "nano"], env=around, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "RUN-FOLDER is missing" in refused.stderr


def test_the_kubernetes_file() -> None:
    service, job = yaml.safe_load_all((SCALE / "train-job.yaml").read_text(encoding="utf-8"))
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    known = torchrun(container["args"])
    assert container["command"] == ["torchrun"]
    assert int(known.nnodes) == spec["completions"] == spec["parallelism"]
    assert int(known.nproc_per_node) == container["resources"]["limits"]["nvidia.com/gpu"]
    name, port = known.rdzv_endpoint.split(":")
    assert name == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert [int(port)] == [each["port"] for each in service["spec"]["ports"]]
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}
    assert pod["securityContext"]["runAsUser"] == 1000  # the image's


# -- the container --------------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """(Instruction, what follows) of the Dockerfile, lines joined and comments left out."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())
    ]


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps a file from the builder; the last line that matches counts."""
    verdict = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip().removeprefix("!")
        if not pattern or pattern.startswith("#"):
            continue
        parents = [path, *(str(parent) for parent in Path(path).parents)]
        if any(
            fnmatch.fnmatch(each, pattern) or fnmatch.fnmatch(f"/{each}", pattern.replace("**", "*"))
            for each in parents
        ):
            verdict = not line.startswith("!")
    return verdict


def test_the_dockerfile_copies_what_there_is() -> None:
    stages: set[str] = set()
    for word, rest in instructions():
        if word == "FROM" and " AS " in rest:
            stages.add(rest.split()[-1])
        if word != "COPY":
            continue
        words = shlex.split(rest)
        if words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in stages
            continue
        for source in words[:-1]:
            assert (ROOT / source).exists(), source
            assert not ignored(source), source
    assert {"build", "cpu", "cuda"} == stages
    assert ignored("docs/scale/sizing.md")
    assert ignored("src/scdd/__pycache__/x.pyc")
    assert not ignored("src/scdd/assets/model/model.safetensors")


def test_the_dockerfile_installs_pinned_versions_and_gives_up_its_rights() -> None:
    all_of = instructions()
    installs = [rest for word, rest in all_of if word == "RUN" and "pip install" in rest]
    assert len(installs) == 2
    assert all("-c constraints.txt" in rest for rest in installs)
    users = [rest for word, rest in all_of if word == "USER"]
    assert users[-1] == "scdd"
    for at, (word, rest) in enumerate(all_of):  # each target ends as an ordinary user
        if word == "FROM" and at:
            before = [r for w, r in all_of[:at] if w == "USER"]
            assert not before or before[-1] == "scdd", rest


def test_the_container_serves_others_with_a_token_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    [entry] = [rest for word, rest in instructions() if word == "ENTRYPOINT"]
    [command] = [rest for word, rest in instructions() if word == "CMD"]
    assert yaml.safe_load(entry) == ["scdd"]
    words = yaml.safe_load(command)
    parse(words)
    assert not is_loopback(words[words.index("--host") + 1])
    assert "--no-token" not in words
    monkeypatch.delenv("SCDD_TOKEN", raising=False)
    assert main(words) == 2
    assert "set a token (SCDD_TOKEN)" in capsys.readouterr().err
