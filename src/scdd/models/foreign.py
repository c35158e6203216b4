"""Networks from outside the package: any module with the `Denoiser` protocol."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scdd.core.errors import UserError, reason
from scdd.core.types import Head, Vocab
from scdd.models.network import Network

GIVEN = "given"  # the kind of a network that was handed over in Python: nothing on disk can rebuild it


class Foreign(Network):
    """Somebody's own module as one of our networks; it stays as it is, with its weights under its own names.

    It must have `vocab`, `head` and `hidden(z_t, t, documents)`, and may have what `Network` has besides: `layers`
    (what FSDP shards one by one), `hidden_matrices` (what Muon trains), `causal`, `context`, `time_conditioning`, `cache`.
    """

    weights_prefix = "module."
    whole_graph = False
    module: Any  # an nn.Module

    def __init__(self, module: nn.Module, vocab: Vocab, description: Mapping[str, Any]) -> None:
        super().__init__()
        self.module, self._description = module, dict(description)
        self.vocab = vocab

    @property
    def head(self) -> Head:
        """The module's."""
        head: Head = self.module.head
        return head

    def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None, **more: Any) -> Tensor:
        """The module's, in the compute dtype."""
        with torch.autocast(z_t.device.type, self.compute_dtype) if self.compute_dtype else nullcontext():
            states: Tensor = self(z_t, t, documents, **more)
        if states.shape != (*z_t.shape, self.width):
            raise UserError(
                f"{_name(self.module)}.hidden gave {tuple(states.shape)} for tokens {tuple(z_t.shape)} and a head of width "
                f"{self.width}: give one state of that width for each token, and no logits."
            )
        return states

    def forward(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None, **more: Any) -> Tensor:
        """The part that is compiled; see `hidden`."""
        states: Tensor = self.module.hidden(z_t, t, documents, **more)
        return states

    def __getattr__(self, name: str) -> Any:
        # The autoregressive sampler asks for a cache, which only some modules have.
        if name == "cache" and hasattr(self.module, "cache"):
            return self.module.cache
        return super().__getattr__(name)

    @property
    def causal(self) -> bool:
        """As the module says; it is not asked to."""
        return bool(getattr(self.module, "causal", False))

    @property
    def context(self) -> int | None:
        """As the module says; it is not asked to."""
        own = getattr(self.module, "context", None)
        return own if type(own) is int and own > 0 else None

    @property
    def time_conditioning(self) -> bool:
        """As the module says; it is not asked to."""
        return bool(getattr(self.module, "time_conditioning", False))

    def description(self) -> dict[str, Any]:
        """What was imported, or that it was handed over."""
        return dict(self._description)

    def layers(self) -> Sequence[nn.Module]:
        """The module's, if it says; none means that it is sharded as a whole."""
        own: Sequence[nn.Module] = self.module.layers() if hasattr(self.module, "layers") else []
        return own

    def hidden_matrices(self) -> list[str]:
        """The module's, if it says; none means AdamW for all."""
        own = list(self.module.hidden_matrices()) if hasattr(self.module, "hidden_matrices") else []
        parameters = dict(self.module.named_parameters())
        for name in own:
            if name not in parameters or parameters[name].dim() != 2:
                found = "no parameter" if name not in parameters else f"of {parameters[name].dim()} dimensions"
                raise UserError(
                    f"{_name(self.module)}.hidden_matrices names {name}, which is {found}: name matrices by their names "
                    "in named_parameters()."
                )
        return [f"{self.weights_prefix}{name}" for name in own]


def as_network(module: object, vocab: Vocab, description: Mapping[str, Any] | None = None) -> Network:
    """A module as a `Network`; one of ours is taken as it is. Refuses what has not the protocol, or other ids."""
    name = _name(module)
    if not isinstance(module, nn.Module):
        raise UserError(
            f"the network is a {name}: give a torch.nn.Module with vocab, head and hidden(z_t, t, documents)."
        )
    denoiser: Any = module
    _require_protocol(denoiser, name)
    if denoiser.vocab != vocab or denoiser.head.vocab != vocab:
        raise UserError(
            f"{name} was made for {denoiser.vocab}, and the tokenizer has {vocab}: hand over the tokenizer's vocabulary."
        )
    if isinstance(module, Network):
        return module
    return Foreign(module, vocab, description or {"kind": GIVEN, "class": name})


def _name(module: object) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _require_protocol(module: Any, name: str) -> None:
    """Refuse what training or sampling would stumble over."""
    missing = [part for part in ("vocab", "head", "hidden") if not hasattr(module, part)]
    if missing:
        raise UserError(f"{name} has no {missing[0]}, which a denoiser needs (vocab, head, hidden): add it.")
    head = module.head
    if not isinstance(head, Head):
        raise UserError(
            f"{name}.head is a {_name(head)}: let it be a property that gives scdd.core.Head(weight, vocab, bias)."
        )
    if head.weight.dim() != 2 or head.weight.shape[0] < module.vocab.size:
        raise UserError(
            f"{name}.head.weight has shape {tuple(head.weight.shape)}: it needs a row for each of {module.vocab.size} ids."
        )
    try:
        inspect.signature(module.hidden).bind(None, None, None)
    except TypeError as error:
        raise UserError(f"{name}.hidden cannot be called as hidden(z_t, t, documents) ({error}): mend it.") from error


def given(network: nn.Module | Callable[[Vocab], nn.Module], vocab: Vocab) -> Network:
    """The network that a caller of Python hands over, or its factory makes."""
    if not isinstance(network, nn.Module) and not callable(network):
        raise UserError(
            f"the network is a {_name(network)}: give a torch.nn.Module, or a function that makes it for a vocabulary."
        )
    return as_network(network if isinstance(network, nn.Module) else network(vocab), vocab)


def imported(vocab: Vocab, generator: torch.Generator | None, target: str, options: Mapping[str, Any]) -> Network:
    """factory(vocab, **options) of the module that `target` names; the working folder is looked in as well.

    Factories draw from torch's global generator, as everybody's modules do; it is seeded for them and put back. They run
    on the CPU, whatever device the caller has chosen: a module's own tables would be nothing on the meta device.
    """
    where, _, name = target.partition(":")
    if not (where and name):
        raise UserError(f'target {target} is no "package.module:factory": name a function and where it is.', "target")
    factory = _found(where, name, target)
    state = torch.random.get_rng_state()
    try:
        if generator is not None:
            torch.manual_seed(generator.initial_seed())
        with torch.device("cpu"):
            made = factory(vocab, **options)
            return as_network(made, vocab, {"kind": "import", "target": target, "options": dict(options)})
    except UserError:
        raise
    except Exception as error:  # somebody else's code: whatever it raises, it did not make the network
        raise UserError(f"target {target} failed ({reason(error)}): mend it, or its options.", "target") from error
    finally:
        torch.random.set_rng_state(state)


def _found(module: str, name: str, target: str) -> Callable[..., Any]:
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"target {target} cannot be imported ({error}): install its package, or run where its file lies.", "target"
        ) from error
    except Exception as error:  # somebody else's code, which runs when it is imported
        raise UserError(f"target {target} cannot be imported ({reason(error)}): mend {module}.", "target") from error
    finally:
        if added:
            sys.path.remove(here)
    if not callable(found):
        raise UserError(f"target {target} is no function: name one that makes the network.", "target")
    return found  # type: ignore[no-any-return]
