"""Rows go through the network together only where that changes no bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from scdd.lm.model import LM
from scdd.models.dit import DiT

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


def test_on_a_cpu_rows_share_with_those_of_their_length(lm: LM) -> None:
    from scdd.serve.sharing import Sharing

    sharing = Sharing(lm, None)
    assert sharing.shape(32) != sharing.shape(33), "padding would change bits on a CPU"
    packing = lm.engine.model.packing
    assert packing is not None
    for rows in (1, 2, 5, 8, 30):
        calls = len(packing.sizes(rows, 32))
        assert sharing.evaluations(sharing.shape(32), rows) == (calls, rows), "none is filled up"


def test_a_group_of_its_own_size_is_filled_up_for_any_number_of_texts(lm: LM) -> None:
    from scdd.serve.sharing import Sharing

    sharing = Sharing(lm, 4)
    [shape] = {sharing.shape(length) for length in (3, 11, 40)}
    assert shape[:3] == (None, 40, 4)
    whole = shape._replace(fewer=())
    assert [sharing.evaluations(whole, rows) for rows in (1, 4, 9)] == [(1, 4), (1, 4), (3, 12)]


def test_few_rows_are_evaluated_among_few_where_that_changes_no_bit(lm: LM) -> None:
    from scdd.serve.sharing import Shape, Sharing

    shape = Shape(None, 40, 64, (1, 16))
    assert [shape.size(rows) for rows in (1, 2, 16, 17, 64, 65)] == [1, 16, 16, 64, 64, 64]
    sharing = Sharing(lm, 64)
    assert [sharing.evaluations(shape, rows) for rows in (1, 9, 17, 65)] == [(1, 1), (1, 16), (1, 64), (2, 128)]
    assert Sharing(lm, 4).shape(32).fewer == (1,)
    by_number = Sharing(fickle(lm), 4).shape(32)
    assert (by_number.rows, by_number.fewer) == (4, ()), "these round by how many they are"


def test_widths_are_few(lm: LM) -> None:
    from scdd.serve.sharing import Sharing

    wide = LM(lm.network, lm.process, lm.tokenizer, 1024, sampling=lm.sampling)
    sharing = Sharing(wide, 2)
    found = {length: sharing.shape(length).width for length in (3, 66, 130, 132, 133, 258, 260, 261, 1024)}
    assert [*found.values()] == [132, 132, 132, 132, 260, 260, 260, 516, 1024]


@pytest.mark.parametrize(("sound", "found"), [(1, 4), (9, 16), (100, 1)])
def test_groups_grow_until_a_rows_place_does_not_count(lm: LM, sound: int, found: int) -> None:
    from scdd.serve.sharing import Sharing

    assert Sharing(fickle(lm, Partial, sound), 4).shape(32).rows == found


def test_a_fickle_network_still_answers_alike_in_company(lm: LM) -> None:
    from scdd.serve.limits import Limits
    from scdd.serve.requests import Generate
    from scdd.serve.service import Service

    model = fickle(lm)
    service = Service(model, Limits(batch=4), threads=1, lent=True)
    bodies: list[dict[str, Any]] = [{"length": 30, "seed": i, "steps": 4} for i in range(4)]
    jobs = [service.generate(Generate(**body)) for body in bodies]
    service.scheduler.submit(jobs)
    service.scheduler.close()
    service.scheduler.work()
    assert service.meters.evaluations._value.get() == service.meters.evaluated_rows._value.get() == 16
    found = [job.future.result()[0].json() for job in jobs]
    assert found == [model.generate(**body)[0].json() for body in bodies]
