"""Randomness as an argument: a `torch.Generator`, or `CounterRNG` counters that do not care how samples are batched."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from scdd.core.errors import UserError

_GOLDEN = -0x61C8864680B583EB  # 2^64/φ as a signed 64-bit integer; splitmix64's increment
_MIX_1 = -0x40A7B892E31B1A47
_MIX_2 = -0x6B2FB644ECCEEE15
Whole = TypeVar("Whole", Tensor, int, "np.ndarray[Any, np.dtype[np.int64]]")


class CounterRNG:
    """One stream of numbers a sample: the n-th call gives row i numbers that depend on (seed, i, n, position) alone.

    So sample i of a seed is the same alone or in a batch of 512, on any number of ranks, on any device.
    """

    def __init__(
        self, seed: int | Sequence[int], samples: Sequence[int] | Tensor, device: torch.device | str | None = None
    ) -> None:
        """`seed`: one for all samples, or one each."""
        self.calls: int | Tensor = 0
        if not isinstance(samples, Tensor):  # hashed here: on a device each operation would be a launch
            given = [_of_seed(seed)] if isinstance(seed, int) else [_of_seed(each) for each in seed]
            keys = _hash(_hash(np.array(given, dtype=np.int64)) ^ np.array(samples, dtype=np.int64))
            self.keys = torch.from_numpy(keys).to(device)
            return
        index = samples.to(device, torch.int64)
        if isinstance(seed, int):
            seeds = torch.full_like(index, _of_seed(seed))  # made on the device: a training step must not wait for it
        else:
            seeds = index.new_tensor([_of_seed(each) for each in seed])
        self.keys = _hash(_hash(seeds) ^ index)

    @classmethod
    def resumed(cls, keys: Tensor, calls: Tensor) -> CounterRNG:
        """Samples of known `keys` that have had so many calls, each its own number [B]."""
        made = cls.__new__(cls)
        made.keys, made.calls = keys, calls
        return made

    def bits(self, shape: torch.Size | tuple[int, ...]) -> Tensor:
        """Hashed 64-bit integers of `shape`, whose first axis is the samples."""
        if shape[0] != self.keys.shape[0]:
            raise ValueError(f"{self.keys.shape[0]} samples cannot give numbers of shape {tuple(shape)}")
        self.calls = self.calls + 1
        places = torch.arange(torch.Size(shape[1:]).numel(), device=self.keys.device)
        step = self.calls * _GOLDEN  # a tensor's wraps by itself
        call = _hash(self.keys + (step if isinstance(step, Tensor) else _signed(step)))
        return _hash(call[:, None] ^ _hash(places)[None, :]).reshape(shape)


def derive_seed(seed: int, use: str) -> int:
    """The seed of one named use of a run's randomness: uses never share numbers."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{use}".encode(), digest_size=8).digest(), "little")


Randomness = torch.Generator | CounterRNG | None


def uniforms(
    shape: torch.Size | tuple[int, ...], source: Randomness = None, device: torch.device | str | None = None
) -> Tensor:
    """Float64 numbers in [0, 1) with 53 random bits: float32's 24 would round probabilities of 1e-8 away."""
    if isinstance(source, CounterRNG):
        return ((source.bits(shape) >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53
    drawn = torch.rand(shape, generator=source, dtype=torch.float64, device=_home(source, device))
    return drawn.to(device) if device is not None else drawn


def integers(
    high: int, shape: torch.Size | tuple[int, ...], source: Randomness = None, device: torch.device | str | None = None
) -> Tensor:
    """Integers from 0 to high − 1."""
    if isinstance(source, CounterRNG):
        return (uniforms(shape, source) * high).to(torch.int64).clamp_(max=high - 1)
    drawn = torch.randint(high, tuple(shape), generator=source, device=_home(source, device))
    return drawn.to(device) if device is not None else drawn


def _home(source: torch.Generator | None, device: torch.device | str | None) -> torch.device | str | None:
    return source.device if source is not None else device


def _of_seed(seed: int) -> int:
    if not -(1 << 63) <= seed < 1 << 64:  # another seed would draw the same
        raise UserError(f"seed is {seed}: choose a whole number of at most 64 bits.", "seed")
    return _signed(seed)


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def first_uniform(seed: int, sample: int) -> float:
    """The first of `uniforms` that `CounterRNG` gives a sample, made on the host: no kernels, and nothing to wait for."""
    key = _hash(_hash(_of_seed(seed)) ^ sample)
    bits = _hash(_hash(_wrapped(key + _GOLDEN)) ^ _hash(0))
    return ((bits >> 11) & ((1 << 53) - 1)) * 2.0**-53


def _hash(value: Whole) -> Whole:
    """splitmix64's finaliser; int64 arithmetic wraps, and the shifts are made logical by a mask."""
    value = _wrapped(value + _GOLDEN)
    value = _wrapped((value ^ ((value >> 30) & ((1 << 34) - 1))) * _MIX_1)
    value = _wrapped((value ^ ((value >> 27) & ((1 << 37) - 1))) * _MIX_2)
    return value ^ ((value >> 31) & ((1 << 33) - 1))


def _wrapped(value: Whole) -> Whole:
    """As 64 bits hold it: a tensor's and an array's are so by themselves."""
    return _signed(value) if isinstance(value, int) else value
