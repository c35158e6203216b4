"""Meters of several processes as one: each sends its own, as plain data, and here they are added up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

REQUESTS = ("scdd_requests", "scdd_request_seconds")
"""What whoever talks HTTP counts: it sees those that nobody computed anything for, too."""


class Family(NamedTuple):
    """A meter as plain data; samples by (name, labels)."""

    name: str
    about: str
    kind: str
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float]


Families = list[Family]


def families(registry: Any) -> Families:
    """The registry's meters, without the dates on which they were made."""
    return [
        Family(
            metric.name,
            metric.documentation,
            metric.type,
            {(s.name, tuple(s.labels.items())): s.value for s in metric.samples if not s.name.endswith("_created")},
        )
        for metric in registry.collect()
    ]


def summed(parts: Iterable[Families]) -> Families:
    """The sum of all parts."""
    total: dict[str, Family] = {}
    for family in (family for part in parts for family in part):
        sums = total.setdefault(family.name, family._replace(samples={})).samples
        for key, value in family.samples.items():
            sums[key] = sums.get(key, 0.0) + value
    return list(total.values())


def added(parts: Iterable[Families]) -> bytes:
    """The same in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_Sums(summed(parts)))
    return bytes(generate_latest(registry))


class _Sums:
    def __init__(self, total: Families) -> None:
        self._total = total

    def collect(self) -> Iterator[Metric]:
        """As prometheus_client asks for it."""
        for family in self._total:
            metric = Metric(family.name, family.about, family.kind)
            for (name, labels), value in family.samples.items():
                metric.add_sample(name, dict(labels), value)
            yield metric
