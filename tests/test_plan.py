"""`scdd plan` against what it speaks of: real networks, optimisers and measured runs; and what it says of them."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
import torch

from scdd.assemble import memory as memory_of
from scdd.assemble import pace as pace_of
from scdd.assemble.job import Job, job_of
from scdd.assemble.machines import GIB, GPUS, find
from scdd.assemble.measured import fitted, measured
from scdd.assemble.memory import memory, optimiser_states
from scdd.assemble.network import network
from scdd.assemble.pace import Constants, fit, pace
from scdd.assemble.plan import alternatives, cure, fits, largest_micro, plan, with_micro
from scdd.bundle.folder import ASSETS, meta
from scdd.cli.main import main
from scdd.cli.plan import refusal
from scdd.core.errors import UserError
from scdd.core.types import Vocab
from scdd.models.count import matrices
from scdd.models.options import DiTConfig, make_network
from scdd.ops.common import CHUNK_BYTES
from scdd.recipe.load import load, shipped
from scdd.training import muon
from scdd.training.optim import MovingAverage, Optimiser

PRETRAINED = {
    "adapt/fewer-ids": ["model={kind: llama, size: smollm2-135m}"],
    "adapt/llama": ["model={kind: llama, size: smollm2-360m}"],
    "adapt/smollm2-135m": ["model={kind: llama, size: smollm2-135m}"],
    "adapt/student": ["model={kind: llama, size: smollm2-135m}"],
}
"""Shipped recipes whose parent is not in the package, with a parent's shape."""
SMALL = (
    "data.length=16",
    "training.batch_size=8",
    "training.micro_batch_size=4",
    "training.start_from=null",
    "model={kind: llama, size: custom, depth: 2, width: 32, heads: 4, kv_heads: 2, mlp_width: 64}",
)


@pytest.mark.parametrize("name", shipped())
def test_parameters_of_every_shipped_recipe(name: str) -> None:
    changes = [*PRETRAINED.get(name, ()), *(["training.start_from=null"] if name in PRETRAINED else ())]
    made = plan(load(name, changes))
    causal = load(name, changes).process.kind == "ar"
    spec: Any = load(name, changes).model
    said = meta(ASSETS / "model")["network"] if spec.kind == "pretrained" else spec.description(causal)
    with torch.device("meta"):
        net = make_network(said, Vocab(made.job.vocab, made.job.vocab - 1))
    assert made.job.parameters.total == sum(p.numel() for p in net.parameters())
    assert made.job.parameters.blocks == sum(p.numel() for layer in net.layers() for p in layer.parameters())


def test_a_student_has_the_blocks_that_it_keeps_and_its_teacher_is_named() -> None:
    changes = ["training.start_from=bundled", "data.path=nowhere", "model.layers=null"]
    whole, small = (job_of(load("adapt/student", [*changes, f"model.depth={n}"])) for n in ("null", "3"))
    assert small[0].parameters.blocks * 14 == whole[0].parameters.blocks * 3
    assert any("objective.teacher is not counted" in notice for notice in small[2])


def test_rows_are_read_as_training_would_read_them() -> None:
    """A parent's window and context are taken where they fit, the recipe's own come first, and what training refuses is refused."""
    changes = ["training.start_from=bundled", "data.path=nowhere", "model={kind: pretrained}"]
    ar = ["process={kind: ar}", "objective={kind: ar}", "sampling.sampler={kind: ar}"]

    def reads(*more: str) -> tuple[Any, Any, list[str]]:
        made, _, notices = job_of(load("adapt/student", [*changes, *more]))
        assert not isinstance(made.shape, DiTConfig)
        return made.shape.attention_window, made.shape.context, [each for each in notices if "either side" in each]

    own = meta(ASSETS / "model")["network"]
    assert reads()[:2] == (own["attention_window"], own["context"])
    assert reads()[2] == []  # rows are as long as the window
    assert reads(*ar)[:2] == (None, own["context"])
    window, context, [told] = reads("data.length=2048")
    assert (window, context) == (own["attention_window"], None)
    assert f"a token sees {window} to either side of rows of 2048 tokens" in told
    assert reads("data.length=512", "model.attention_window=100", "model.context=600")[:2] == (100, 600)
    assert reads("data.length=512", "model.attention_window=0") == (None, own["context"], [])
    with pytest.raises(UserError, match=r"attention_window 9 is for networks that read both sides"):
        reads(*ar, "model.attention_window=9")


def test_a_window_that_cuts_rows_spares_products_and_costs_copies() -> None:
    changes = ["training.start_from=bundled", "data.path=nowhere", "model={kind: pretrained}", "data.length=1024"]
    near, whole = (plan(load("adapt/student", [*changes, f"model.attention_window={w}"])) for w in (255, 0))
    assert near.memory.activations > whole.memory.activations
    assert near.tokens == whole.tokens
    again = alternatives(near)["recompute"].activations
    assert again < alternatives(whole)["recompute"].activations * 1.2  # one block's copies at a time


@pytest.mark.parametrize("muon", ["null", "0.02"])
def test_optimiser_and_average_to_the_byte(muon: str) -> None:
    spec = load("adapt/smollm2-135m", [*SMALL, f"training.muon={muon}"])
    job, *_ = job_of(spec, vocab=150)
    net = network(spec, Vocab(150, 149))
    optimiser = Optimiser(net.named_parameters(), spec.training, net.hidden_matrices())
    held = memory(job)
    for tensors, counted in (
        (optimiser.state(), optimiser_states(job)),
        (optimiser.state(), held.moments),
        (MovingAverage(net).shadow, held.average),
        (dict(net.named_parameters()), held.weights),
    ):
        assert sum(t.numel() * t.element_size() for t in tensors.values()) == counted
    assert job.trained == sum(p.numel() for p in net.parameters() if p.requires_grad)


def test_constants_of_the_code() -> None:
    assert CHUNK_BYTES["cuda"] == memory_of.CHUNK
    assert muon.ROUNDS == pace_of.ROUNDS


# -- measured runs ------------------------------------------------------------------------------------------------------


def test_measured_runs_are_foreseen() -> None:
    """Within a tenth of the memory and a fifth of the speed, also where a size's own runs are left out."""
    assert len({run.size for run in measured()}) >= 4
    for run in measured():
        if run.memory is not None:
            assert memory(run.job).allocated / GIB == pytest.approx(run.memory, rel=0.1), run.said
        for constants in (fitted(), fitted(run.size)):
            assert pace(run.job, run.gpu, constants).tokens_per_second == pytest.approx(
                run.tokens_per_second, rel=0.2
            ), run.said
        assert run.said["command"]
        assert run.said["date"].startswith("20")


def test_the_fit_finds_constants_and_is_the_best() -> None:
    true = Constants(products=0.7, passes=4.0)
    jobs = [(run.job, run.gpu) for run in measured()]
    runs = [(job, gpu, pace(job, gpu, true).tokens_per_second) for job, gpu in jobs]
    found = fit(runs)
    assert (found.products, found.passes) == pytest.approx((0.7, 4.0), rel=1e-6)
    real = [(run.job, run.gpu, run.tokens_per_second) for run in measured()]

    def error(constants: Constants) -> float:
        return sum((1 - rate / pace(job, gpu, constants).tokens_per_second) ** 2 for job, gpu, rate in real)

    best = fit(real)
    for products, passes in ((1.01, 1.0), (0.99, 1.0), (1.0, 1.05), (1.0, 0.95)):
        assert error(best) < error(Constants(best.products * products, best.passes * passes))


# -- several GPUs ---------------------------------------------------------------------------------------------------------


def job(*changes: str, gpus: int = 1, **more: Any) -> Job:
    spec = load("adapt/smollm2-135m", ["model={kind: llama, size: smollm2-1.7b}", "training.start_from=null", *changes])
    return job_of(spec, gpus, vocab=49_153, **more)[0]


def test_what_sharding_divides() -> None:
    one_pass = "training.micro_batch_size=null"
    alone, *_ = (job(one_pass, "training.cuda_graphs=false"),)
    ddp, fsdp = (job(one_pass, f"training.parallel={kind}", gpus=16) for kind in ("ddp", "fsdp"))
    hsdp = replace(fsdp, sharing="hsdp")
    whole, parts, within = memory(ddp), memory(fsdp), memory(hsdp)
    for name in ("weights", "moments", "average"):
        assert getattr(parts, name) * 16 == pytest.approx(getattr(whole, name))
        assert getattr(within, name) * 8 == pytest.approx(getattr(whole, name))
    assert parts.needed < within.needed < whole.needed
    pairs = job(one_pass, "training.parallel=hsdp", "training.shard_ranks=2", gpus=16)
    assert memory(pairs).weights * 2 == whole.weights
    assert whole.passing == 0 < parts.passing
    assert memory(alone).weights == whole.weights
    # in several passes each GPU adds up whole gradients
    assert memory(with_micro(fsdp, 1)).gradients == 4 * fsdp.trained


@pytest.mark.slow  # importing FSDP takes seconds
def test_what_sharding_keeps_whole() -> None:
    """FSDP2 itself, on one rank: copies in bfloat16 outlive the layer they belong to, and so do gradients between passes."""
    from torch import distributed as dist
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    spec = load("adapt/smollm2-135m", [*SMALL, "training.micro_batch_size=2"])
    one, *_ = job_of(spec, vocab=150)
    several = memory(replace(one, sharing="fsdp", gpus=2))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net: Any = network(spec, Vocab(150, 149))
        for layer in net.layers():
            fully_shard(layer)
        fully_shard(net, reshard_after_forward=True)
        register_fsdp_forward_method(net, "hidden")
        net.compute_dtype = torch.bfloat16
        net.set_requires_gradient_sync(False)
        found: dict[str, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if tensor.dtype == torch.bfloat16 and tensor.shape in wanted:
                found[str(storage.data_ptr())] = storage.nbytes()
            return tensor

        wanted = {s for p in matrices(one.shape).values() for s in (torch.Size(p), torch.Size(p[::-1]))}
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            net.hidden(torch.randint(149, (1, 7))).float().sum().backward()
        assert sum(found.values()) == several.copies
        groups = [m._get_fsdp_state()._fsdp_param_group for m in (net, *net.layers())]
        parts = [each for group in groups for each in group.fsdp_params]
        whole = [each.unsharded_accumulated_grad or each._unsharded_param.grad for each in parts]
        assert sum(t.numel() * t.element_size() for t in whole) == several.gradients
    finally:
        dist.destroy_process_group()


def test_more_gpus_and_links() -> None:
    h100 = find("H100")
    steps = [pace(job("training.parallel=ddp", gpus=n), h100, fitted()) for n in (2, 8, 64)]
    assert [each.sent > 0 for each in steps] == [True] * 3
    assert steps[2].sent > steps[1].sent > steps[0].sent  # beyond a machine the network is slower
    assert 2 * steps[0].tokens_per_second < steps[1].tokens_per_second < 4 * steps[0].tokens_per_second
    starved = pace(job("training.parallel=fsdp", gpus=64), h100, fitted(), network=0.5)
    assert starved.step == starved.sent + starved.update
    within = pace(replace(job("training.parallel=fsdp", gpus=64), sharing="hsdp"), h100, fitted(), network=0.5)
    assert within.sent < starved.sent  # hsdp sends an eighth of the gradients between machines, and no weights
    wide = job("training.parallel=hsdp", "training.shard_ranks=64", gpus=64)  # one copy over all machines
    assert pace(wide, h100, fitted(), network=0.5).sent == pytest.approx(starved.sent)


# -- what fits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a100", "h100"])
def test_the_largest_micro_batch_fits_and_the_next_does_not(name: str) -> None:
    wanted = job("training.batch_size=64", "training.micro_batch_size=null", "data.length=2048", "training.muon=null")
    most = largest_micro(wanted, find(name))
    assert most is not None
    assert fits(with_micro(wanted, most), find(name))
    assert not fits(with_micro(wanted, 2 * most), find(name))


@pytest.mark.parametrize(
    ("gpu", "flags", "expected"),
    [
        ("h100", "--set training.micro_batch_size=256", "training.micro_batch_size"),
        ("4090", "--set training.muon=null", "--gpus"),
        ("h100", "--gpus 4 --set data.length=32768 --set training.batch_size=4 --set training.micro_batch_size=1", "recompute"),
        ("4090", "--gpus 8 --set training.muon=null", "training.parallel=fsdp"),
    ],
)  # fmt: skip
def test_a_cure_cures(gpu: str, flags: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["plan", "adapt/smollm2-135m", "--gpu", gpu, "--vocab", "49153", "--set", "training.start_from=null"]
    base += ["--set", "model={kind: llama, size: smollm2-1.7b}", *shlex.split(flags)]
    assert main([*base, "--json"]) == 2
    out, told = capsys.readouterr()
    assert json.loads(out)["fits"] is False
    assert told.startswith("error: a pass over ")
    assert expected in told
    cure = shlex.split(told.partition(": try ")[2].rstrip(".\n"))
    assert cure
    assert main([*base, *cure]) == 0
    assert "up to " in capsys.readouterr().out


def test_what_nothing_cures() -> None:
    made = plan(load("paper/owt-scdd-0.2", ["data.length=300000", "training.batch_size=1"]), gpu="l4")
    assert cure(made) is None
    assert "shorter rows" in refusal(made)


def test_alternatives_are_other_plans() -> None:
    spec = load("adapt/smollm2-135m", ["model={kind: llama, size: smollm2-135m}", "training.start_from=null"])
    made = plan(spec, 8, vocab=49_153)
    others = alternatives(made)
    assert set(others) == {"fsdp", "hsdp", "recompute"}
    again = plan(replace(spec, training=replace(spec.training, recompute=True)), 8, vocab=49_153)
    assert others["recompute"] == again.memory
    assert others["recompute"].activations < 0.3 * made.memory.activations
    assert "recompute" in alternatives(plan(load("paper/owt-scdd-0.2")))
    three = plan(load("paper/owt-scdd-0.2", ["training.batch_size=24"]), 12)
    assert set(alternatives(three)) == {"fsdp", "recompute"}, "12 GPUs are no copies of 8"


@pytest.mark.parametrize("recompute", ["true", "false"])
def test_alternatives_are_told_as_the_changes_that_make_them(
    recompute: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["plan", "paper/owt-scdd-0.2", "--gpus", "8", "--set", f"training.recompute={recompute}"]
    assert main(base) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("otherwise ")]
    told = [each.split(" GiB with ") for each in line.removeprefix("otherwise").strip().split(", ")]
    assert len(told) == 3
    for gib, change in told:
        assert main([*base, "--set", change, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["memory"]["needed"] / GIB == pytest.approx(float(gib), abs=0.06)


def test_the_table_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "paper/owt-scdd-0.2", "--gpus", "8", "--gpu", "a100"]) == 0
    out = capsys.readouterr().out
    numbers = {line[2:26].strip(): float(line[26:36]) for line in out.splitlines() if line.startswith("  ")}
    assert numbers["allocated"] == pytest.approx(sum(list(numbers.values())[:-2]), abs=0.03)
    assert "50,258 ids are assumed" in out
    assert "unless another number is given (--vocab)" in out
    assert "131 B tokens" in out  # the paper's
    made = plan(load("paper/owt-scdd-0.2"), 8, "a100")
    assert made.seconds == pytest.approx(1_000_000 * 256 * 512 / made.pace.tokens_per_second)


def test_a_prepared_corpus_says_vocabulary_and_epochs(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"The river {i} runs to the sea, and the sea is {i * 7} wide." for i in range(400)))
    out = tmp_path / "shards"
    assert main(["prepare", str(text), "--out", str(out), "--train-tokenizer", "300", "--workers", "1"]) == 0
    capsys.readouterr()
    assert main(["plan", "wiki-small", "--set", f"data.path={out}", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    index = json.loads((out / "index.json").read_text())
    assert made["parameters"]["embedding"] == 512 * index["tokenizer"]["vocab_size"]
    assert made["epochs"] == made["tokens"] / index["splits"]["train"]["tokens"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nano", "--gpu", "h300"], "did you mean"),
        (["nano", "--gpus", "3"], "--gpus is 3, and training.batch_size 32 cannot be shared"),
        (["nano", "--gpus", "2"], "training.parallel is none"),
        (["nano", "--network", "nan"], "--network is nan"),
        (["nano", "--vocab", "1"], "--vocab is 1: choose one from 2"),
        (["nano", "--gpus", "4", "--set", "training.parallel=hsdp", "--set", "training.shard_ranks=3"], "no multiple"),
        (["nano", "--gpus", "16", "--per-node", "5", "--set", "training.parallel=hsdp"], "no multiple"),
        (["adapt/llama"], "scdd convert"),
        (["nano", "--set", "model={kind: import, target: 'a:b'}"], "whose costs only your code knows"),
    ],
)
def test_mistakes(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_every_gpu_is_found_by_the_name_that_it_has() -> None:
    assert find("NVIDIA RTX 4090") is GPUS["4090"]
    assert find("nvidia-h100") is GPUS["h100"]
    with pytest.raises(UserError, match="choose one of"):
        find("abacus")
