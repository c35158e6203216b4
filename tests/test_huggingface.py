"""`scdd export --hf`: one folder that transformers loads without scdd and that stays a bundle, with the same logits."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.nn import functional as F

import scdd as package
from scdd.bundle import folder as bundle
from scdd.bundle.card import parted
from scdd.cli.main import main
from scdd.core.types import Vocab
from scdd.models.heads import QualityHead
from scdd.models.options import make_network
from scdd.processes.base import make_process
from scdd.processes.options import MdlmOptions, NoisyOptions
from scdd.recipe import load as recipe
from scdd.samplers.base import SHAPES, grid
from scdd.schedules.options import (
    ConstantOptions,
    CosineOptions,
    DecoupledOptions,
    MaskedOptions,
    PeakedOptions,
    PolynomialOptions,
)

from . import tiny

DIT = {"kind": "dit", "depth": 2, "width": 32, "heads": 2, "cond_width": 16}
LLAMA = {"kind": "llama", "depth": 2, "width": 32, "heads": 4, "kv_heads": 2, "head_width": 10, "mlp_width": 48}
STRETCHED = {"kind": "llama3", "factor": 8.0, "original_length": 16}
NETWORKS: dict[str, dict[str, Any]] = {
    "plain": DIT,
    "sigma": {**DIT, "time_conditioning": True, "input_bias": True},
    "t": {**DIT, "time_conditioning": True, "time_input": "t"},
    "causal": {**DIT, "causal": True},
    "llama": {**LLAMA, "rotary_base": 500.0, "rotary_scaling": STRETCHED},
    "llama-biases": {**LLAMA, "qkv_bias": True, "out_bias": True, "mlp_bias": True, "tied": False, "eps": 0.1},
    "llama-near": {**LLAMA, "attention_window": 3, "context": 40},
    "llama-causal": {**LLAMA, "qk_norm": True, "causal": True, "rotary_scaling": {"kind": "linear", "factor": 2.0}},
}
TEXT = "The river runs to the sea."
AUTOREGRESSIVE = ("process.kind=ar", "objective.kind=ar", "sampling.sampler.kind=ar")
CHAT = "{% for m in messages %}{{ m.content }}{% endfor %}"
WEIGHTS = {"sigma": "bfloat16"}  # the others float32


def checkpoint(folder: Path, description: dict[str, Any]) -> Path:
    """A bundle of that network with random weights, and a quality head that transformers must overlook."""
    tokenizer, generator = tiny.tokenizer(), torch.Generator().manual_seed(1)
    network = make_network(description, tokenizer.vocab, generator)
    weights = {
        name: value + 0.2 * torch.randn(value.shape, generator=generator)
        for name, value in network.state_dict().items()
    }
    head = QualityHead(network.width, generator=generator)
    weights |= {f"quality.{name}": value for name, value in head.state_dict().items()}
    spec = recipe.loads(tiny.RECIPE, overrides=AUTOREGRESSIVE if description.get("causal") else ())
    identity = bundle.Identity(
        recipe=recipe.dumps(spec),
        vocab=tokenizer.vocab,
        tokenizer=tokenizer.to_str(),
        network=network.description(),
        extra={"chat_template": CHAT},
    )
    return bundle.write(folder, identity, weights)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported folders, and what transformers found in them, in a process that cannot import scdd."""
    place = tmp_path_factory.mktemp("hf")
    cases = []
    for name, description in NETWORKS.items():
        source = checkpoint(place / f"source-{name}", description)
        options = ["--hf", "--weights", WEIGHTS.get(name, "float32")]
        assert main(["export", str(source), "--out", str(place / name), *options]) == 0
        flags = {"causal": bool(description.get("causal")), "time": bool(description.get("time_conditioning"))}
        [code] = re.findall(r"```python\n(.*?)```", (place / name / "README.md").read_text(), re.DOTALL)
        cases.append({"name": name, "folder": str(place / name), "text": TEXT, "code": code, **flags})
    (place / "cases.json").write_text(json.dumps(cases))
    torch.save(inputs(), place / "inputs.pt")
    environment = {**os.environ, "HF_HOME": str(place / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("without_scdd.py")
    ran = subprocess.run(
        [sys.executable, str(script), str(place)],
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return place


@pytest.fixture(scope="module")
def found(place: Path) -> dict[str, dict[str, Any]]:
    return torch.load(place / "found.pt", weights_only=True)  # type: ignore[no-any-return]


def inputs() -> dict[str, torch.Tensor]:
    generator, mask_id = torch.Generator().manual_seed(2), tiny.tokenizer().mask_id
    ids = torch.randint(0, tiny.tokenizer().size - 1, (2, 11), generator=generator)
    labels = ids.clone()
    labels[:, ::2] = -100
    ids[:, 1::3] = mask_id
    labels[labels == mask_id] = -100
    return {"ids": ids, "labels": labels, "t": torch.tensor([0.3, 0.9])}


def same(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-5) -> bool:
    seen = a.isfinite()
    return torch.equal(seen, b.isfinite()) and torch.allclose(a[seen], b[seen], rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", NETWORKS)
def test_transformers_gives_the_logits_of_the_same_folder(
    place: Path, found: dict[str, dict[str, Any]], name: str
) -> None:
    given, lm = inputs(), package.load(place / name, device="cpu")
    assert lm.network.description() == make_network(NETWORKS[name], tiny.tokenizer().vocab).description()
    told = given["t"] if lm.network.time_conditioning else None
    with torch.no_grad():
        ours = lm.network.logits(given["ids"], told)
    theirs = found[name]
    assert theirs["logits"].dtype == torch.float32
    assert not theirs["logits"][..., tiny.tokenizer().mask_id].isfinite().any()
    assert same(ours, theirs["logits"])
    assert torch.equal(theirs["as_tuple"], theirs["logits"])
    assert same(theirs["again"], theirs["logits"])
    assert same(theirs["alone"], theirs["padded"])
    if told is not None:
        with torch.no_grad():
            assert not same(ours, lm.network.logits(given["ids"], told / 2), 1e-3)


@pytest.mark.parametrize("name", NETWORKS)
def test_labels_give_a_loss_that_reaches_every_weight(found: dict[str, dict[str, Any]], name: str) -> None:
    logits, labels = found[name]["logits"], inputs()["labels"]
    if NETWORKS[name].get("causal"):
        logits, labels = logits[:, :-1], labels[:, 1:]
    assert torch.allclose(found[name]["loss"], F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    assert bool(found[name]["gradient"])


@pytest.mark.parametrize("name", NETWORKS)
def test_the_longest_row_is_the_contexts(place: Path, found: dict[str, dict[str, Any]], name: str) -> None:
    """Longer than the window of the network that has one; one token more is refused, as scdd refuses it."""
    lm, own = package.load(place / name, device="cpu"), tiny.tokenizer()
    row = torch.randint(0, own.size - 1, (1, lm.context + 1), generator=torch.Generator().manual_seed(3))[:, :-1]
    assert not (window := lm.network.attention_window) or row.shape[1] > window + 1
    told = inputs()["t"][:1] if lm.network.time_conditioning else None
    with torch.no_grad():
        assert same(lm.network.logits(row, told), found[name]["longest"])
    said = f"A row has {lm.context + 1} tokens and the model's context holds {lm.context} (max_position_embeddings):"
    assert found[name]["refused"].startswith(said)


def test_rows_are_as_long_as_the_network_says(place: Path) -> None:
    facts = json.loads((place / "llama-near" / "config.json").read_text())
    assert facts["max_position_embeddings"] == package.load(place / "llama-near", device="cpu").context == 40
    assert package.load(place / "llama", device="cpu").context == recipe.loads(tiny.RECIPE).data.length


def test_the_tokenizer_frames_a_text_and_knows_its_mask(found: dict[str, dict[str, Any]]) -> None:
    own = tiny.tokenizer()
    for each in NETWORKS:
        whole = [own.bos_id, *own.encode(TEXT), own.eos_id]
        assert found[each]["text"] == (whole[:-1] if "causal" in each else whole)  # the end is not a prompt's
        assert found[each]["tokens"] == [own.bos, own.eos, own.mask, own.eos]


def test_weights_keep_their_names_and_come_back_unchanged(place: Path) -> None:
    for name in NETWORKS:
        kind = WEIGHTS.get(name, "float32")
        ours, theirs = (load_file(place / each / "model.safetensors") for each in (name, f"again-{name}"))
        assert {key for key in ours if not key.startswith("quality.")} == theirs.keys()
        assert all(torch.equal(ours[key].float(), value) for key, value in theirs.items())
        assert {value.dtype for value in ours.values()} == {getattr(torch, kind)}
        assert json.loads((place / name / "config.json").read_text())["torch_dtype"] == kind


@pytest.mark.parametrize("name", NETWORKS)
def test_what_transformers_saves_comes_back(place: Path, name: str, tmp_path: Path) -> None:
    first, back = package.load(place / name, device="cpu"), package.load(place / f"again-{name}", device="cpu")
    assert back.network.description() == first.network.description()
    assert (repr(back.process), back.sampling, back.context) == (repr(first.process), first.sampling, first.context)
    assert back.tokenizer.encode(TEXT) == first.tokenizer.encode(TEXT)
    assert back.chat_template == first.chat_template == CHAT
    weights = first.network.state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in back.network.state_dict().items())
    shutil.copytree(place / f"again-{name}", tmp_path / "other")
    facts = json.loads((tmp_path / "other" / "config.json").read_text())
    for change, said in (
        ({"network": {**facts["network"], "kind": "import", "target": "os:system"}}, "kind import"),
        ({"network": 7}, "does not say network"),
        ({"vocab_size": 7}, "do not agree"),
    ):
        (tmp_path / "other" / "config.json").write_text(json.dumps({**facts, **change}))
        with pytest.raises(package.UserError, match=said):
            package.load(tmp_path / "other", device="cpu")


@pytest.mark.parametrize("name", ["causal", "llama-causal"])
def test_the_autoregressive_model_generates(place: Path, found: dict[str, dict[str, Any]], name: str) -> None:
    rows, lm = inputs()["ids"][:, :4], package.load(place / name, device="cpu")
    own = tiny.tokenizer()
    ended = torch.zeros(len(rows), dtype=torch.bool)
    for _ in range(5):
        with torch.no_grad():
            best = lm.network.logits(rows)[:, -1].argmax(-1)
        best = torch.where(ended, own.eos_id, best)
        ended |= best == own.eos_id
        rows = torch.cat([rows, best[:, None]], dim=1)
    assert torch.equal(found[name]["generated"], rows[:, : found[name]["generated"].shape[1]])
    together, *alone = found[name]["written"]
    assert together == [text for [text] in alone], "prompts of several lengths, padded"


def test_the_end_of_a_turn_ends_a_text(tmp_path: Path) -> None:
    """A chat model that goes on after its turn would talk to itself."""
    source, own = bundle.read(checkpoint(tmp_path / "source", NETWORKS["causal"])), tiny.tokenizer()
    for number, (end, ids) in enumerate(
        {"": own.eos_id, own.eos: own.eos_id, own.bos: [own.eos_id, own.bos_id]}.items()
    ):
        template = "{% for m in messages %}{{ m.content }}" + end + "{% endfor %}"
        folder = bundle.write(
            tmp_path / str(number), replace(source, extra={"chat_template": template}), source.weights
        )
        assert main(["export", str(folder), "--out", str(tmp_path / f"out-{number}"), "--hf"]) == 0
        written = json.loads((tmp_path / f"out-{number}" / "generation_config.json").read_text())
        assert written["eos_token_id"] == ids


def test_sampling_without_scdd(found: dict[str, dict[str, Any]]) -> None:
    own, ids = tiny.tokenizer(), inputs()["ids"]
    for name in ("plain", "sigma", "t", "llama"):
        first, again, other = found[name]["drawn"]
        assert first.shape == (3, 14)
        assert found[name]["usual"].shape == (1, 40)  # the recipe's context
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert bool((first[:, 0] == own.bos_id).all() and (first[:, -1] == own.eos_id).all())
        filled, given = found[name]["filled"], ids != own.mask_id
        assert torch.equal(filled[given], ids[given])
        assert not bool((torch.cat([first.flatten(), filled.flatten()]) == own.mask_id).any())


# -- the reference sampler is the package's process ----------------------------------------------------------------------


def alone(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, bundle.ASSETS / "hf" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SAMPLING = alone("sampling_scdd")
PROCESSES = st.one_of(
    st.builds(
        NoisyOptions,
        kind=st.sampled_from(("scdd", "gidd")),
        schedule=st.one_of(
            st.builds(PeakedOptions, p_u=st.floats(0.0, 0.5), exponent=st.floats(0.3, 1.2)),
            st.builds(
                DecoupledOptions,
                gamma=st.builds(PolynomialOptions, power=st.floats(0.5, 2.0)),
                rho=st.one_of(st.builds(CosineOptions, end=st.floats(0.0, 0.5)), st.just(ConstantOptions())),
            ),
            st.builds(
                DecoupledOptions,
                gamma=st.builds(PolynomialOptions, end=st.floats(0.0, 0.3)),
                rho=st.one_of(st.just(CosineOptions()), st.builds(PolynomialOptions, power=st.floats(0.5, 2.0))),
            ),
        ),
    ),
    st.builds(MdlmOptions, schedule=st.builds(MaskedOptions, shape=st.sampled_from(("linear", "cosine")))),
)


@settings(max_examples=60, deadline=None)
@given(options=PROCESSES, times=st.tuples(st.floats(0.001, 1.0), st.floats(0.0, 0.999)), ends=st.booleans())
def test_the_reference_transition_is_the_packages(options: Any, times: tuple[float, float], ends: bool) -> None:
    vocab = Vocab(size=7, mask_id=3)
    t, s = times[0], 0.0 if ends else times[0] * times[1]
    z = torch.arange(7).repeat(3, 1)
    p_z = torch.tensor([0.0, 0.2, 1.0])[:, None].expand(3, 7).where(z != 3, torch.zeros(()))
    plain = json.loads(json.dumps(asdict(options)))  # as config.json has it
    at_t, at_s = (
        SAMPLING.levels(plain["schedule"], t),
        SAMPLING.CLEAN if s == 0 else SAMPLING.levels(plain["schedule"], s),
    )
    found = SAMPLING.transition(plain["kind"], z, p_z, (at_s, at_t), (7, 3))
    expected = make_process(options, vocab).transition(z, p_z, s, t)  # type: ignore[union-attr]
    for part, wanted in zip(found, expected, strict=True):
        assert torch.allclose(part.broadcast_to(z.shape), wanted.broadcast_to(z.shape), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_the_reference_times_are_the_packages(kind: str) -> None:
    assert SAMPLING.times(kind, 9) == pytest.approx(grid(kind, 9), abs=0)


def test_a_step_draws_what_the_transition_says() -> None:
    """Frequencies of a step's outcomes against the package's posterior, five standard deviations wide."""
    vocab, count = Vocab(size=5, mask_id=2), 40_000
    process = make_process(NoisyOptions(kind="scdd"), vocab)
    x_theta = torch.tensor([0.4, 0.3, 0.0, 0.2, 0.1])
    for token in (0, 2, 4):
        z = torch.full((1, count), token)
        p = x_theta.expand(1, count, 5)
        at = tuple(SAMPLING.levels(asdict(NoisyOptions(kind="scdd"))["schedule"], u) for u in (0.3, 0.6))
        move = SAMPLING.transition("scdd", z, p.gather(-1, z[..., None])[..., 0], at, (5, 2))
        drawn = SAMPLING.step(z, move, p, 2, torch.Generator().manual_seed(token))
        wanted = process.posterior(z[:, :1], p[:, :1], 0.3, 0.6)[0, 0]  # type: ignore[union-attr]
        share = torch.bincount(drawn[0], minlength=5) / count
        assert bool(((share - wanted).abs() <= 5 * (wanted * (1 - wanted) / count).sqrt() + 1e-9).all())


def test_filters_cut_as_the_packages_do() -> None:
    from scdd.core.types import Head
    from scdd.ops.common import Filters
    from scdd.ops.head import head_stats

    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(40, 8, generator=generator), torch.randn(128, 8, generator=generator)
    z = torch.randint(0, 29, (40,), generator=generator)
    head = Head(weight=weight, vocab=Vocab(size=30, mask_id=29))
    logits = (hidden @ weight[:30].T).index_fill(1, torch.tensor([29]), -torch.inf)
    for filters in (Filters(0.7, None, 0.8), Filters(1.0, 4, 1.0), Filters(0.9, 6, 1.3)):
        ours = head_stats(hidden, head, z, filters).log_p_z.exp()
        theirs = SAMPLING.filtered(logits, filters.temperature, filters.top_p, filters.top_k).gather(1, z[:, None])[
            :, 0
        ]
        assert torch.allclose(ours, theirs, atol=1e-6)
        assert bool((ours == 0).any())


# -- the folder and its card ---------------------------------------------------------------------------------------------


def test_the_card_is_the_models_own_with_how_to_use_it(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    front, body = parted((place / "plain" / "README.md").read_text())
    assert front["library_name"] == "transformers"
    assert front["pipeline_tag"] == "fill-mask"
    assert "license" not in front
    assert front["mask_token"] == "[MASK]"
    for said in ("Self-Correcting", "trust_remote_code", "scdd sample --model plain", "2 blocks of width 32"):
        assert said in body
    causal, body = parted((place / "causal" / "README.md").read_text())
    assert causal["pipeline_tag"] == "text-generation"
    assert "AutoModelForCausalLM" in body

    source = checkpoint(tmp_path / "source", DIT)
    own = "---\nlicense: cc-by-4.0\ntags: [mine]\n---\n\n# Mine\n\nPerplexity 12.\n"
    (source / "README.md").write_text(own)
    assert main(["export", str(source), "--out", str(tmp_path / "out"), "--hf"]) == 0
    text = (tmp_path / "out" / "README.md").read_text()
    front, body = parted(text)
    assert (front["license"], front["tags"][0]) == ("cc-by-4.0", "mine")
    assert body.startswith("# Mine\n\nPerplexity 12.\n")
    assert main(["export", str(tmp_path / "out"), "--out", str(tmp_path / "other"), "--hf"]) == 0
    assert (tmp_path / "other" / "README.md").read_text() == text.replace('"out"', '"other"').replace(
        "--model out", "--model other"
    )
    for code in (place / "plain").glob("*.py"):
        assert "import scdd" not in code.read_text()


def test_a_config_does_not_outlive_its_weights(tmp_path: Path) -> None:
    source, out = checkpoint(tmp_path / "source", DIT), tmp_path / "out"
    assert main(["export", str(source), "--out", str(out), "--hf"]) == 0
    assert (out / "config.json").exists()
    assert main(["export", str(source), "--out", str(out), "--weights", "int8", "--force"]) == 0
    assert {each.name for each in out.iterdir()} == {*bundle.FILES, "README.md"}
    (out / "config.json").write_text("{}")  # somebody else's
    assert main(["export", str(source), "--out", str(out), "--force"]) == 0
    assert (out / "config.json").read_text() == "{}"


def test_what_transformers_could_not_load_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = checkpoint(tmp_path / "source", DIT)
    assert main(["export", str(source), "--out", str(tmp_path / "out"), "--hf", "--weights", "int8"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --weights int8 ")
    assert "bfloat16" in line
    meta = json.loads((source / "meta.json").read_text())
    (source / "meta.json").write_text(json.dumps({**meta, "network": {"kind": "import", "target": "a:b"}}))
    assert main(["export", str(source), "--out", str(tmp_path / "out"), "--hf"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "kind import" in line
    assert not (tmp_path / "out").exists()
    assert yaml.safe_load((source / "recipe.yaml").read_text())["name"] == "tiny"
