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
    assert scdd.load(place / "given", network=make, device="cpu").generate(1, length=8, steps=2)


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
