"""The language model as people use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, get_args, overload

import torch
from typing_extensions import Unpack

from scdd.core import machine
from scdd.core.denoiser import Denoiser
from scdd.core.errors import UserError
from scdd.data.tokenizer import TextTokenizer
from scdd.lm import gaps
from scdd.lm import rows as make
from scdd.lm.options import Dtype, RepairOptions
from scdd.lm.repair import Repair, bar, diffusion_process, score_tokens
from scdd.lm.results import Correction, Sample, Score
from scdd.lm.rows import check_text, texts
from scdd.lm.run import Engine, Run
from scdd.models.compiled import compile_network
from scdd.models.graphed import Graphed
from scdd.models.heads import QualityHead
from scdd.models.network import Network
from scdd.ops.common import Filters, NucleusRule
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.base import Process
from scdd.samplers.base import Model, PassRule, Sampler
from scdd.samplers.options import (
    ArOptions,
    Convention,
    Final,
    GridKind,
    LastPass,
    Nucleus,
    SamplerOptions,
    SamplingChanges,
    SamplingOptions,
)
from scdd.samplers.plan import SamplingPlan, make_plan

if TYPE_CHECKING:
    from scdd.lm.edits.channel import Channel
    from scdd.samplers.graphs import StepGraphs
    from scdd.samplers.packing import Packing

machine.keep_memory()
machine.settle_threads()  # who draws, serves or trains comes by here: torch is there now, and no product has been made

Grid = GridKind | Sequence[float]
Texts = list[str] | tuple[str, ...]


class Correcting(TypedDict, total=False):
    """How `correct` is asked, for type checkers."""

    mode: str | None
    strength: float | None
    threshold: float | None
    freeze: make.Freeze
    steps: int | None
    seed: int
    final: Final | None
    top_p: float | None
    blocks: bool
    record: bool
    progress: bool


class LM:
    """Weights, a process, a tokenizer, and the defaults of sampling and repair that the model comes with."""

    channel: Channel | None = None  # parameters of repair by edits that the model comes with
    graphs: bool = True
    """On a GPU, replay captured steps (`samplers.graphs`); false launches every kernel by itself. The texts are the same."""
    chat_template: str | None = None  # the Jinja template of a model that was fine-tuned on chats (`lm.chat.answer`)

    def __init__(
        self,
        network: Network,
        process: Process | Autoregressive,
        tokenizer: TextTokenizer,
        context: int,
        *,
        sampling: SamplingOptions | None = None,
        repair: RepairOptions | None = None,
        quality: QualityHead | None = None,
        name: str = "model",
    ) -> None:
        self.network, self.process, self.tokenizer, self.context = network, process, tokenizer, context
        self.sampling, self.repair = sampling or SamplingOptions(), repair or RepairOptions()
        if isinstance(process, Autoregressive):
            self.sampling = replace(self.sampling, sampler=ArOptions())
        self.quality, self.name = quality, name
        self._graphed: Denoiser | None = None
        self._steps: StepGraphs | None = None
        self._packing: Packing | None = None

    def __repr__(self) -> str:
        size = self.parameters / 1e6
        process = self.process if isinstance(self.process, Autoregressive) else self.process.schedule
        return (
            f"LM({self.name}: {size:.1f} M parameters, {self.engine.process_name} with {process!r}, "
            f"{self.tokenizer.size:,} tokens, context {self.context}, {self.dtype} on {self.device})"
        )

    # -- where it runs ------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.network.head.weight.device

    @property
    def dtype(self) -> str:
        """What is computed in: float32, bfloat16, …; int8, where the large products are in 8 bits and all else is float32."""
        whole = str(self.network.head.weight.dtype).removeprefix("torch.")
        return "int8" if getattr(self.network, "eight_bit_head", None) is not None else whole

    @property
    def parameters(self) -> int:
        """How many numbers were trained, PRISM's head aside."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def to(self, device: str | torch.device, dtype: Dtype | torch.dtype | None = None) -> LM:
        """Move the model, in bfloat16 on a GPU and float32 elsewhere unless told otherwise; returns itself.

        dtype "int8" rounds the weights of the large products; to go back gives float32 weights of what they were rounded to.
        """
        try:
            place = torch.device(device)
            if place.type == "meta":
                raise UserError("device is meta, which holds no numbers: use cpu or cuda.", "device")
            if place.type == "cuda" and not torch.cuda.is_available():
                raise UserError(f"device is {device}, and torch sees no GPU: use cpu.", "device")
            if isinstance(dtype, str) and dtype not in get_args(Dtype):
                raise UserError(f"dtype is {dtype!r}: choose one of {', '.join(get_args(Dtype))}.", "dtype")
            rounded = self.dtype == "int8"
            eight = rounded and place.type == "cpu" if dtype is None else dtype in ("int8", torch.int8)
            if eight or rounded:
                from scdd.models.eight_bit import set_eight_bits  # few models are in 8 bits

                set_eight_bits(self.network, eight, place)
                dtype = torch.float32 if eight else dtype
            chosen = getattr(torch, dtype) if isinstance(dtype, str) else dtype
            kind = chosen or (torch.bfloat16 if place.type == "cuda" else torch.float32)
            self.network.to(device=place, dtype=kind)
            if self.quality is not None:
                self.quality.to(device=place, dtype=kind)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"device {device} cannot be used ({reason}): use cpu or cuda.", "device") from error
        self._steps = self._packing = None  # captured over weights that were elsewhere, tried with others
        if isinstance(self._graphed, Graphed):
            self._graphed = Graphed(self.network)
        return self

    def compile(self, **options: Any) -> LM:
        """Compile the network, on a GPU inside a CUDA graph (the first evaluation of each shape takes a while)."""
        compile_network(self.network, **{"fullgraph": self.network.whole_graph, **options})
        if not self.engine.autoregressive:  # whose decoding has a cache, and shapes that grow
            self._graphed = Graphed(self.network)
        return self

    def behind(self, wrap: Callable[[Denoiser], Denoiser]) -> LM:
        """The same model, all shared, whose evaluations go through what `wrap` makes of its network."""
        network = self.engine.model.denoiser  # its captured steps are made now, and shared
        made = copy(self)
        made._graphed = wrap(network)
        return made

    @property
    def engine(self) -> Engine:
        """The parts that a run needs."""
        steps = self._captured_steps() if self.graphs and self.device.type == "cuda" else None
        network = self._graphed or self.network
        model = Model(network, self.process, self.quality, self.tokenizer.eos_id, steps, self._packed())
        return Engine(model, self.tokenizer, self.context, self.device)

    def _captured_steps(self) -> StepGraphs:
        if self._steps is None:
            from scdd.samplers.graphs import StepGraphs

            self._steps = StepGraphs()
        return self._steps

    def _packed(self) -> Packing | None:
        """A compiled network would be compiled again for every number of rows."""
        compiled, autoregressive = isinstance(self._graphed, Graphed), isinstance(self.process, Autoregressive)
        if self.device.type != "cpu" or compiled or autoregressive:
            return None
        if self._packing is None:
            from scdd.samplers.packing import Packing

            self._packing = Packing(self.network, self.quality)
        return self._packing

    @property
    def usual_length(self) -> int:
        """Tokens of a text when nobody says how many."""
        return min(self.sampling.length or self.engine.room, self.engine.room)

    # -- writing ------------------------------------------------------------------------------------------------------

    def plan(self, **changes: Unpack[SamplingChanges]) -> SamplingPlan:
        """How texts will be drawn: the model's own sampling options, with `changes` (those of `generate`)."""
        return make_plan(self.sampling, changes)

    def generate(
        self,
        num: int = 1,
        *,
        length: int | None = None,
        prompt: str | Sequence[str] = "",
        suffix: str = "",
        steps: int | None = None,
        seed: int = 0,
        sampler: str | SamplerOptions | Sampler | None = None,
        grid: Grid | None = None,
        final: Final | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        temperature: float | None = None,
        tolerance: float | None = None,
        nucleus: Nucleus | NucleusRule | None = None,
        last_pass: LastPass | PassRule | None = None,
        convention: Convention | None = None,
        batch_size: int = 16,
        rows_per_forward: int | None = None,
        record: bool = False,
        stop: bool | None = None,
        progress: bool = False,
    ) -> tuple[Sample, ...]:
        """`num` texts of `length` tokens (default: the recipe's, or the context), for each prompt if there are several.

        What is left out is as the model's recipe has it (`lm.sampling`). `sampler` is a name such as "remdm-conf", its
        options, or a `Sampler` of your own; `grid` a kind, or times of your own; `tolerance` stops a text when fewer than
        so many tokens are expected to change; `nucleus` and `last_pass` may be rules of your own; `convention` "authors" draws as
        the paper's code does; `record` keeps every step in `Sample.trajectory`; `progress` shows a bar, in
        notebooks too. A text is cut at its first end-of-text token unless `stop=False` or there is a suffix. Beyond the
        context it is written window by window.
        """
        plan = self.plan(
            steps=steps, seed=seed, sampler=sampler, grid=grid, final=final, top_p=top_p, top_k=top_k,
            temperature=temperature, tolerance=tolerance, nucleus=nucleus, last_pass=last_pass, convention=convention,
            batch_size=batch_size, rows_per_forward=rows_per_forward,
            record=record, stop=not suffix if stop is None else stop,
        )  # fmt: skip
        run = self.start(num, length=length, prompt=prompt, suffix=suffix, plan=plan)
        return run.with_bar() if progress else run.results

    def start(
        self,
        num: int = 1,
        *,
        length: int | None = None,
        prompt: str | Sequence[str] = "",
        suffix: str = "",
        plan: SamplingPlan | None = None,
    ) -> Run:
        """`generate`, to be watched: iterate over its frames (every step's if the plan records, else the last one's),
        then read its results."""
        prompts = texts("The prompt", prompt)
        check_text("The suffix", suffix)
        if not prompts:
            raise UserError("prompt is an empty list: give at least one, or leave it out.", "prompt")
        make.check_num(num)
        size = self.usual_length if length is None else length
        rows = [make.continued(self.tokenizer, each, suffix, size) for each in prompts]
        return Run(self.engine, [row for row in rows for _ in range(num)], plan or self.plan(stop=not suffix))

    def infill(
        self,
        text: str | Sequence[str],
        num: int = 1,
        *,
        blocks: bool = False,
        steps: int | None = None,
        seed: int = 0,
        sampler: str | SamplerOptions | Sampler | None = None,
        grid: Grid | None = None,
        final: Final | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        temperature: float | None = None,
        tolerance: float | None = None,
        nucleus: Nucleus | NucleusRule | None = None,
        last_pass: LastPass | PassRule | None = None,
        convention: Convention | None = None,
        batch_size: int = 16,
        rows_per_forward: int | None = None,
        record: bool = False,
        progress: bool = False,
    ) -> tuple[Sample, ...]:
        """Texts with their [MASK] and [MASK:12] spans filled in, `num` of each; all other tokens stay as they are.

        A span [MASK:4-12] has four to twelve tokens: every length is filled `num` times, and the best `num` of all are
        handed back, best first, with `tried` to say what they were chosen from (`lm.gaps`).
        `blocks` goes through texts longer than the context in overlapping blocks; the rest is as in `generate`.
        """
        plan = self.plan(
            steps=steps, seed=seed, sampler=sampler, grid=grid, final=final, top_p=top_p, top_k=top_k,
            temperature=temperature, tolerance=tolerance, nucleus=nucleus, last_pass=last_pass, convention=convention,
            batch_size=batch_size, rows_per_forward=rows_per_forward,
            record=record,
        )  # fmt: skip
        run = self.start_infill(text, num, blocks=blocks, plan=plan)
        return run.with_bar() if progress else run.results

    def start_infill(
        self, text: str | Sequence[str], num: int = 1, *, blocks: bool = False, plan: SamplingPlan | None = None
    ) -> Run:
        """`infill`, to be watched. Nothing is cut at an end-of-text token: the text goes on after the span."""
        if self.engine.autoregressive:
            raise UserError(
                "An autoregressive model cannot fill in: use a diffusion model, or `generate` with a prompt."
            )
        make.check_num(num)
        every = [make.with_gaps(self.tokenizer, each) for each in texts("The text", text)]
        if not every:
            raise UserError("text is an empty list: give at least one.", "text")
        self._check_room(max(len(each.row(each.tries[-1])) for each in every), blocks)
        chosen = replace(plan or self.plan(), stop=False)
        return gaps.together([gaps.start(self.engine, each, num, chosen) for each in every])

    # -- reading ------------------------------------------------------------------------------------------------------

    @overload
    def score(self, text: str, *, strength: float | None = None, blocks: bool = False) -> Score: ...

    @overload
    def score(self, text: Texts, *, strength: float | None = None, blocks: bool = False) -> tuple[Score, ...]: ...

    def score(
        self, text: str | Texts, *, strength: float | None = None, blocks: bool = False
    ) -> Score | tuple[Score, ...]:
        """How likely the model finds each token, and how much it doubts it at noise level `strength`; of a list, for each."""
        options, given = self._repair_options({"strength": strength}), texts("The text", text)
        rows = [make.whole(self.tokenizer, each) for each in given]
        self._check_room(max(map(len, rows), default=0), blocks)
        scored = score_tokens(self.engine, rows, options)
        scores = tuple(Score(t, options.strength, s.nfe, s.tokens) for t, s in zip(given, scored, strict=True))
        return scores[0] if isinstance(text, str) else scores

    @overload
    def correct(self, text: str, **how: Unpack[Correcting]) -> Correction: ...

    @overload
    def correct(self, text: Texts, **how: Unpack[Correcting]) -> tuple[Correction, ...]: ...

    def correct(
        self,
        text: str | Texts,
        *,
        mode: str | None = None,
        strength: float | None = None,
        threshold: float | None = None,
        freeze: make.Freeze = (),
        steps: int | None = None,
        seed: int = 0,
        final: Final | None = None,
        top_p: float | None = None,
        blocks: bool = False,
        record: bool = False,
        progress: bool = False,
    ) -> Correction | tuple[Correction, ...]:
        """Keep what is right, repair what is not; what is left out is as the model has it (`lm.repair`).

        mode "edit" replaces, deletes and inserts words where the odds are clear: candidates are spelt nearly alike, other forms,
        small words, or the model's own, and the gain in its likelihood is set against how writers err; `strength` is the share
        of the text that is taken for wrong. mode "reverse" takes the text for z_t at t = `strength` and walks the reverse process
        from there in `steps` steps: doubts come from the whole x_θ, replacements from its nucleus `top_p`. mode "pass" changes, in
        one evaluation, every token whose probability is below `threshold` of the best one's. `freeze` names pieces of the text,
        or character ranges, that must stay. A list of texts is answered with a tuple, each as if it were alone. `progress` shows a
        bar while words are looked at, or steps are walked.
        """
        mode = mode or ("reverse" if record else None)  # the one that has steps
        wishes = {
            "mode": mode, "strength": strength, "threshold": threshold, "steps": steps, "final": final, "top_p": top_p
        }  # fmt: skip
        given = texts("The text", text)
        repairs = [self.to_repair(each, wishes, freeze=freeze, seed=seed, blocks=blocks) for each in given]
        if repairs and repairs[0].options.mode == "reverse":
            walks = [self.start_correct(repair, record) for repair in repairs]
            joined = Run.joined([run for run, _ in walks])
            with bar("steps", progress) as told:
                for batch in joined:
                    told(batch.frame.step, batch.frame.steps)
            corrections = tuple(finish(sample) for (_, finish), sample in zip(walks, joined.results, strict=True))
        else:
            with bar("words", progress) as told:
                corrections = tuple(repair.at_once(told) for repair in repairs)
        return corrections[0] if isinstance(text, str) else corrections

    def to_repair(
        self, text: str, wishes: dict[str, Any], *, freeze: make.Freeze = (), seed: int = 0, blocks: bool = False
    ) -> Repair:
        """A text to repair and how, checked: the model's own `RepairOptions` with `wishes` put over them."""
        options = self._repair_options(wishes)
        options.check_used(wishes)
        row = make.whole(self.tokenizer, text, freeze)
        self._check_room(len(row), blocks or options.mode == "edit")
        process = diffusion_process(self.engine)
        if options.mode == "reverse" and not process.has_uniform_noise:
            raise UserError(
                "This model's process has no uniform noise, so its reverse never changes a visible token: "
                "use mode pass, or a model trained with p_u > 0."
            )
        return Repair(self.engine, text, row, options, seed, make.frozen_ranges(text, freeze), self.channel)

    def start_correct(self, repair: Repair, record: bool = False) -> tuple[Run, Callable[[Sample], Correction]]:
        """A repair by the reverse process, to be watched: its run, and what makes a correction of the run's sample."""
        options = repair.options
        plan = make_plan(
            SamplingOptions(grid=self.sampling.grid, steps=options.steps, final=options.final),
            {"draw_filters": Filters(top_p=options.top_p), "seed": repair.seed, "record": True, "stop": False},
            start=options.strength,
        )
        return Run(repair.engine, [repair.row], plan), lambda sample: repair.of_walk(sample, record)

    def _repair_options(self, wishes: dict[str, Any]) -> RepairOptions:
        return replace(self.repair, **{name: value for name, value in wishes.items() if value is not None})

    def _check_room(self, tokens: int, blocks: bool) -> None:
        if tokens > self.engine.room and not blocks:
            raise UserError(
                f"The text has {tokens} tokens and the model's context holds {self.engine.room}: shorten it, or go through "
                "it in overlapping blocks (blocks).",
                "blocks",
            )
