"""What `/metrics` tells Prometheus. Each app has a registry of its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Meters:
    """The server's meters."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.requests = Counter(
            "scdd_requests", "Requests answered, by route and status.", ["route", "status"], registry=r
        )
        self.seconds = Histogram(
            "scdd_request_seconds",
            "From a request's arrival to its answer's end.",
            ["route"],
            buckets=SECONDS,
            registry=r,
        )
        self.waiting = Gauge("scdd_queue_jobs", "Jobs that wait.", registry=r)
        self.rejected = Counter("scdd_rejected", "Requests refused with 429.", registry=r)
        self.abandoned = Counter("scdd_abandoned_jobs", "Jobs given up because nobody waited any more.", registry=r)
        self.batch_rows = Histogram("scdd_batch_texts", "Texts that took a step together.", buckets=ROWS, registry=r)
        self.batch_jobs = Histogram("scdd_batch_jobs", "Jobs that took a step together.", buckets=ROWS, registry=r)
        self.joined = Counter("scdd_joined_jobs", "Jobs whose texts joined others that were under way.", registry=r)
        self.evaluations = Counter("scdd_network_evaluations", "Calls of the network.", registry=r)
        self.evaluated_rows = Counter("scdd_network_rows", "Rows that those calls evaluated.", registry=r)
        self.tokens = Counter("scdd_unmasked_tokens", "Masks that became tokens.", registry=r)
        self.corrections = Counter("scdd_corrected_tokens", "Tokens that became other tokens.", registry=r)
        self.remasked = Counter("scdd_remasked_tokens", "Tokens that became masks again.", registry=r)

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self.registry)
