"""How a part is done: data, trainings, tuning and measurements, each by the function that its own command uses."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from pydantic import TypeAdapter

from scdd.assemble.training import BUNDLED
from scdd.bundle import folder as bundle
from scdd.core.errors import UserError
from scdd.data.prepare import Preparation, prepare
from scdd.evals.measure.generation import measure_correction, measure_generation
from scdd.evals.measure.likelihood import NelboEstimator, measure_likelihood
from scdd.evals.measure.model import EvalModel, open_model
from scdd.evals.measure.recovery import measure_recovery
from scdd.evals.measure.reference_lm import OwnReferenceLM, ReferenceLM, open_reference_lm
from scdd.evals.measure.specs import RecoverySpec, Repair, SamplingSpec
from scdd.evals.measure.store import MeasureContext, Measurement, Store, versions
from scdd.evals.measure.texts import Rows, text_rows
from scdd.evals.measure.zero_shot import measure_zero_shot
from scdd.lm.training import train
from scdd.reproduce.checkout import commit
from scdd.reproduce.parts import PREPARED, RUNS, Part, run_folder, training_name
from scdd.reproduce.records import Records
from scdd.reproduce.tuning import candidates, choose
from scdd.samplers.options import SamplerOptions
from scdd.training.log import read_metrics
from scdd.training.parallel import World

MEASURED, SAMPLE = "measured", "sample"
JUDGED = 32  # texts that a reference LM reads at a time on a GPU
QUESTIONS = Path(__file__).parent / "questions"
Described = TypeVar("Described")


class Stopped(Exception):
    """A part was asked to end before it was finished; the next start goes on with it."""


@dataclass(frozen=True)
class Place:
    """Where parts are done: the output folder, the text, how many texts at a time."""

    out: Path
    corpus: str | None = None
    batch_size: int | None = None


class Bench:
    """What the parts of one process share: models and judges are opened once."""

    def __init__(self, place: Place) -> None:
        self.place, self.out = place, place.out
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.records, self.commit = Records(place.out), commit()
        self._models: dict[tuple[str, int, str | None], EvalModel] = {}
        self._judges: dict[str, ReferenceLM] = {}

    @cached_property
    def context(self) -> MeasureContext:
        """The store of whole measurements, texts included."""
        return MeasureContext(Store(self.out / MEASURED, World(device=self.device)), self.place.batch_size)

    def do(self, part: Part) -> None:
        """Do a part and note it."""
        start = time.time()
        result, more = WORK[part.kind](self, part)
        used = {name: weights for name in part.needs if (weights := self._weights(name)) is not None}
        made = {
            **({"used": used} if used and part.kind != "train" else {}),
            **{"seconds": round(time.time() - start, 3), "device": self._device_name(), "versions": versions()},
            **({"commit": self.commit} if self.commit else {}),
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start)),
            **more,
        }
        self.records.write(part, result, made)

    def _weights(self, name: str) -> str | None:
        """The checksum of a training's weights; None for a part that is no training."""
        kind, *run = name.split("/")
        newest = bundle.newest_checkpoint(self.out / RUNS / "/".join(run)) if kind == "train" else None
        return None if newest is None else str(bundle.meta(newest)["weights_sha256"])

    def _device_name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"

    def model(self, training: str, seed: int, system: str, process: str | None = None) -> EvalModel:
        """A trained model under the name of a system."""
        key = training, seed, process
        if key not in self._models:
            folder = run_folder(self.out, training, seed)
            if bundle.newest_checkpoint(folder) is None:
                raise UserError(f"{folder} holds no checkpoint: train {training_name(training, seed)} first.")
            self._models[key] = open_model(folder, f"{system}, seed {seed}", process=process, device=self.device)
        found = self._models[key]
        return EvalModel(f"{system}, seed {seed}", found.lm, found.identity, found.recipe)

    def judge(self, asked: Mapping[str, Any] | None) -> ReferenceLM | None:
        """The language model that judges texts."""
        if asked is None:
            return None
        name = str(run_folder(self.out, asked["training"], asked["seed"]) if "training" in asked else asked["model"])
        if name not in self._judges:
            if "training" in asked:
                label = f"{asked['training']}, seed {asked['seed']}"
                self._judges[name] = OwnReferenceLM(open_model(name, label, device=self.device))
            else:
                self._judges[name] = _reference_lm(name, self.device)
        return self._judges[name]

    def rows(self, model: EvalModel, limit: int | None, whole: bool) -> Rows:
        """The validation text, in rows as the model knows them."""
        return text_rows(model, [self.place.corpus] if self.place.corpus else None, limit=limit, whole=whole)

    def tuned(self, part: Part) -> Mapping[str, Any]:
        """What tuning chose for the system of a part."""
        record = self.records.one(part.settings["tuning"])
        if record is None:
            raise UserError(f"{part.system} is not tuned yet: do tune/{part.system} first.")
        chosen: Mapping[str, Any] = record.result["chosen"]
        return chosen


@lru_cache(maxsize=1)
def _reference_lm(name: str, device: torch.device) -> ReferenceLM:
    """Read once a process, whose tasks have the same one."""
    return open_reference_lm(name, device, JUDGED if device.type == "cuda" else JUDGED // 4)


# -- ways of sampling ---------------------------------------------------------------------------------------------------


def changes_of(way: Mapping[str, Any], tuned: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A system's way of drawing as `LM.plan` takes it; `tuned` values replace its own, a sampler's options among them."""
    changes = {name: value for name, value in way.items() if name != "process"}
    sampler = dict(changes.pop("sampler", None) or {})
    for name, value in (tuned or {}).items():
        if name in ("temperature", "grid"):
            changes[name] = value
        else:
            sampler[name] = value
    if sampler:
        changes["sampler"] = TypeAdapter(SamplerOptions).validate_python(sampler)
    return changes


def described(kind: Callable[..., Described], **given: Any) -> Described:
    """A measurement's description from plain options; refused where it has no such option."""
    known = {each.name for each in fields(cast(Any, kind))}
    unknown = sorted(set(given) - known)
    if unknown:
        name = getattr(kind, "__name__", "")
        raise UserError(f"{name} has no {', '.join(unknown)}: choose from {', '.join(sorted(known))}.", "options")
    return kind(**given)


def sampling_spec(part: Part, tuned: Mapping[str, Any] | None = None) -> SamplingSpec:
    """How a part draws."""
    asked, changes = part.settings, changes_of(part.settings["way"], tuned)
    changes["convention"] = part.convention
    given = {name: asked.get(name) for name in ("num", "nfe", "seed", "length")}
    return described(SamplingSpec, **{**given, **asked.get("options", {})}, changes=changes)


# -- the kinds of work --------------------------------------------------------------------------------------------------

Done = tuple[Mapping[str, Any], dict[str, Any]]


def _data(bench: Bench, part: Part) -> Done:
    asked = part.settings
    job = Preparation(
        sources=[str(BUNDLED) if source == "bundled" else source for source in asked["sources"]],
        out=bench.out / PREPARED,
        train_tokenizer=asked["vocab"],
        valid_fraction=asked["valid"],
        separator="auto",
    )
    last = deque(prepare(job), maxlen=1).pop()
    return {"tokens": last.tokens, "documents": last.documents}, {}


def _train(bench: Bench, part: Part) -> Done:
    folder = run_folder(bench.out, part.training, part.seed)
    outcome = train(part.settings["recipe"], folder, overrides=part.settings["changes"], progress=False)
    if outcome.reason != "finished":
        raise Stopped(f"stopped at step {outcome.step} ({outcome.reason})")
    assert outcome.checkpoint is not None
    lines = read_metrics(folder)
    valid = [line["valid_nelbo"] for line in lines if isinstance(line.get("valid_nelbo"), int | float)]
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    result = {"steps": outcome.step, "valid_nelbo": valid[-1] if valid else None}
    return result, {"bytes": size, "weights": bundle.meta(outcome.checkpoint)["weights_sha256"]}


def _tune(bench: Bench, part: Part) -> Done:
    """Draw and judge with every combination; the rule of `tuning` chooses."""
    asked = part.settings
    model, judge = _model(bench, part), bench.judge(asked["reference"])
    assert judge is not None
    tried = []
    for values in candidates(asked["shared"], asked["own"]):
        spec = sampling_spec(part, values)
        result = measure_generation(bench.context, model, spec, judge).result
        tried.append({"values": values, "ppl": result["ppl"], "entropy": result["diversity"]["entropy"]["value"]})
    plain = measure_generation(bench.context, model, sampling_spec(part), judge).result
    untuned = {"ppl": plain["ppl"], "entropy": plain["diversity"]["entropy"]["value"]}
    best = choose(tried, untuned["entropy"], asked["entropy_loss"])
    outcome = {"chosen": best["values"] if best else {}, "untuned": untuned, "count": len(tried)}
    return {**outcome, "tried": {str(i): one for i, one in enumerate(tried)}}, _about(model)


def _model(bench: Bench, part: Part) -> EvalModel:
    return bench.model(part.training, part.seed, part.system, part.settings["way"].get("process"))


def _about(model: EvalModel, measured: Measurement | None = None) -> dict[str, Any]:
    weights = {"weights": model.identity["weights"], "process": model.identity["process"]}
    return weights if measured is None else {**weights, "cell": f"{measured.kind}-{measured.hash}"}


def _likelihood(bench: Bench, part: Part) -> Done:
    asked, model = part.settings, _model(bench, part)
    given = {"looks": asked["looks"], "seed": asked["seed"], "convention": part.convention}
    rows = bench.rows(model, asked["rows"], whole=False)
    estimator = described(NelboEstimator, **{**given, **asked["options"]})
    measured = measure_likelihood(bench.context, model, rows, estimator)
    return {**measured.result, "exact": model.engine.autoregressive, "text": rows.name}, _about(model, measured)


def _drawn(bench: Bench, part: Part) -> Done:
    asked, model = part.settings, _model(bench, part)
    tuned = bench.tuned(part) if part.tuned else None
    spec, judge = sampling_spec(part, tuned), bench.judge(asked["reference"])
    if part.kind == "correction":
        measured = measure_correction(bench.context, model, spec, judge)
    else:
        assert judge is not None
        measured = measure_generation(bench.context, model, spec, judge)
    chosen = {} if tuned is None else {"chosen": dict(tuned)}
    return measured.result, {**_about(model, measured), **chosen}


def _recovery(bench: Bench, part: Part) -> Done:
    asked, model = part.settings, _model(bench, part)
    repair = described(Repair, **{**asked["repair"], **asked["options"], "convention": part.convention})
    rows = bench.rows(model, asked["rows"], whole=True)
    spec = RecoverySpec(asked["count"], repair, asked["seed"])
    measured = measure_recovery(bench.context, model, rows, spec, bench.judge(asked["reference"]))
    about = {"count": asked["count"], "repair": repair.name, "text": rows.name}
    about["length"] = len(rows.rows[0]) - 2
    return {**measured.result, **about}, _about(model, measured)


def _zero_shot(bench: Bench, part: Part) -> Done:
    asked, model = part.settings, _model(bench, part)
    data = str(QUESTIONS) if asked["data"] == SAMPLE else asked["data"]
    measured = measure_zero_shot(
        bench.context, model, asked["tasks"] or None, data, asked["passes"], asked["limit"], asked["seed"]
    )
    return measured.result, _about(model, measured)


def _judge(bench: Bench, part: Part) -> Done:
    from scdd.evals.measure.judge import Matched, measure_denoised, measure_judge
    from scdd.evals.measure.judge_client import JudgeClient, JudgeServer

    asked, first = part.settings, _model(bench, part)
    second = bench.model(asked["second"], part.seed, asked["against"], asked["second_way"].get("process"))
    rows = bench.rows(first, asked["rows"], whole=True)
    given = {"nfe": asked["nfe"], "seed": asked["seed"], "convention": part.convention}
    matched = described(Matched, **{**given, **asked["options"]})
    client = JudgeClient(JudgeServer(asked["llm"], asked["base_url"]), bench.out / MEASURED / "answers.jsonl")
    ways = changes_of(asked["way"]), changes_of(asked["second_way"])
    texts = [
        measure_denoised(bench.context, model, first, rows, matched, way)
        for model, way in zip((first, second), ways, strict=True)
    ]
    measured = measure_judge(bench.context, (first, second), (texts[0], texts[1]), client, matched)
    return {**measured.result, "against": asked["against"]}, _about(first, measured)


WORK: dict[str, Callable[[Bench, Part], Done]] = {
    "data": _data,
    "train": _train,
    "tune": _tune,
    "likelihood": _likelihood,
    "generation": _drawn,
    "correction": _drawn,
    "recovery": _recovery,
    "zero-shot": _zero_shot,
    "judge": _judge,
}
