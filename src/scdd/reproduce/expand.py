"""A scale's parts: every training, every tuning, every measurement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from scdd.core.errors import UserError
from scdd.evals.measure.store import SAMPLES, fingerprint
from scdd.recipe.load import load, to_dict
from scdd.reproduce import options as o
from scdd.reproduce.parts import NO_CHOICES, Choices, Part, corpus_path, movable, run_folder, training_name
from scdd.reproduce.tuning import candidates
from scdd.training.options import CHANGEABLE

USUAL_QUESTIONS, SAMPLED = 2000, 2  # of a task, for the estimate; of those inside the package
USUAL_ROWS = 4000  # of a validation text, for the estimate
WAY = ("sampler", "grid", "final", "top_p", "temperature")


def all_parts(scale: o.Scale, out: Path, choices: Choices = NO_CHOICES) -> list[Part]:
    """All parts of a scale, in an order in which they can be done."""
    return _Expansion(scale, out, choices).parts()


class _Expansion:
    def __init__(self, scale: o.Scale, out: Path, choices: Choices) -> None:
        self.scale, self.out, self.choices = scale, out, choices
        self.ids: dict[str, str] = {}
        self.recipes = {
            name: load(runs.recipe, self._changes(name, scale.seeds_of(name)[0]))
            for name, runs in scale.trainings.items()
        }

    def parts(self) -> list[Part]:
        data, trainings = self._data(), self.scale.trainings
        first = [name for name in trainings if trainings[name].start_from is None]
        made = [data] if data else []
        for name in (*first, *(name for name in trainings if name not in first)):
            made += [self._noted(self._training(name, seed)) for seed in self.scale.seeds_of(name)]
        made += [self._noted(self._tuning(name)) for name in self._tuned_systems()]
        for one in self.scale.measurements:
            made += list(self._measurements(one))
        twice = next((name for name, count in Counter(part.name for part in made).items() if count > 1), None)
        if twice is not None:
            raise UserError(f"{self.scale.name} measures {twice} twice: leave one of the two out.")
        return made

    def _noted(self, part: Part) -> Part:
        self.ids[part.name] = part.id
        return part

    # -- text and trainings ---------------------------------------------------------------------------------------------

    def _data(self) -> Part | None:
        corpus = self.scale.corpus
        if corpus is None or corpus.path is not None or self.choices.data is not None:
            return None
        settings = {"sources": list(corpus.sources), "vocab": corpus.vocab_size, "valid": corpus.valid_fraction}
        return self._noted(Part("data", "data", "data", fingerprint(["data", settings]), settings=settings))

    def _changes(self, name: str, seed: int) -> list[str]:
        runs, path = self.scale.trainings[name], corpus_path(self.scale, self.out, self.choices)
        changes = [*self.scale.changes, *runs.changes, f"name={name}", f"seed={seed}"]
        if path is not None:
            changes += ["data.kind=shards", f"data.path='{path}'"]
        if runs.start_from is not None:
            changes.append(f"training.start_from='{run_folder(self.out, runs.start_from, seed)}'")
        return changes

    def _training(self, name: str, seed: int) -> Part:
        runs, spec = self.scale.trainings[name], replace(self.recipes[name], seed=seed)
        tree = to_dict(spec)
        tree["data"].pop("path")  # folders move; the text is told by `data`
        tree["training"] = {
            k: v for k, v in tree["training"].items() if k == "steps" or k not in (*CHANGEABLE, "start_from")
        }
        parent = training_name(runs.start_from, seed) if runs.start_from else None
        needs = [*(["data"] if "data" in self.ids else []), *([parent] if parent else [])]
        content = [tree, self.ids.get("data", self._corpus_name()), self.ids.get(parent or "")]
        tokens = spec.training.steps * spec.training.batch_size * spec.data.length
        return Part(
            name=training_name(name, seed), kind="train", stage="continue" if parent else "train",
            id=fingerprint(["train", content]), training=name, seed=seed, needs=tuple(needs), work={"train": tokens},
            settings={"recipe": runs.recipe, "changes": self._changes(name, seed), "steps": spec.training.steps},
        )  # fmt: skip

    def _corpus_name(self) -> str:
        path = corpus_path(self.scale, self.out, self.choices)
        return "" if path is None else Path(path).name

    # -- systems --------------------------------------------------------------------------------------------------------

    def _autoregressive(self, system: str) -> bool:
        return self.recipes[self.scale.systems[system].training].process.kind == "ar"

    def _process(self, system: str) -> str:
        chosen = self.scale.systems[system]
        return (chosen.process or self.recipes[chosen.training].process.kind).partition(":")[0]

    def _noisy(self, system: str) -> bool:
        return self._process(system) in ("scdd", "gidd") and self.scale.systems[system].sampler is None

    def _way(self, system: str) -> dict[str, Any]:
        """How a system draws, as plain data."""
        chosen = self.scale.systems[system]
        values = {name: getattr(chosen, name) for name in WAY}
        plain = {name: value for name, value in values.items() if value is not None}
        if chosen.sampler is not None:
            plain["sampler"] = {"kind": chosen.sampler.kind, **asdict(chosen.sampler)}
        return plain | ({"process": chosen.process} if chosen.process else {})

    def _reference(self) -> tuple[dict[str, Any] | None, list[str]]:
        """(Who judges, the part that trains it)."""
        asked = self.scale.reference
        if asked is None:
            return None, []
        if self.choices.reference is not None or asked.training is None:
            return {"model": self.choices.reference or asked.model}, []
        name = training_name(asked.training, self.scale.seeds_of(asked.training)[0])
        return {"training": asked.training, "seed": self.scale.seeds_of(asked.training)[0], "id": self.ids[name]}, [
            name
        ]

    def _tuned_systems(self) -> list[str]:
        """Those of which some measurement is tuned."""
        drawn = [one for one in self.scale.measurements if isinstance(one, o.DrawnOptions) and one.tuned != "no"]
        asked = {name for one in drawn if "ours" in one.conventions for name in self._systems(one)}
        return [name for name in self.scale.systems if name in asked and not self._autoregressive(name)]

    def _tuning(self, system: str) -> Part:
        rule, chosen = self.scale.tuning, self.scale.systems[system]
        assert rule is not None
        seed = self.scale.seeds_of(chosen.training)[0]
        reference, judge = self._reference()
        grids: dict[str, list[Any]] = {"temperature": list(rule.temperature), "grid": list(rule.grid)}
        own = {name: list(values) for name, values in chosen.tune.items()}
        settings = {
            **{"way": self._way(system), "shared": grids, "own": own, "reference": reference},
            **{name: getattr(rule, name) for name in ("nfe", "num", "seed", "entropy_loss")},
        }
        count = len(candidates(grids, own))
        training = training_name(chosen.training, seed)
        tokens = count * rule.num * self.recipes[chosen.training].data.length
        return Part(
            name=f"tune/{system}", kind="tune", stage="tune", id=fingerprint(["tune", self.ids[training], movable(settings)]),
            training=chosen.training, seed=seed, system=system, settings=settings, needs=(training, *judge),
            work={"draw": tokens * rule.nfe, "judge": tokens, "evaluations": count * self._walks(rule.num) * rule.nfe},
        )  # fmt: skip

    def _walks(self, num: int) -> int:
        """How many batches so many texts are, for the estimate."""
        return -(-num // (self.scale.batch_size or SAMPLES))

    # -- measurements ---------------------------------------------------------------------------------------------------

    def _measurements(self, one: o.MeasurementOptions) -> Iterator[Part]:
        if isinstance(one, o.JudgedOptions):
            yield from self._judged(one)
            return
        for system in self._systems(one):
            seeds = self.scale.seeds_of(self.scale.systems[system].training)
            for seed, convention in product(seeds, one.conventions):
                if one.systems is None and convention == "authors" and not self._authors_have(one, system):
                    continue
                for part in self._of_system(one, system, seed, convention):
                    yield self._noted(part)

    def _authors_have(self, one: o.MeasuringOptions, system: str) -> bool:
        """Whether the authors' convention is about such a system: theirs is of diffusion, their likelihood of SCDD and MDLM."""
        if isinstance(one, o.LikelihoodOptions) and self._process(system) == "gidd":
            return False
        return not self._autoregressive(system)

    def _systems(self, one: o.MeasuringOptions) -> list[str]:
        if one.systems is not None:
            return list(one.systems)
        systems = list(self.scale.systems)
        if isinstance(one, o.DrawnOptions):
            return systems if isinstance(one, o.GenerationOptions) else [s for s in systems if self._noisy(s)]
        if isinstance(one, o.RecoveryOptions):
            systems = [s for s in systems if self._noisy(s)]
        # of the weights alone: once for each training, and not for heads beside frozen weights
        kept: dict[tuple[str, str | None], str] = {}
        for name in systems:
            chosen = self.scale.systems[name]
            if self.scale.trainings[chosen.training].start_from is None:
                kept.setdefault((chosen.training, chosen.process), name)
        return list(kept.values())

    def _of_system(self, one: o.MeasuringOptions, system: str, seed: int, convention: str) -> Iterator[Part]:
        training = self.scale.systems[system].training
        spec = self.recipes[training]
        base = Part(
            name=f"measure/{{kind}}/{system}/seed-{seed}/{convention}", kind="", stage="measure", id="",
            training=training, seed=seed, system=system, convention=convention,
            settings={"way": self._way(system), "options": dict(one.options), "seed": seed},
            needs=(training_name(training, seed),),
        )  # fmt: skip
        length = spec.data.length
        if isinstance(one, o.LikelihoodOptions):
            tokens = (one.rows or USUAL_ROWS) * length * (1 if spec.process.kind == "ar" else one.looks)
            yield self._finished(base, "likelihood", {"looks": one.looks, "rows": one.rows}, "", {"read": tokens})
        elif isinstance(one, o.ZeroShotOptions):
            asked = {"tasks": list(one.tasks), "passes": one.passes, "limit": one.limit}
            asked |= {"data": one.data or self.choices.benchmarks}
            questions = one.limit or (SAMPLED if one.data == "sample" else USUAL_QUESTIONS)
            tokens = questions * (len(one.tasks) or 7) * 3 * min(length, 64) * one.passes
            yield self._finished(base, "zero-shot", asked, "", {"read": tokens})
        elif isinstance(one, o.RecoveryOptions):
            reference, judge = self._reference()
            base = replace(base, needs=(*base.needs, *judge))
            for number, repair in enumerate(one.repairs):
                for count in one.counts:
                    asked = {"count": count, "repair": dict(repair), "rows": one.rows, "reference": reference}
                    detail = f"k-{count}" + (f"-repair-{number}" if len(one.repairs) > 1 else "")
                    tokens = one.rows * length
                    yield self._finished(base, "recovery", asked, detail, {"draw": tokens, "judge": 3 * tokens})
        elif isinstance(one, o.DrawnOptions):
            yield from self._drawn(one, base)

    def _drawn(self, one: o.DrawnOptions, base: Part) -> Iterator[Part]:
        """Samples at each budget, and once more as they were tuned; tuning is of our own convention."""
        kind = "generation" if isinstance(one, o.GenerationOptions) else "correction"
        reference, judge = self._reference()
        length = one.length or self.recipes[base.training].data.length
        alone = self._autoregressive(base.system)
        may_tune = base.convention == "ours" and not alone
        budgets = one.nfe[:1] if alone else one.nfe  # a token an evaluation, whatever is asked for
        ways = {"no": (False,), "also": (False, True), "only": (True,)}[one.tuned] if may_tune else (False,)
        for tuned in ways:
            tuning = [f"tune/{base.system}"] if tuned else []
            for nfe in budgets:
                asked: dict[str, Any] = {"nfe": nfe, "num": one.num, "length": one.length, "reference": reference}
                if tuned:
                    asked["tuning"] = self.ids[tuning[0]]
                texts = one.num * length
                walks, read = (2, 3) if kind == "correction" else (1, 1)
                steps = length if alone else nfe
                evaluations = walks * steps * self._walks(one.num)
                work = {"draw": walks * texts * steps, "judge": read * texts, "evaluations": evaluations}
                part = replace(base, tuned=tuned, needs=(*base.needs, *judge, *tuning))
                yield self._finished(part, kind, asked, f"nfe-{nfe}", work)

    def _judged(self, one: o.JudgedOptions) -> Iterator[Part]:
        if self.choices.llm is None:
            return
        first, second = (self.scale.systems[name].training for name in (one.first, one.second))
        seeds = [seed for seed in self.scale.seeds_of(first) if seed in self.scale.seeds_of(second)]
        for seed, convention in product(seeds, one.conventions):
            for nfe in one.nfe:
                needs = training_name(first, seed), training_name(second, seed)
                asked = {
                    **{"nfe": nfe, "rows": one.rows, "second": second, "against": one.second},
                    **{"second_way": self._way(one.second), "llm": self.choices.llm, "base_url": self.choices.base_url},
                }
                base = Part(
                    name=f"measure/{{kind}}/{one.first}/seed-{seed}/{convention}", kind="", stage="measure", id="",
                    training=first, seed=seed, system=one.first, convention=convention, needs=tuple(dict.fromkeys(needs)),
                    settings={"way": self._way(one.first), "options": dict(one.options), "seed": seed},
                )  # fmt: skip
                tokens = 2.0 * one.rows * self.recipes[first].data.length * nfe
                work = {"draw": tokens, "evaluations": 2.0 * nfe * self._walks(one.rows)}
                yield self._noted(self._finished(base, "judge", asked, f"{one.second}/nfe-{nfe}", work))

    def _finished(
        self, base: Part, kind: str, asked: Mapping[str, Any], detail: str, work: Mapping[str, float]
    ) -> Part:
        settings = {**base.settings, **asked}
        content = [kind, base.convention, base.tuned, movable(settings), [self.ids[name] for name in base.needs]]
        name = base.name.format(kind=kind) + ("-tuned" if base.tuned else "") + (f"/{detail}" if detail else "")
        return replace(base, name=name, kind=kind, id=fingerprint(content), settings=settings, work=work)
