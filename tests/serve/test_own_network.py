"""A module from outside the package behind the server: the page's own example (docs/networks.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from scdd.lm.model import LM
from scdd.models.foreign import given
from tests import tiny
from tests.serve.conftest import Serving

PAGE = Path(__file__).resolve().parents[2] / "docs" / "networks.md"


def test_it_answers_as_the_library_does(serving: Serving, lm: LM) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert code is not None
    names: dict[str, Any] = {}
    exec(compile(code[1], str(PAGE), "exec", dont_inherit=True), names)
    torch.manual_seed(0)
    network = given(lambda vocab: names["Neighbours"](vocab, width=8), tiny.tokenizer().vocab)
    own = LM(network.eval().requires_grad_(False), lm.process, lm.tokenizer, lm.context, name="neighbours")
    with serving(model=own) as client:
        answer = client.post("/v1/generate", {"length": 20, "steps": 4, "seed": 2, "num": 2})
    assert answer.status == 200, answer.raw
    assert answer.json["samples"] == [sample.json() for sample in own.generate(2, length=20, steps=4, seed=2)]
