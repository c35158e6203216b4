"""Meters of several replicas as one: each sends its own with its answers, and here they are added up.

A counter changes only while a request is answered, so the last answer's are right; those of a replica that has gone still count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

REQUESTS = ("scdd_requests", "scdd_request_seconds")
"""What the front counts itself: it sees those that no replica saw, too."""


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


def added(parts: Iterable[Families]) -> bytes:
    """The sum of all parts in Prometheus's text format."""
    total: dict[str, Family] = {}
    for family in (family for part in parts for family in part):
        sums = total.setdefault(family.name, family._replace(samples={})).samples
        for key, value in family.samples.items():
            sums[key] = sums.get(key, 0.0) + value
    registry = CollectorRegistry()
    registry.register(_Sums(total))
    return bytes(generate_latest(registry))


class _Sums:
    def __init__(self, total: dict[str, Family]) -> None:
        self._total = total

    def collect(self) -> Iterator[Metric]:
        """As prometheus_client asks for it."""
        for family in self._total.values():
            metric = Metric(family.name, family.about, family.kind)
            for (name, labels), value in family.samples.items():
                metric.add_sample(name, dict(labels), value)
            yield metric
