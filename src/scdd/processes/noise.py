"""Which tokens noise consists of: the paper's uniform one, or any fixed distribution π over the K ordinary tokens.

In `eq:marginal` u becomes π; kernels, rates, posteriors and losses follow from that one change. Uniform noise needs none of
this: a process without a `Noise` is the paper's.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from scdd.core.errors import UserError
from scdd.core.types import Vocab

SLACK = 1e-6  # by how much the sum of a given vector may miss 1; it is then divided by it
VALUES = "float64"  # of a saved distribution: K numbers, little-endian, in base64


class Noise:
    """π as a vector [K] in the order of the ordinary tokens' ids: finite, positive, with sum 1."""

    def __init__(self, vocab: Vocab, values: Tensor | Sequence[float], name: str = "given") -> None:
        try:
            given = torch.as_tensor(values, dtype=torch.float64).detach().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(
                f"The noise {name} is no vector of numbers: give one for each ordinary token.", "noise"
            ) from error
        if given.shape != (vocab.K,):
            raise UserError(
                f"The noise {name} has the shape {tuple(given.shape)} and there are {vocab.K} ordinary tokens: give one number "
                "for each, in the order of their ids, none for the mask.",
                "noise",
            )
        if not bool(torch.isfinite(given).all()) or bool((given <= 0).any()):
            raise UserError(
                f"The noise {name} holds numbers that are not above 0 and finite: give each token a chance.", "noise"
            )
        total = float(given.sum())
        if abs(total - 1.0) > SLACK:
            raise UserError(f"The noise {name} sums to {total:g}: divide it by its sum.", "noise")
        self.vocab, self.name, self.values = vocab, name, given / total
        self._homes: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without what is kept for this process's devices: whoever reads it may have none of them."""
        return {**self.__dict__, "_homes": {}}

    @cached_property
    def digest(self) -> str:
        """What tells two of a name apart."""
        return hashlib.sha256(self.values.numpy().astype("<f8").tobytes()).hexdigest()[:12]

    def at(self, z: Tensor) -> Tensor:
        """π(z), 0 at the mask; float64."""
        return self._on(z.device)[0][z]

    def token(self, u: Tensor) -> Tensor:
        """The token of π at uniform numbers u in [0, 1): the first at which the cumulative mass passes u."""
        ordinal = torch.searchsorted(self._on(u.device)[1], u.to(torch.float64).contiguous(), right=True)
        return self.vocab.token(ordinal.clamp(max=self.vocab.K - 1))

    def log_relative(self, device: torch.device) -> Tensor:
        """log(K·π) [V], 0 where noise is uniform and at the mask."""
        return self._on(device)[2]

    def saved(self) -> dict[str, str]:
        """Plain data that `read` takes back."""
        return {"name": self.name, VALUES: base64.b64encode(self.values.numpy().astype("<f8").tobytes()).decode()}

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """(π by id, its cumulative sum by ordinal, log(K·π) by id) on a device."""
        if device not in self._homes:
            by_id = torch.zeros(self.vocab.size, dtype=torch.float64)
            by_id[self.vocab.ordinary()] = self.values
            relative = torch.where(by_id > 0, by_id * self.vocab.K, 1.0).log()
            self._homes[device] = (by_id.to(device), self.values.cumsum(0).to(device), relative.to(device))
        return self._homes[device]

    def __repr__(self) -> str:
        return f"Noise({self.name!r}, {self.digest})"


def read(saved: object, vocab: Vocab, place: str) -> Noise:
    """A distribution as `Noise.saved` wrote it, checked before anything is made of it."""
    name, text = (saved.get("name"), saved.get(VALUES)) if isinstance(saved, Mapping) else (None, None)
    if not isinstance(name, str) or not isinstance(text, str) or len(text) > 12 * vocab.K + 16:
        raise UserError(f"{place} holds no noise distribution: take it again from where it came.")
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UserError(
            f"{place} holds a damaged noise distribution ({error}): take it again from where it came."
        ) from error
    if len(raw) != 8 * vocab.K:
        raise UserError(
            f"{place} holds noise over {len(raw) // 8} tokens, and there are {vocab.K}: it is another model's."
        )
    try:
        return Noise(vocab, torch.frombuffer(bytearray(raw), dtype=torch.float64), name[:100])
    except UserError as error:
        raise UserError(f"{place}: {error}") from error


def unigram(vocab: Vocab, counts: Tensor) -> Noise:
    """The tokens' own frequencies from counts [V] by id, each count one more, so that none is impossible."""
    raised = counts.to(torch.float64)[vocab.ordinary()] + 1.0
    return Noise(vocab, raised / raised.sum(), "unigram")


def own_fields(given: Any, known: Sequence[str]) -> str:
    """What a subclass has set beside `known`, as its repr goes on: ", name=value" for each, in their order."""
    return "".join(
        f", {name}={value!r}"
        for name, value in vars(given).items()
        if name not in known
        and not name.startswith("_")
        and not isinstance(getattr(type(given), name, None), cached_property)  # what was computed is no field
    )
