"""On a GPU, too, an answer does not depend on its company."""

from __future__ import annotations

import pytest

from scdd import load
from scdd.lm.rows import continued
from scdd.lm.run import Run

pytest.importorskip("fastapi", reason="needs fastapi: pip install -e '.[serve]'")


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_rows_of_a_group_are_the_same_alone(compiled: bool) -> None:
    from scdd.serve.sharing import Sharing

    lm = load(device="cuda")
    if compiled:
        lm.compile()
    how = {"steps": 16, "top_p": 0.9, "stop": False}
    sharing = Sharing(lm, 64)
    group = sharing.size(1, 60)
    assert group == sharing.size(20, 60)
    plan = lm.plan(seed=3, rows_per_forward=group, batch_size=20, **how)
    row = continued(lm.tokenizer, "", "", 60)
    together = Run(lm.engine, [row] * 20, plan).results
    for i in (0, 7, 19):  # alone it is the group's first row, there its i-th
        assert Run(lm.engine, [row], plan, first=i).results[0].tokens == together[i].tokens
