"""The network of docs/networks.md, which knows nothing of the package but two types, does all that one of ours does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import nn

import scdd
from scdd.bundle.folder import WEIGHTS, newest_checkpoint
from scdd.cli.main import main
from scdd.core import Head, UserError, Vocab
from scdd.models.foreign import as_network, imported
from scdd.models.options import make_network
from scdd.recipe.load import loads

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "networks.md").read_text(encoding="utf-8")
SHORT = ["data.vocab_size=300", "data.length=32", "training.batch_size=4", "training.ema=0.9", "model.options.width=16"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the page's two files, entered."""
    folder = tmp_path_factory.mktemp("own")
    [code, recipe] = (re.search(rf"```{kind}\n(.*?)```", PAGE, re.S)[1] for kind in ("python", "yaml"))  # type: ignore[index]
    (folder / "neighbours.py").write_text(code, encoding="utf-8")
    (folder / "neighbours.yaml").write_text(recipe, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        yield folder
    sys.modules.pop("neighbours", None)


def command(out: str, steps: int, save: int = 1000) -> list[str]:
    sets = [*SHORT, f"training.steps={steps}", f"training.save_every={save}"]
    return ["train", "neighbours.yaml", "--device=cpu", f"--out={out}", *(f"--set={change}" for change in sets)]


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    """Trained in one go."""
    assert main(command("whole", 60)) == 0
    return place / "whole"


def test_killed_it_goes_on_to_the_same_bits(place: Path, run: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    code = "import sys; from scdd.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, *command("killed", 60, save=5)]
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while newest_checkpoint("killed") is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    last = newest_checkpoint("killed")
    assert last is not None
    assert last.name < "step-00000060"
    assert main(command("killed", 60, save=5)) == 0
    for name, weight in weights_of(run).items():
        assert torch.equal(weight, weights_of(place / "killed")[name]), name


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    newest = newest_checkpoint(folder)
    assert newest is not None
    return load_file(newest / WEIGHTS)


def test_its_weights_have_its_own_names(run: Path) -> None:
    import neighbours  # type: ignore[import-not-found]

    lm = scdd.load(run, device="cpu")
    module = neighbours.build(lm.tokenizer.vocab, width=16)
    module.load_state_dict(weights_of(run))
    tokens = torch.randint(lm.tokenizer.vocab.K, (2, 9))
    assert torch.equal(module.hidden(tokens), lm.network.hidden(tokens))


def test_it_samples_scores_corrects_and_fills(run: Path) -> None:
    lm = scdd.load(run, device="cpu")
    first, again = lm.generate(2, length=12, steps=4, seed=3), lm.generate(1, length=12, steps=4, seed=3)
    assert first[0].text == again[0].text, "a text depends on its batch"
    assert lm.score("The river runs to the sea.").tokens
    assert lm.infill("The river [MASK:3] sea.", steps=4)[0].text.startswith("The river")
    assert lm.correct("The river runs to the sea.", mode="pass").text


def test_it_is_exported_and_measured(run: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "whole", "--out=small", "--weights=int8"]) == 0
    capsys.readouterr()
    assert main(["score", "--model=small", "--device=cpu", "--json", "The river runs to the sea."]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"]
    (place / "text.txt").write_text("The river runs to the sea. " * 40, encoding="utf-8")
    words = ["eval", "likelihood", "--model=small", "--text=text.txt", "--out=measured", "--device=cpu"]
    assert main(words) == 0, capsys.readouterr().err


def test_it_is_handed_over_in_python(place: Path) -> None:
    from neighbours import Neighbours

    spec = loads((place / "neighbours.yaml").read_text(encoding="utf-8"), overrides=[*SHORT, "training.steps=2"])
    make = lambda vocab: Neighbours(vocab, width=8, depth=1)  # noqa: E731
    scdd.train(spec, place / "given", network=make, device="cpu", progress=False)
    with pytest.raises(UserError, match=r"neighbours\.Neighbours, was handed over in Python; .*network=module"):
        scdd.load(place / "given")
    with pytest.raises(UserError, match="do not fit"):
        scdd.load(place / "given", network=lambda vocab: Neighbours(vocab, width=9, depth=1))
    with pytest.raises(UserError, match=r"the network is a builtins.str: give a torch.nn.Module, or a function"):
        scdd.load(place / "given", network="neighbours:build")  # type: ignore[arg-type]
    assert scdd.load(place / "given", network=make, device="cpu").generate(1, length=8, steps=2)


@pytest.mark.parametrize("depth", [0, 2])
def test_another_network_does_not_go_on_in_its_folder(place: Path, depth: int) -> None:
    from neighbours import Neighbours

    def train(out: str, depth: int, *more: str) -> None:
        changes = [*SHORT, "training.validate_batches=1", *more]
        make = lambda vocab: Neighbours(vocab, width=8, depth=depth)  # noqa: E731
        scdd.train("neighbours.yaml", out, overrides=changes, network=make, device="cpu", progress=False)

    train(f"deep{depth}", 1, "training.steps=1")
    with pytest.raises(UserError, match=r"is of another network .*: resume with the network of the run"):
        train(f"deep{depth}", depth, "training.steps=2")
    pretrained = [*SHORT[1:-1], "training.steps=1", "model={kind: pretrained}", f"training.start_from=deep{depth}"]
    with pytest.raises(UserError, match=r"Neighbours, was handed over in Python: hand it over again"):
        scdd.train("neighbours.yaml", "fresh", overrides=pretrained, device="cpu", progress=False)


VOCAB = Vocab(9, 8)


@pytest.mark.parametrize(
    ("target", "options", "says"),
    [
        ("nowhere:build", {}, "nowhere:build cannot be imported .*install its package"),
        ("neighbours:absent", {}, "cannot be imported"),
        ("neighbours", {}, 'no "package.module:factory"'),
        ("neighbours:F.__name__", {}, "is no function"),
        ("neighbours:build", {"widht": 3}, "failed .*widht"),
        ("builtins:dict", {}, "failed"),
        ("builtins:repr", {}, "torch.nn.Module"),
    ],
)
def test_what_cannot_be_rebuilt_gets_a_sentence(place: Path, target: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        imported(VOCAB, None, target, options)


def test_a_module_without_the_protocol_is_refused() -> None:
    with pytest.raises(UserError, match="has no vocab"):
        as_network(nn.Linear(2, 2), VOCAB)
    with pytest.raises(UserError, match="kind 'rnn'"):
        make_network({"kind": "rnn"}, VOCAB)
    with pytest.raises(UserError, match=r"does not fit its kind dit .*heigth"):
        make_network({"kind": "dit", "heigth": 3}, VOCAB)


def test_other_ids_are_refused(place: Path) -> None:
    from neighbours import Neighbours

    with pytest.raises(UserError, match="hand over the tokenizer's vocabulary"):
        as_network(Neighbours(Vocab(12, 11)), VOCAB)


def test_a_checkpoint_of_the_hub_runs_no_code(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scdd.bundle import folder

    newest = newest_checkpoint(run)
    monkeypatch.setattr(folder, "_downloaded", lambda source: newest)
    with pytest.raises(UserError, match=r"would run the code of neighbours:build .*network=module"):
        scdd.load("somebody/model")


def test_the_weights_come_from_the_recipes_seed(place: Path) -> None:
    def drawn(seed: int) -> torch.Tensor:
        weight: torch.Tensor = imported(VOCAB, torch.Generator().manual_seed(seed), "neighbours:build", {}).head.weight
        return weight

    before = torch.random.get_rng_state()
    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_head_is_a_view_of_the_module(place: Path) -> None:
    network = imported(VOCAB, None, "neighbours:build", {})
    assert isinstance(network.head, Head)
    assert network.width == 64
    assert yaml.safe_load(yaml.safe_dump(network.description())) == network.description()


def test_a_module_that_keeps_tables_loads_as_it_was_trained(place: Path) -> None:
    """Buffers that are not stored, and numbers read off a tensor, do not exist on the meta device."""
    (place / "tables.py").write_text(
        "import torch\n"
        "from neighbours import Neighbours\n"
        "class Tables(Neighbours):\n"
        "    def __init__(self, vocab):\n"
        "        super().__init__(vocab, 16, 1)\n"
        "        self.register_buffer('places', torch.arange(64.0) / 64, persistent=False)\n"
        "        self.scale = float(torch.linspace(0, 1, 5)[2])\n"
        "    def hidden(self, z_t, t=None, documents=None):\n"
        "        return super().hidden(z_t, t, documents) + self.scale * self.places[: z_t.shape[1], None]\n"
    )
    words = command("tables", 2)
    assert main([*words[:-6], '--set=model={kind: import, target: "tables:Tables"}', *words[-6:-3], *words[-2:]]) == 0
    assert scdd.load("tables", device="cpu").generate(1, length=8, steps=2)


BROKEN = """
from neighbours import F, Head, Neighbours, nn, torch

class Layer(Neighbours):
    head = property(lambda self: self.output)
class Turned(Neighbours):
    head = property(lambda self: Head(self.output.weight.T, self.vocab))
class Raising(Neighbours):
    @property
    def head(self):
        raise RuntimeError("not built")
class Alone(Neighbours):
    def hidden(self, z_t):
        return self.embedding(z_t)
class Logits(Neighbours):
    def hidden(self, z_t, t=None, documents=None):
        return self.output(super().hidden(z_t, t, documents))
class Kernels(Neighbours):
    def hidden_matrices(self):
        return ["mixers.0.weight"]
class Absent(Neighbours):
    def hidden_matrices(self):
        return ["weight"]
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Layer", r"Layer\.head is a .*Linear: .*Head\(weight, vocab, bias\)"),
        ("Turned", r"Turned\.head\.weight has shape \(64, 99\)"),
        ("Raising", "failed .not built."),
        ("Alone", r"hidden cannot be called as hidden\(z_t, t, documents\)"),
    ],
)
def test_a_module_that_misses_the_protocol_is_told_where(place: Path, name: str, says: str) -> None:
    (place / "broken.py").write_text(BROKEN, encoding="utf-8")
    with pytest.raises(UserError, match=says):
        imported(Vocab(99, 98), None, f"broken:{name}", {})


@pytest.mark.parametrize(("code", "says"), [("def build(:", "SyntaxError|invalid"), ("1 / 0", "division by zero")])
def test_a_file_that_does_not_run_is_a_sentence(place: Path, code: str, says: str) -> None:
    (place / "halting.py").write_text(code, encoding="utf-8")
    with pytest.raises(UserError, match=rf"halting:build cannot be imported .*({says}).*mend halting"):
        imported(VOCAB, None, "halting:build", {})


def test_states_and_matrices_of_another_shape_are_refused(place: Path) -> None:
    (place / "broken.py").write_text(BROKEN, encoding="utf-8")
    with pytest.raises(UserError, match=r"hidden gave \(2, 5, 9\) for tokens \(2, 5\) and a head of width 64"):
        imported(VOCAB, None, "broken:Logits", {}).hidden(torch.zeros(2, 5, dtype=torch.int64))
    with pytest.raises(UserError, match=r"mixers\.0\.weight, which is of 3 dimensions"):
        imported(VOCAB, None, "broken:Kernels", {}).hidden_matrices()
    with pytest.raises(UserError, match="names weight, which is no parameter"):
        imported(VOCAB, None, "broken:Absent", {}).hidden_matrices()


def test_a_network_that_sees_the_next_token_does_not_learn_it(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ar = ["--set=process.kind=ar", "--set=objective={kind: ar}", "--set=sampling={sampler: {kind: ar}}"]
    assert main([*command("sighted", 2), *ar]) == 2
    assert "process.kind ar learns the next token, and this network sees it" in capsys.readouterr().err


def test_training_on_from_the_hub_runs_no_code(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from scdd.bundle import folder

    newest = newest_checkpoint(run)
    monkeypatch.setattr(folder, "_downloaded", lambda source: newest)
    words = [each for each in command("on", 2) if "model." not in each and "vocab_size" not in each]
    more = ["--set=model={kind: pretrained}", "--set=training.start_from=somebody/model"]
    assert main([*words, *more]) == 2
    assert "would run the code of neighbours:build" in capsys.readouterr().err
