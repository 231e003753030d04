"""What is measured, and how Prometheus reads it.

No label names a tenant, an endpoint or an event type: the number of series stays the same however
many there are. What is counted for each delivery goes into plain lists (about half a microsecond),
not into prometheus-client's locked objects; they are turned into its families when asked for.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

PREFIX = "surehook_"

DATABASE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
RECEIVER_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0)
WAIT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
ROWS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


class Distribution:
    """Counts of values up to each of ``bounds`` (ascending, the last one infinite by itself)."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, name: str, documentation: str) -> HistogramMetricFamily:
        """The distribution as Prometheus wants it: cumulative."""
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == math.inf else str(bound), total))
        return HistogramMetricFamily(name, documentation, buckets=buckets, sum_value=self._sum)


@dataclass(frozen=True, slots=True)
class QueueState:
    """What the database says of the work as a whole; the same whichever process asks.

    ``oldest_due_age`` is in seconds, 0 when nothing is due. ``due`` is counted up to a limit.
    ``endpoints`` and ``circuits`` are numbers by status and state, ``workers`` those seen lately.
    ``operations`` are those that have not ended, by status; ``operation_idle`` is for how many
    seconds one has made no progress.
    """

    oldest_due_age: float
    due: int
    workers: int
    endpoints: Mapping[str, int] = field(default_factory=dict)
    circuits: Mapping[str, int] = field(default_factory=dict)
    operations: Mapping[str, int] = field(default_factory=dict)
    operation_idle: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What a worker in this process says when asked. Connections are totals since it started."""

    in_flight: int
    recorder_backlog: int
    connections_opened: int
    connections_reused: int


class Metrics:
    """Everything that one process measures. ``render`` gives the text that Prometheus scrapes."""

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        self.late = 0
        self.ended: Counter[str] = Counter()
        self.first_attempt = Distribution(WAIT_SECONDS)
        self.receiver = Distribution(RECEIVER_SECONDS)
        self.claim_seconds = Distribution(DATABASE_SECONDS)
        self.claim_rows = Distribution(ROWS)
        self.record_seconds = Distribution(DATABASE_SECONDS)
        self.record_rows = Distribution(ROWS)
        self.removed: Counter[str] = Counter()
        self._queue: QueueState | None = None
        self._database_up: bool | None = None
        self._worker: Callable[[], WorkerState] | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(self))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def claimed(self, rows: int, seconds: float) -> None:
        """Note one claim: how many rows it brought, and how long its transaction took."""
        self.claim_rows.add(rows)
        self.claim_seconds.add(seconds)

    def recorded(self, rows: int, seconds: float) -> None:
        """Note one group of results that was committed."""
        self.record_rows.add(rows)
        self.record_seconds.add(seconds)

    def attempt(self, kind: str, duration: float, waited: float | None) -> None:
        """Note an attempt: its outcome's kind and duration, and for a delivery's first attempt how
        long it had ``waited`` since it was published, in seconds."""
        self.attempts[kind] += 1
        self.receiver.add(duration)
        if waited is not None:
            self.first_attempt.add(waited if waited > 0 else 0.0)

    def watch_worker(self, state: Callable[[], WorkerState] | None) -> None:
        """Ask ``state`` at each scrape; None when the worker has stopped."""
        self._worker = state

    def queue_is(self, state: QueueState | None) -> None:
        """Note the state of the queue; None when the database could not be asked."""
        self._queue = state
        self._database_up = state is not None

    def render(self) -> tuple[bytes, str]:
        """Return the metrics in Prometheus' text format, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def families(self) -> Iterable[Metric]:
        """Our own metrics, as they are now."""
        yield _counter("attempts", "Attempts by kind of outcome.", "kind", self.attempts)
        yield _counter("ended_deliveries", "Deliveries that ended here.", "status", self.ended)
        yield _counter("late_attempts", "Attempts whose lease was over.", value=self.late)
        yield _counter("removed_rows", "Rows removed for their age.", "of", self.removed)
        for name, documentation, distribution in (
            ("first_attempt_delay", "From publishing to the first attempt.", self.first_attempt),
            ("attempt_duration", "Duration of attempts.", self.receiver),
            ("claim", "Duration of claims.", self.claim_seconds),
            ("record", "Duration of recording a group.", self.record_seconds),
        ):
            yield distribution.family(f"{PREFIX}{name}_seconds", documentation)
        yield self.claim_rows.family(f"{PREFIX}claim_rows", "Deliveries in one claim.")
        yield self.record_rows.family(f"{PREFIX}record_rows", "Results recorded together.")
        yield from self._of_worker()
        yield from self._of_queue()

    def _of_worker(self) -> Iterator[Metric]:
        yield _gauge("worker_up", "1 while a worker runs here.", int(self._worker is not None))
        if self._worker is None:
            return
        state = self._worker()
        yield _gauge("in_flight", "Requests in flight.", state.in_flight)
        yield _gauge("recorder_backlog", "Results not recorded yet.", state.recorder_backlog)
        yield _counter("connections_opened", "Connections opened.", value=state.connections_opened)
        yield _counter(
            "connections_reused",
            "Requests sent over a connection that was open already.",
            value=state.connections_reused,
        )

    def _of_queue(self) -> Iterator[Metric]:
        if self._database_up is not None:
            yield _gauge("database_up", "1 if the database answers.", int(self._database_up))
        if self._queue is None:  # absent, not stale: alerts on absence then fire
            return
        queue = self._queue
        yield _gauge(
            "oldest_due_age_seconds",
            "How long the delivery that waits longest could have been sent.",
            queue.oldest_due_age,
        )
        yield _gauge("due_deliveries", "Deliveries that are due.", queue.due)
        yield _gauge("workers_seen", "Workers seen lately, in all processes.", queue.workers)
        yield _gauges("endpoints", "Endpoints by status.", "status", queue.endpoints)
        yield _gauges("circuits", "Enabled endpoints by circuit.", "state", queue.circuits)
        yield _gauges("operations", "Operations not ended.", "status", queue.operations)
        yield _gauge(
            "operation_idle_seconds",
            "How long the operation that stands still longest has made no progress.",
            queue.operation_idle,
        )


class _Collector:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics.families()


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, documentation, value=value)


def _gauges(
    name: str, documentation: str, label: str, values: Mapping[str, float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, documentation, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _counter(
    name: str,
    documentation: str,
    label: str | None = None,
    values: Mapping[str, int] | None = None,
    *,
    value: int | None = None,
) -> CounterMetricFamily:
    if label is None:
        return CounterMetricFamily(PREFIX + name, documentation, value=value)
    family = CounterMetricFamily(PREFIX + name, documentation, labels=[label])
    for key, count in sorted((values or {}).items()):
        family.add_metric([key], count)
    return family
