"""Every shipped recipe builds, on the meta device, into what the paper says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import scdd
from scdd.assemble import training as build
from scdd.assemble.network import network, start_network
from scdd.bundle.folder import Identity, read, write
from scdd.core import UserError, Vocab
from scdd.models.llama import Llama
from scdd.models.options import LlamaConfig, PretrainedOptions
from scdd.objectives.ar import ArObjective
from scdd.objectives.base import BatchSlice
from scdd.objectives.diffusion import DiffusionObjective
from scdd.objectives.options import DENSITIES
from scdd.objectives.prism import PrismObjective
from scdd.objectives.times import Adaptive, Uniform
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.base import make_process
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.recipe.load import from_dict, load, shipped
from scdd.recipe.sections import Recipe
from scdd.samplers.options import SamplingOptions
from scdd.training.parallel import World

from . import tiny
from .layouts import numbers

GPT2 = Vocab(size=50_258, mask_id=50_257)
SYSTEMS = ("scdd-0.1", "scdd-0.2", "gidd+-0.1", "gidd+-0.2", "mdlm", "ar")
TABLE = {"wikitext103": (512, 100_000, 128), "lm1b": (128, 500_000, 512), "owt": (512, 1_000_000, 256)}


@pytest.mark.parametrize("name", [name for name in shipped() if load(name).model.kind != "pretrained"])
def test_every_shipped_recipe_builds_on_the_meta_device(name: str) -> None:
    spec = load(name)
    with torch.device("meta"):
        net = network(spec, GPT2)
    objective = build.objective(spec, GPT2)
    assert all(p.is_meta for p in net.parameters())
    tokens = torch.zeros(2, spec.data.length, dtype=torch.int64, device="meta")
    time = (
        torch.zeros(2, dtype=torch.float64, device="meta") if getattr(spec.model, "time_conditioning", False) else None
    )
    assert net.hidden(tokens, time).shape == (2, spec.data.length, net.config.width)
    times = getattr(spec.objective, "times", None)
    assert bool(objective.state_dict()) == (times is not None and times.kind == "adaptive"), "what is learnt is kept"


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal model of the Llama family, as `scdd convert` leaves one."""
    tokenizer, shape = (
        tiny.tokenizer(),
        LlamaConfig(depth=2, width=32, heads=4, kv_heads=2, head_width=8, mlp_width=48, causal=True),
    )
    net = Llama(shape, tokenizer.vocab, torch.Generator().manual_seed(1))
    facts = {"vocab": tokenizer.vocab, "tokenizer": tokenizer.to_str(), "network": net.description()}
    return write(
        tmp_path_factory.mktemp("parent") / "parent", Identity(recipe="name: parent\n", **facts), net.state_dict()
    )


@pytest.mark.parametrize("name", [name for name in shipped() if load(name).model.kind == "pretrained"])
def test_every_shipped_recipe_that_starts_from_a_model_trains_it(name: str, parent: Path, tmp_path: Path) -> None:
    """Its network is the other model's, so there is nothing to build without one: a small one makes a step."""
    spec = load(name)
    assert isinstance(spec.model, PretrainedOptions)
    pairs = spec.data.kind == "pairs"
    line = {"prompt": "The river runs", "response": tiny.TEXT}
    (tmp_path / "data.jsonl").write_text(f"{json.dumps(line if pairs else {'text': tiny.TEXT * 8})}\n" * 64)
    small = ["training.steps=2", "training.batch_size=4", "training.micro_batch_size=2", "training.validate_batches=1"]
    data = [*([] if pairs else ["data.kind=text"]), f"data.path={tmp_path / 'data.jsonl'}"]
    soon = ["training.warmup_steps=1", f"training.grow_attention={min(1, spec.training.grow_attention)}"]
    if name == "adapt/student":  # whose blocks and teacher are test_teacher's
        soon += ["model.layers=null", "objective.teacher=null"]
    spec = load(name, [*data, *small, f"training.start_from={parent}", *soon])
    corpus = build.corpus(spec)
    assert corpus.tokenizer.hash == tiny.tokenizer().hash
    trainer = build.trainer(spec, tmp_path / "run", World(), corpus)
    before = {key: value.clone() for key, value in trainer.module.network.state_dict().items()}
    assert all(torch.equal(value, before[key]) for key, value in read(parent).weights.items())
    assert not trainer.module.network.causal
    trainer.run()
    assert (trainer.step, trainer.module.network.width) == (2, 32)
    assert not all(torch.equal(value, before[key]) for key, value in read(tmp_path / "run").weights.items())


def test_how_a_parent_reads_its_rows_is_taken_over_where_it_fits(tmp_path: Path) -> None:
    tokenizer, shape = (
        tiny.tokenizer(),
        LlamaConfig(
            depth=1, width=16, heads=2, kv_heads=1, head_width=8, mlp_width=16, attention_window=30, context=160
        ),
    )
    net = Llama(shape, tokenizer.vocab, torch.Generator().manual_seed(1))
    facts = {"vocab": tokenizer.vocab, "tokenizer": tokenizer.to_str(), "network": net.description()}
    parent = write(tmp_path / "near", Identity(recipe=tiny.RECIPE, **facts), net.state_dict())
    ar = ["process={kind: ar}", "objective={kind: ar}", "sampling.sampler={kind: ar}"]

    def reads(*changes: str, model: str = "") -> tuple[int | None, int | None]:
        text = f"model={{kind: pretrained{model}}}"
        spec = load("nano", [f"training.start_from={parent}", text, *changes])
        made, _ = start_network(spec, tmp_path / "run", tokenizer, None)
        return made.attention_window, made.context

    assert reads("data.length=64") == (30, 160)
    assert reads("data.length=256") == (30, None)  # rows are longer now than the parent could read
    assert reads("data.length=64", model=", attention_window: 63, context: 640") == (63, 640)
    assert reads("data.length=64", model=", attention_window: 0") == (None, 160)
    assert reads("data.length=64", *ar) == (None, 160)
    with pytest.raises(UserError, match="attention_window 9 is for networks that read both sides"):
        reads("data.length=64", *ar, model=", attention_window: 9")
    with pytest.raises(UserError, match=r"model\.context 32 is shorter than .* data\.length 64"):
        reads("data.length=64", model=", context: 32")


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("corpus", TABLE)
def test_paper_recipes_hold_the_paper_s_numbers(corpus: str, system: str) -> None:
    spec = load(f"paper/{corpus}-{system}")
    length, steps, batch = TABLE[corpus]
    training = spec.training
    assert (spec.data.length, training.steps, training.batch_size) == (length, steps, batch)
    assert (training.learning_rate, training.initial_learning_rate, training.warmup_steps) == (5e-4, 1e-6, 10_000)
    assert (training.betas, training.epsilon, training.weight_decay, training.clip) == ((0.9, 0.999), 1e-9, 0.02, 1.0)
    assert (training.ema, training.final_fraction, training.precision) == (0.9999, 0.1, "bf16")
    assert training.muon is None
    kind = "ar" if system == "ar" else "ancestral"
    assert spec.sampling == SamplingOptions(sampler=type(spec.sampling.sampler)(kind=kind), top_p=0.9)
    with torch.device("meta"):
        net = network(spec, GPT2)
    assert (net.config.depth, net.config.width, net.config.heads, net.config.cond_width) == (12, 768, 12, 128)
    assert 160e6 < numbers(net) < 175e6, "about 166 M"
    objective = build.objective(spec, GPT2)
    if system == "ar":
        assert isinstance(objective, ArObjective)
        assert net.config.causal
        return
    assert isinstance(objective, DiffusionObjective)
    kind = {"scdd": SCDD, "gidd": GIDD, "mdlm": MDLM}[system.split("-")[0].rstrip("+")]
    assert type(objective.process) is kind
    if kind is GIDD:
        assert (objective.options.weighting, objective.times.steps) == ("dynamic", None)
    else:
        assert (objective.options.weighting, objective.times.steps) == ("elbo", 1000)
        assert isinstance(objective.times.density, Uniform)
    if kind is not MDLM:
        peak = objective.process.marginal(torch.tensor([0]), torch.tensor([0.5], dtype=torch.float64))
        noise = peak[0, 1 : GPT2.size - 1].sum().item()  # all but the token itself and the mask
        assert noise == pytest.approx(float(system[-3:]), rel=1e-4)


def small(**changes: object) -> Recipe:
    tree: dict[str, object] = {
        "name": "small",
        "data": {"kind": "text", "vocab_size": 300, "length": 16},
        "model": {"size": "custom", "depth": 1, "width": 8, "heads": 2},
        "process": {"kind": "scdd"},
        "training": {"steps": 2, "batch_size": 2, "warmup_steps": 0},
    }
    return from_dict({**tree, **changes})


@pytest.mark.parametrize("kind", DENSITIES)
def test_every_kind_of_times_draws(kind: str) -> None:
    spec = small(objective={"kind": "elbo", "steps": 50, "times": {"kind": kind}})
    objective = build.objective(spec, Vocab(10, 9))
    assert isinstance(objective, DiffusionObjective)
    times = objective.times.draw(BatchSlice(0, 0, 0, 4, 4))
    assert times.s is not None
    assert ((times.t - times.s) * 50).tolist() == pytest.approx([1] * 4)


def test_adaptive_times_take_their_settings() -> None:
    asked = {"power": 1.5, "bins": 7, "decay": 0.5, "floor": 0.25}
    spec = small(objective={"kind": "elbo", "steps": None, "times": {"kind": "adaptive", **asked}})
    objective = build.objective(spec, Vocab(10, 9))
    assert isinstance(objective, DiffusionObjective)
    density = objective.times.density
    assert isinstance(density, Adaptive)
    assert (density.bins, density.decay, density.floor) == (7, 0.5, 0.25)
    assert density.quantile(torch.tensor([0.25], dtype=torch.float64)).item() == pytest.approx(0.25**1.5)


@pytest.mark.parametrize("bias", [False, True])
def test_the_bias_at_the_input_token_is_learnt_if_asked_for(tmp_path: Path, bias: bool) -> None:
    model = {"size": "custom", "depth": 1, "width": 8, "heads": 2, "input_bias": bias}
    training = {"steps": 3, "batch_size": 4, "warmup_steps": 0, "ema": 0.0, "precision": "float32"}
    spec = small(model=model, training={**training, "compile": False})
    data = build.corpus(spec)
    build.trainer(spec, tmp_path / "run", World(), data).run()
    learnt = scdd.load(tmp_path / "run", device="cpu").network.output.input_bias
    assert (learnt is not None) == bias
    if learnt is not None:
        assert learnt.item() != 0
        # weights without one can begin to learn it, and an old scalar is read
        again = network(spec, data.tokenizer.vocab)
        again.load_state_dict({**again.state_dict(), "output.input_bias": torch.tensor(0.5)})
        assert again.output.input_bias is not None
        assert again.output.input_bias.item() == 0.5


@pytest.mark.parametrize(
    "schedule",
    [
        {"kind": "peaked", "p_u": 0.1},
        {"kind": "masked", "shape": "cosine"},
        {"kind": "decoupled", "gamma": {"kind": "polynomial"}, "rho": {"kind": "cosine"}},
        {"kind": "decoupled", "gamma": {"kind": "constant"}, "rho": {"kind": "polynomial", "power": 2.0}},
    ],
)
def test_every_schedule_builds(schedule: dict[str, object]) -> None:
    process = make_process(small(process={"kind": "scdd", "schedule": schedule}).process, Vocab(10, 9))
    assert isinstance(process, SCDD)


def test_prism_builds_with_a_head_of_the_network_s_width() -> None:
    spec = small(process={"kind": "mdlm"}, objective={"kind": "prism", "freeze": False})
    width = network(spec, Vocab(10, 9)).width
    objective = build.objective(spec, Vocab(10, 9), width)
    assert isinstance(objective, PrismObjective)
    assert not objective.options.freeze
    assert objective.quality(torch.zeros(1, 2, width)).shape == (1, 2)


def test_autoregression_has_no_forward_process() -> None:
    spec = small(process={"kind": "ar"}, objective={"kind": "ar"}, sampling={"sampler": {"kind": "ar"}})
    assert make_process(spec.process, Vocab(10, 9)) == Autoregressive(Vocab(10, 9))


def test_weights_depend_on_the_seed_alone() -> None:
    first, again = (network(small(seed=5), Vocab(10, 9)) for _ in range(2))
    other = network(small(seed=6), Vocab(10, 9))
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


def test_texts_are_split_by_document_and_a_single_one_by_its_end(tmp_path: Path) -> None:
    bundled = build.corpus(small())
    assert bundled.valid is not None
    assert bundled.train.n_documents > bundled.valid.n_documents >= 1
    (tmp_path / "one.txt").write_text("abcdefghij" * 100, encoding="utf-8")
    data = {"kind": "text", "path": str(tmp_path / "one.txt"), "vocab_size": 300, "length": 8, "valid_fraction": 0.1}
    one = build.corpus(small(data=data))
    assert one.valid is not None
    tokens = one.train.read(0, one.train.n_tokens - 1)
    assert one.tokenizer.decode(tokens.tolist()) == "abcdefghij" * 90
    with pytest.raises(UserError, match=r"data\.path: .*does not exist"):
        build.corpus(small(data={**data, "path": str(tmp_path / "absent.txt")}))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no text"):
        build.corpus(small(data={**data, "path": str(tmp_path / "empty")}))
