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

from scdd.evals.measure.likelihood import NelboEstimator, likelihood
from scdd.evals.measure.model import EvalModel, open_model
from scdd.evals.measure.progress import Watch, unwatched
from scdd.evals.measure.store import ALONE
from scdd.evals.measure.zero_shot import Question, answers, noise_index
from scdd.training.parallel import World


@register_model("scdd")
class ScddLM(LM):  # type: ignore[misc, unused-ignore]
    """Scores are ELBOs of context and continuation together: P(x) is the same for all answers (the paper's way)."""

    def __init__(
        self,
        pretrained: str | EvalModel | None = None,
        process: str | None = None,
        looks: int = 10,
        seed: int = 0,
        batch_size: int | str | None = None,
        device: str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
            device = "cpu"  # cuda:0 is what the harness says when nobody was asked
        if not isinstance(pretrained, EvalModel):
            pretrained = open_model(pretrained, process=process, device=device)
        self.model = pretrained
        self.looks, self.seed = int(looks), int(seed)
        self.batch_size = None if batch_size is None or str(batch_size).startswith("auto") else int(batch_size)
        self.world: World = ALONE
        self.watch: Watch = unwatched
        self.errors: list[float] = []

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """(ELBO of context + continuation, False): nobody decodes greedily here."""
        places: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            places.setdefault(f"{request.task_name}/{request.doc_id}", []).append(i)
        questions = [Question(key, tuple("".join(requests[i].args) for i in group)) for key, group in places.items()]
        scored = answers(self.model, questions, self.looks, self.seed, self.batch_size, self.world, self.watch)
        scores: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        for group, row in zip(places.values(), scored, strict=True):
            for i, answer in zip(group, row, strict=True):
                scores[i] = (answer.score, False)
                self.errors.append(answer.error)
        return scores

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Minus the NELBO of each text, in rows as long as the context."""
        model, room = self.model, self.model.engine.room
        estimator = NelboEstimator(None, self.looks, "ours", self.seed)
        scores = []
        for request in requests:
            tokens = model.lm.tokenizer.encode(request.args[0]) or [model.lm.tokenizer.eos_id]
            rows = [model.engine.framed(tokens[i : i + room]) for i in range(0, len(tokens), room)]
            first = noise_index(self.seed, f"{request.task_name}/{request.doc_id}")
            indices = range(first, first + len(rows))
            nats = likelihood(model.engine.model.denoiser, model.lm.process, rows, estimator, indices, self.batch_size)
            scores.append(-sum(row.mean for row in nats))
        return scores

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Continuations by the recipe's own sampler, cut at the first stop string."""
        tokenizer, room = self.model.lm.tokenizer, self.model.engine.room
        texts = []
        for request in requests:
            context, limits = request.args
            wanted = min(int(limits.get("max_gen_toks", 128)), room - 1)
            prompt = tokenizer.decode(tokenizer.encode(context)[-(room - wanted) :])
            length = min(len(tokenizer.encode(prompt)) + wanted, room) if prompt else wanted
            sample = self.model.lm.generate(1, length=length, prompt=prompt, seed=self.seed)[0]
            text = sample.text.removeprefix(prompt)
            stops = limits.get("until") or []
            for stop in [stops] if isinstance(stops, str) else stops:
                text = text.partition(stop)[0] if stop else text
            texts.append(text)
        return texts
