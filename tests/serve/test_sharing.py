"""Rows go through the network together only where that changes no bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from scdd.lm.model import LM
from scdd.models.dit import DiT
from tests.serve.conftest import Serving

pytest.importorskip("fastapi", reason="needs fastapi: pip install -e '.[serve]'")


class Fickle(torch.nn.Module):
    """A network whose last bits depend on how many rows it sees, as a library's product may."""

    def __init__(self, inner: DiT) -> None:
        super().__init__()
        self.inner, self.vocab, self.config = inner, inner.vocab, inner.config

    @property
    def head(self) -> Any:
        return self.inner.head

    def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        return self.inner.hidden(z_t, t, documents) * (1.0 + 1e-6 * (z_t.shape[0] - 1))


class Partial(Fickle):
    """A network whose last bits depend on a row's place, unless there are at least so many rows."""

    def __init__(self, inner: DiT, sound: int) -> None:
        super().__init__(inner)
        self.sound = sound

    def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        rows = z_t.shape[0]
        place = torch.arange(rows).view(-1, 1, 1) * (rows < self.sound)
        return self.inner.hidden(z_t, t, documents) * (1.0 + 1e-6 * place)


def fickle(lm: LM, kind: type[Fickle] = Fickle, *args: int) -> LM:
    network: Any = kind(lm.network, *args)
    return LM(network, lm.process, lm.tokenizer, lm.context, sampling=lm.sampling, name="fickle")


def test_sizes(lm: LM) -> None:
    from scdd.serve.sharing import SIZES, Sharing

    sharing = Sharing(lm, None)
    assert sharing.size(1, 30) is None
    for rows in (2, 5, 8, 30):
        size = sharing.size(rows, 30)
        assert size is None or (size in SIZES and size <= rows)


def test_a_group_of_its_own_size_is_filled_up_for_any_number_of_texts(lm: LM) -> None:
    from scdd.serve.sharing import Sharing

    sharing = Sharing(lm, 4)
    assert {sharing.size(rows, 30) for rows in (1, 3, 4, 9)} == {4}


@pytest.mark.parametrize(("sound", "found"), [(1, 4), (9, 16), (100, 1)])
def test_groups_grow_until_a_rows_place_does_not_count(lm: LM, sound: int, found: int) -> None:
    from scdd.serve.sharing import Sharing

    assert Sharing(fickle(lm, Partial, sound), 4).size(1, 30) == found


def test_what_would_change_bits_goes_one_by_one(lm: LM) -> None:
    from scdd.serve.sharing import Sharing

    assert Sharing(fickle(lm), None).size(8, 30) is None


def test_a_fickle_network_still_answers_alike_in_company(serving: Serving, lm: LM) -> None:
    from concurrent.futures import ThreadPoolExecutor

    model = fickle(lm)
    with serving({"workers": 1, "batch": 4, "window": 5.0}, model=model) as client, ThreadPoolExecutor(4) as pool:
        bodies = [{"length": 30, "seed": i, "steps": 4} for i in range(4)]
        together = list(pool.map(lambda body: client.post("/v1/generate", body).json, bodies))
        assert client.meter("scdd_batch_jobs_count") == 1
        assert client.meter("scdd_network_evaluations_total") == client.meter("scdd_network_rows_total") == 16
    assert [each["samples"][0] for each in together] == [model.generate(**body)[0].json() for body in bodies]
