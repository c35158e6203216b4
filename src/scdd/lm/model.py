"""The language model as people use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from scdd.assemble import samplers as build_samplers
from scdd.core.errors import UserError
from scdd.data.tokenizer import TextTokenizer
from scdd.lm import rows as make
from scdd.lm.checks import check_kinds, check_text, texts
from scdd.lm.judge import THRESHOLD, check_strength, judge, repaired, two_sided
from scdd.lm.results import Change, Correction, Sample, Score, TokenScore
from scdd.lm.run import Engine, Run, Settings
from scdd.models.compiled import compile_network
from scdd.models.dit import DiT
from scdd.models.graphed import Graphed
from scdd.models.heads import QualityHead
from scdd.ops import NO_FILTERS, Filters
from scdd.processes.base import Process
from scdd.samplers.ancestral import Ancestral
from scdd.samplers.base import Sampler, noisy
from scdd.samplers.execute import check_final
from scdd.samplers.options import ArOptions, GridOptions, SamplerOptions, SamplingOptions


class LM:
    """Weights, a process, a tokenizer, and the recipe's way of sampling as the default.

    Keyword arguments of `generate` and `infill` override that default: steps, seed, sampler (a name such as "remdm-conf",
    or a Sampler), final, top_p, top_k, temperature, grid ("uniform", "quadratic", "cosine", or times of your own),
    tolerance, batch_size, together, record (keep every frame in `Sample.trajectory`).
    """

    def __init__(
        self,
        network: DiT,
        process: Process | None,
        tokenizer: TextTokenizer,
        context: int,
        sampling: SamplingOptions | None = None,
        quality: QualityHead | None = None,
        name: str = "model",
    ) -> None:
        self.network, self.process, self.tokenizer, self.context = network, process, tokenizer, context
        self.sampling = sampling or SamplingOptions()
        self.quality, self.name = quality, name
        self._graphed: Graphed | None = None

    # -- where it runs ------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.network.head.weight.device

    def to(self, device: str | torch.device, dtype: torch.dtype | None = None) -> LM:
        """Move the model, in bfloat16 on a GPU and float32 elsewhere unless told otherwise; returns itself."""
        try:
            place = torch.device(device)
            if place.type == "meta":
                raise UserError("device is meta, which holds no numbers: use cpu or cuda.")
            if place.type == "cuda" and not torch.cuda.is_available():
                raise UserError(f"device is {device}, and torch sees no GPU: use cpu.")
            kind = dtype or (torch.bfloat16 if place.type == "cuda" else torch.float32)
            self.network.to(device=place, dtype=kind)
            if self.quality is not None:
                self.quality.to(device=place, dtype=kind)
        except RuntimeError as error:
            raise UserError(
                f"device {device} cannot be used ({str(error).splitlines()[0]}): use cpu or cuda."
            ) from error
        return self

    def compile(self, **options: Any) -> LM:
        """Compile the network, on a GPU behind a CUDA graph (the first evaluation of each shape takes a while)."""
        compile_network(self.network, **options)
        if self.process is not None:  # autoregressive decoding has a cache, whose shapes grow
            self._graphed = Graphed(self.network)
        return self

    @property
    def engine(self) -> Engine:
        """The parts that a run needs."""
        return Engine(self._graphed or self.network, self.process, self.tokenizer, self.context, self.device)

    @property
    def usual_length(self) -> int:
        """Tokens of a text when nobody says how many."""
        return min(self.sampling.length or self.engine.room, self.engine.room)

    # -- writing ------------------------------------------------------------------------------------------------------

    def generate(
        self,
        num: int = 1,
        *,
        length: int | None = None,
        prompt: str | Sequence[str] = "",
        suffix: str = "",
        **how: Any,
    ) -> tuple[Sample, ...]:
        """`num` texts of `length` tokens (default: the recipe's, or the context), for each prompt if there are several.

        The text is cut at its first end-of-text token unless `stop=False` or there is a suffix. Beyond the context it is
        written window by window.
        """
        return self.start(num, length=length, prompt=prompt, suffix=suffix, **how).results

    def start(
        self,
        num: int = 1,
        *,
        length: int | None = None,
        prompt: str | Sequence[str] = "",
        suffix: str = "",
        **how: Any,
    ) -> Run:
        """`generate`, to be watched: iterate over its frames (every step's with `record=True`, else the last one's), then
        read its results."""
        prompts = texts("The prompt", prompt)
        check_text("The suffix", suffix)
        if not prompts:
            raise UserError("prompt is an empty list: give at least one, or leave it out.")
        check_kinds(length=length)
        make.check_num(num)
        size = self.usual_length if length is None else length
        if size < 1:
            raise UserError(f"length is {size}: ask for at least one token.")
        made = [make.continued(self.tokenizer, each, suffix, size) for each in prompts]
        settings = self._settings({"stop": not suffix, **how})
        return Run(self.engine, [row for row in made for _ in range(num)], settings)

    def infill(
        self, text: str | Sequence[str], num: int = 1, *, blocks: bool = False, **how: Any
    ) -> tuple[Sample, ...]:
        """Texts with their [MASK] and [MASK:12] spans filled in, `num` of each; all other tokens stay as they are."""
        return self.start_infill(text, num, blocks=blocks, **how).results

    def start_infill(
        self, text: str | Sequence[str], num: int = 1, *, blocks: bool = False, **how: Any
    ) -> Run:
        """`infill`, to be watched."""
        if self.process is None:
            raise UserError(
                "An autoregressive model cannot fill in: use a diffusion model, or `generate` with a prompt."
            )
        make.check_num(num)
        made = [make.with_spans(self.tokenizer, each) for each in texts("The text", text)]
        self._check_room(max((len(row) for row in made), default=0), blocks)
        settings = self._settings({"stop": False, **how})
        return Run(self.engine, [row for row in made for _ in range(num)], settings)

    # -- reading ------------------------------------------------------------------------------------------------------

    def score(self, text: str, *, strength: float = 0.1, blocks: bool = False) -> Score:
        """How likely the model finds each token, and how much it doubts it at noise level `strength`."""
        check_kinds(strength=strength)
        row = make.whole(self.tokenizer, text)
        self._check_room(len(row), blocks)
        scores, _, nfe = judge(self.engine, row, strength)
        return Score(text, tuple(scores), strength, nfe)

    def correct(
        self,
        text: str,
        *,
        strength: float = 0.1,
        mode: str = "reverse",
        threshold: float = THRESHOLD,
        freeze: make.Freeze = (),
        steps: int = 16,
        seed: int = 0,
        final: str = "greedy",
        top_p: float = 0.9,
        blocks: bool = False,
        record: bool = False,
    ) -> Correction:
        """Keep what is right, repair what is not.

        mode "reverse" takes the text for z_t at t = `strength` and walks the reverse process from there: doubts come from
        the whole x_θ, replacements from its nucleus. mode "pass" changes, in one evaluation, every token whose probability
        is below `threshold` of the best one's. `freeze` names pieces of the text, or character ranges, that must stay.
        """
        if mode == "reverse":
            run, finish = self.start_correct(
                text, strength=strength, freeze=freeze, steps=steps, seed=seed, final=final, top_p=top_p, blocks=blocks,
                record=record,
            )  # fmt: skip
            return finish(run.results[0])
        check_kinds(strength=strength, threshold=threshold)
        row = make.whole(self.tokenizer, text, freeze)
        self._check_room(len(row), blocks)
        check_strength(strength)
        if mode == "pass":
            scores, best, nfe = judge(self.engine, row, strength)
            tokens = repaired(row, scores, best, threshold)
            p_after = [score.p_best for score in scores]
            return self._correction(
                text, row, tokens, scores, p_after, mode, strength, seed, 1, nfe, "pass", None
            )
        raise UserError(f"mode is {mode!r}: choose reverse or pass.")

    def start_correct(
        self,
        text: str,
        *,
        strength: float = 0.1,
        freeze: make.Freeze = (),
        steps: int = 16,
        seed: int = 0,
        final: str = "greedy",
        top_p: float = 0.9,
        blocks: bool = False,
        record: bool = False,
    ) -> tuple[Run, Callable[[Sample], Correction]]:
        """`correct` by the reverse process, to be watched: its run, and what makes a correction of the run's sample."""
        check_kinds(strength=strength, steps=steps, seed=seed, top_p=top_p)
        row = make.whole(self.tokenizer, text, freeze)
        self._check_room(len(row), blocks)
        check_strength(strength)
        if not noisy(two_sided(self.engine)):
            raise UserError(
                "This model's process has no uniform noise, so its reverse never changes a visible token: "
                "use mode pass, or a model trained with p_u > 0."
            )
        check_final(final)
        grid = build_samplers.grid(self.sampling.grid, steps, strength)
        draws = Filters(top_p=top_p)
        settings = Settings(Ancestral(), grid, NO_FILTERS, final, draws, seed=seed, record=True, stop=False)

        def finish(sample: Sample) -> Correction:
            assert sample.trajectory is not None
            way = sample.trajectory
            p_after = way.last_log_p.double().exp().nan_to_num(0.0).tolist()
            scores, _, nfe = judge(self.engine, row, strength)
            return self._correction(
                text, row, sample.tokens, scores, p_after, "reverse", strength, seed, steps, nfe + sample.nfe, final,
                way if record else None,
            )  # fmt: skip

        return Run(self.engine, [row], settings), finish

    # -- details ------------------------------------------------------------------------------------------------------

    def _correction(
        self, text: str, row: make.Row, tokens: Sequence[int], scores: Sequence[TokenScore], p_after: Sequence[float],
        mode: str, strength: float, seed: int, steps: int, nfe: int, final: str, trajectory: Any,
    ) -> Correction:  # fmt: skip
        changes = tuple(
            Change(i, scores[i].text, self.tokenizer.token(new), scores[i].p, p_after[i], scores[i].doubt)
            for i, (old, new) in enumerate(zip(row.tokens, tokens, strict=True))
            if old != new
        )
        return Correction(
            text=self.engine.text(tokens) if changes else text,
            before=text,
            tokens=tuple(tokens),
            changes=changes,
            doubts=tuple(scores),
            mode=mode,
            strength=strength,
            seed=seed,
            steps=steps,
            nfe=nfe,
            sampler="ancestral" if mode == "reverse" else "threshold rule",
            final=final,
            process=self.engine.name(),
            trajectory=trajectory,
        )

    def _check_room(self, tokens: int, blocks: bool) -> None:
        if tokens > self.engine.room and not blocks:
            raise UserError(
                f"The text has {tokens} tokens and the model's context holds {self.engine.room}: shorten it, or go through "
                "it in overlapping blocks (--blocks, or blocks=True)."
            )

    def _settings(self, how: dict[str, Any]) -> Settings:
        """The recipe's sampling section with a caller's wishes put over it."""
        check_kinds(**how)
        base = self.sampling
        known = {
            name: how.pop(name)
            for name in ("steps", "final", "top_p", "top_k", "temperature")
            if how.get(name) is not None
        }
        for name in ("steps", "final", "top_p", "top_k", "temperature"):
            how.pop(name, None)
        chosen = replace(base, **known)
        check_final(chosen.final)
        sampler, times = how.pop("sampler", None), how.pop("grid", None)
        if isinstance(times, str):
            chosen, times = replace(chosen, grid=GridOptions(kind=times, start=chosen.grid.start)), None  # type: ignore[arg-type]
        options = {k: v for k, v in how.items() if v is not None}
        unknown = set(options) - set(Settings.__dataclass_fields__)
        if unknown:
            raise UserError(f"There is no sampling option {sorted(unknown)[0]!r}: see help(scdd.lm.LM).")
        if options.get("batch_size", 1) < 1:
            raise UserError(f"batch_size is {options['batch_size']}: draw at least one text at a time.")
        return Settings(
            sampler=sampler if isinstance(sampler, Sampler) else self._sampler(sampler),
            grid=tuple(times) if times is not None else build_samplers.grid(chosen.grid, chosen.steps),
            filters=build_samplers.filters(chosen),
            final=chosen.final,
            **options,
        )

    def sampler_section(self, name: str | None = None) -> SamplerOptions:
        """The settings of the sampler called `name`, or without a name of the recipe's own."""
        if name is not None:
            return build_samplers.section(name)
        return ArOptions() if self.process is None else self.sampling.sampler

    def _sampler(self, name: str | None) -> Sampler:
        return build_samplers.sampler(self.sampler_section(name), self.quality, self.tokenizer.eos_id)
