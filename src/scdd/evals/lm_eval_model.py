"""`lm_eval --model scdd --model_args pretrained=CHECKPOINT`: our models for EleutherAI's evaluation harness.

The harness has no plugin list: a model is known once its class has been imported. That happens by the task files of this
package (`--tasks FOLDER`), by `scdd eval zero-shot`, and by `python -m scdd.evals.harness …`, which is the harness's own
command line with this model in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from scdd.core.rng import derive_seed
from scdd.evals.cells import ALONE
from scdd.evals.likelihood import NelboEstimator, Watch, likelihood
from scdd.evals.subject import EvalModel, open_model
from scdd.evals.zero_shot import Question, answers
from scdd.training.parallel import World


@register_model("scdd")
class ScddLM(LM):  # type: ignore[misc, unused-ignore]
    """Scores are ELBOs of context and continuation together: P(x) is the same for all answers (the paper's way)."""

    def __init__(
        self,
        pretrained: str | None = None,
        process: str | None = None,
        passes: int = 10,
        seed: int = 0,
        batch_size: int | str = 32,
        device: str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
            device = "cpu"  # cuda:0 is what the harness says when nobody was asked
        size = 32 if str(batch_size).startswith("auto") else int(batch_size)
        self._set(
            open_model(pretrained, process=process, device=device),
            int(passes),
            int(seed),
            size,
            ALONE,
            None,
        )

    @classmethod
    def of(
        cls, subject: EvalModel, passes: int, seed: int, batch_size: int, world: World, watch: Watch | None
    ) -> ScddLM:
        """Around a model that is already loaded."""
        made = cls.__new__(cls)
        LM.__init__(made)
        made._set(subject, passes, seed, batch_size, world, watch)
        return made

    def _set(
        self, subject: EvalModel, passes: int, seed: int, batch_size: int, world: World, watch: Watch | None
    ) -> None:
        self.subject, self.passes, self.seed = subject, passes, seed
        self.batch_size, self.world, self.watch = batch_size, world, watch
        self.errors: list[float] = []

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """(ELBO of context + continuation, False): nobody decodes greedily here."""
        groups: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(f"{request.task_name}/{request.doc_id}", []).append(i)
        questions = [
            Question(key, tuple("".join(requests[i].args) for i in places)) for key, places in groups.items()
        ]
        scored = answers(
            self.subject, questions, self.passes, self.seed, self.batch_size, self.world, self.watch
        )
        found: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        for places, row in zip(groups.values(), scored, strict=True):
            for i, answer in zip(places, row, strict=True):
                found[i] = (answer.score, False)
                self.errors.append(answer.error)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Minus the NELBO of each text, in rows as long as the context."""
        engine = self.subject.lm.engine
        found = []
        for request in requests:
            tokens = engine.tokenizer.encode(request.args[0]) or [engine.tokenizer.eos_id]
            rows = [engine.framed(tokens[i : i + engine.room]) for i in range(0, len(tokens), engine.room)]
            first = derive_seed(self.seed, f"{request.task_name}/{request.doc_id}") >> 24
            nats = likelihood(
                engine.denoiser,
                engine.process,
                rows,
                NelboEstimator(None, self.passes, "exact", self.seed),
                indices=[first + i for i in range(len(rows))],
                batch_size=self.batch_size,
                device=engine.device,
            )
            found.append(-sum(sum(row.nats) / len(row.nats) for row in nats))
        return found

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Continuations by the recipe's own sampler, cut at the first stop string."""
        engine, lm = self.subject.lm.engine, self.subject.lm
        found = []
        for request in requests:
            context, how = request.args
            wanted = min(int(how.get("max_gen_toks", 128)), engine.room - 1)
            kept = engine.tokenizer.encode(context)[-(engine.room - wanted) :]
            prompt = engine.tokenizer.decode(kept)
            length = min(len(engine.tokenizer.encode(prompt)) + wanted, engine.room) if prompt else wanted
            text = lm.generate(1, length=length, prompt=prompt, seed=self.seed)[0].text.removeprefix(prompt)
            stops = how.get("until") or []
            for stop in [stops] if isinstance(stops, str) else stops:
                text = text.partition(stop)[0] if stop else text
            found.append(text)
        return found

    def monte_carlo_error(self) -> float:
        """Root mean square error of the scores, in nats."""
        return (sum(e * e for e in self.errors) / len(self.errors)) ** 0.5 if self.errors else 0.0
