"""A recipe as so much work for so many GPUs: what memory and time are counted from. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from scdd.assemble.parent import as_read
from scdd.core.errors import UserError, at
from scdd.data.options import PairsOptions, ShardsOptions, TextOptions
from scdd.models.count import FLOAT, HALF, Keeping, Parameters, Shape, matrices, parameters, pieces
from scdd.models.options import DiTConfig, DiTOptions, LlamaConfig, LlamaOptions, PretrainedOptions, RotaryScaling
from scdd.recipe.sections import Recipe
from scdd.training.options import LoraOptions, TrainingOptions

Sharing = Literal["none", "ddp", "fsdp", "hsdp"]
GPT2 = 50_258  # ids, with a mask


@dataclass(frozen=True)
class Job:
    """What each GPU has to do, as far as it decides memory and time."""

    shape: Shape
    vocab: int  # ids, the mask included
    length: int
    training: TrainingOptions
    documents: bool = False  # whether attention has a mask of documents
    one_sided: bool = False  # whether attention looks one way, or grows, in some rows or steps
    gpus: int = 1
    per_node: int = 8
    sharing: Sharing = "none"

    @property
    def share(self) -> int:
        """Rows of a step on each GPU."""
        return self.training.batch_size // self.gpus

    @property
    def micro(self) -> int:
        """Rows of a pass."""
        return min(self.training.micro_batch_size or self.share, self.share)

    @property
    def passes(self) -> int:
        """Forward and backward passes of a step."""
        return -(-self.share // self.micro)

    @property
    def shards(self) -> int:
        """Among how many GPUs weights and what belongs to them are divided."""
        together = self.training.shard_ranks or min(self.gpus, self.per_node)
        return {"fsdp": self.gpus, "hsdp": together}.get(self.sharing, 1)

    @property
    def parameters(self) -> Parameters:
        """The network's."""
        return parameters(self.shape, self.vocab)

    @property
    def trained(self) -> int:
        """Parameters that have a gradient."""
        lora = self.training.lora
        return self.parameters.total if lora is None else adapters(self.shape, lora)

    @property
    def replayed(self) -> bool:
        """Whether passes are CUDA graphs, as `Parallel` decides it."""
        return self.training.compile and self.training.cuda_graphs and self.sharing == "none"

    @property
    def keeping(self) -> Keeping:
        """How the network runs on a GPU."""
        training = self.training
        half = FLOAT if training.precision == "float32" else HALF
        return Keeping(
            half=half,
            recompute=training.recompute,
            products=training.keep_products,
            adapted=frozenset(name for name in matrices(self.shape) if reached(self.shape, training.lora, name)),
            length=self.length,
            masked=self.documents or self.one_sided,
            narrow=training.precision == "fp8",
        )


def reached(shape: Shape, lora: LoraOptions | None, name: str) -> int:
    """In how many blocks LoRA is told to adapt the matrix of this name."""
    if lora is None or lora.targets is None:
        return 0 if lora is None else shape.depth
    paths = (f".blocks.{block}.{name}" for block in range(shape.depth))
    return sum(any(path.endswith(f".{target}") for target in lora.targets) for path in paths)


def adapters(shape: Shape, lora: LoraOptions) -> int:
    """Parameters of LoRA's two factors beside the matrices that it is told to adapt."""
    each = {name: rows + columns for name, (rows, columns) in matrices(shape).items()}
    return lora.rank * sum(reached(shape, lora, name) * sides for name, sides in each.items())


# -- from a recipe ------------------------------------------------------------------------------------------------------


def job_of(
    spec: Recipe, gpus: int = 1, per_node: int = 8, vocab: int | None = None
) -> tuple[Job, int | None, list[str]]:
    """(The recipe as a job, tokens of its corpus, what the user should know)."""
    training = spec.training
    if spec.objective.kind == "prism":
        raise UserError(
            "objective.kind prism trains a head on a network that may be frozen, which is not counted here: plan the same "
            "network with objective.kind elbo, which needs more."
        )
    if training.batch_size % gpus:
        raise UserError(
            f"gpus is {gpus}, and training.batch_size {training.batch_size} cannot be shared among so many: choose a divisor, or "
            f"a training.batch_size of {-(-training.batch_size // gpus) * gpus}.",
            "gpus",
        )
    kind: Any = training.parallel
    if kind == "none" and gpus > 1:
        raise UserError(f"training.parallel is none, and {gpus} GPUs are asked for: set it to fsdp or ddp.")
    notices: list[str] = []
    shape, start_vocab = _shape(spec)
    known, corpus = _corpus(spec)
    size = vocab or known or start_vocab
    if size is None:
        size = GPT2
        notices.append(
            f"{getattr(spec.data, 'path', 'the data')} is not there to say its vocabulary: {GPT2:,} ids are assumed, GPT-2's "
            "and a mask, unless another number is given (vocab)"
        )
    if training.precision == "float32":
        notices.append("training.precision is float32, whose speed is assumed: only bf16 was measured")
    if training.precision == "fp8":
        notices.append(
            "training.precision is fp8, whose speed and memory are not modelled: these are bf16's with torch's attention, which it has"
        )
    sharing: Sharing = "none" if gpus == 1 else "ddp" if kind == "auto" else kind
    documents = bool(getattr(spec.data, "documents", False)) or (isinstance(spec.data, PairsOptions) and spec.data.pack)
    if documents:
        notices.append("attention has a mask of documents, whose speed was not measured")
    if isinstance(shape, LlamaConfig) and pieces(shape, spec.data.length):
        notices.append(
            f"a token sees {shape.attention_window} to either side of rows of {spec.data.length} tokens, whose speed and memory were "
            "not measured"
        )
    if getattr(spec.objective, "teacher", None) is not None:
        notices.append("objective.teacher is not counted: its weights in bfloat16 and a pass forward come on top")
    one_sided = training.grow_attention > 0 or any(
        getattr(spec.objective, name, 0) for name in ("ar_share", "ar_steps")
    )
    job = Job(shape, size, spec.data.length, training, documents, one_sided, gpus, per_node, sharing)
    if gpus % job.shards:
        raise UserError(
            f"training.shard_ranks is {job.shards}, unless set the GPUs of a machine, and {gpus} GPUs are no multiple of it: "
            "choose a divisor."
        )
    return job, corpus, notices


def _shape(spec: Recipe) -> tuple[Shape, int | None]:
    """(The network's shape, the ids of the model that it starts from)."""
    model, causal, start = spec.model, spec.process.kind == "ar", spec.training.start_from
    if isinstance(model, DiTOptions | LlamaOptions):
        facts = None if start is None else _meta(start)
        return model.config(causal), None if facts is None else facts["vocab"]["size"]
    if not isinstance(model, PretrainedOptions):
        raise UserError(
            "model.kind import is a network of your own, whose costs only your code knows: plan one of kind dit or llama of "
            "its size."
        )
    assert start is not None  # the recipe has checked it
    facts = _meta(start)
    if facts is None or not facts["network"]:
        raise UserError(
            f"training.start_from {start} is not here to say its network: convert it first (scdd convert), or say its shape in the "
            "model section, such as model={kind: llama, size: smollm2-135m}, and its vocab."
        )
    network = {"kind": "dit", **facts["network"]}
    if network["kind"] not in ("dit", "llama"):
        raise UserError(
            f"training.start_from {start} holds a network of kind {network['kind']}, whose costs are not known here: plan one of "
            "kind dit or llama of its size."
        )
    try:
        with at("model"):
            network["depth"] = len(model.kept(network.get("depth") or 0))
            values = dict(as_read(spec, network, causal))
            if values.pop("kind") == "dit":
                return DiTConfig(**values), facts["vocab"]["size"]
            if values.get("rotary_scaling") is not None:
                values["rotary_scaling"] = RotaryScaling(**values["rotary_scaling"])
            return LlamaConfig(**values), facts["vocab"]["size"]
    except TypeError as error:
        raise UserError(
            f"training.start_from {start} describes its network in a way that is not known here: use the version of scdd that "
            "wrote it."
        ) from error


def _meta(start: str) -> dict[str, Any] | None:
    """What a checkpoint folder of ours says of itself; None where there is none."""
    from scdd.bundle.folder import META, locate, meta  # imports torch, which only such recipes pay for

    found = locate(start)
    return meta(found) if found is not None and (found / META).is_file() else None


def _corpus(spec: Recipe) -> tuple[int | None, int | None]:
    """(Ids of the vocabulary, tokens to train on), as far as the data is there to say."""
    data = spec.data
    if isinstance(data, TextOptions):
        own = data.tokenizer is None and spec.training.start_from is None
        return (data.vocab_size, None) if own else (None, None)
    if not isinstance(data, ShardsOptions):
        return None, None
    from scdd.data.address import place
    from scdd.data.manifest import INDEX, read_manifest

    if not (place(data.path) / INDEX).is_file():
        return None, None
    manifest = read_manifest(data.path)
    return manifest["tokenizer"]["vocab_size"], manifest["splits"].get("train", {}).get("tokens")
