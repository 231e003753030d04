"""What is told of recorded results: one log line, the metrics, and a span of each attempt."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence

import structlog

from delivery_service.metrics import Metrics
from delivery_service.policy.outcome import Outcome, OutcomeKind
from delivery_service.policy.retry import Dead, Delivered, Retry
from delivery_service.worker.attempt import Ended, Result
from delivery_service.worker.record import Recorded
from delivery_service.worker.tracing import AttemptTracer
from wire.ids import id_time

log = structlog.get_logger(__name__)

_QUOTED = re.compile(r""":?\s*\bb['"]""")


class Observer:
    """Tells of results after they were committed. ``tracer``: None makes no spans."""

    def __init__(self, metrics: Metrics, tracer: AttemptTracer | None = None) -> None:
        self._metrics = metrics
        self._tracer = tracer

    def recorded(self, group: Sequence[Result], recorded: Recorded, seconds: float) -> None:
        """Tell of a group whose transaction took ``seconds``."""
        self._metrics.recorded(len(group), seconds)
        # Bound once for the group: each use of the module's logger would bind anew.
        bound = log.bind()
        info = bound.info if bound.is_enabled_for(logging.INFO) else None
        for result in group:
            late = result.claimed.delivery_id in recorded.late
            self._count(result, late)
            try:
                if info is not None:
                    _log(info, result, late)
                if self._tracer is not None:
                    self._tracer.attempt(result, late=late)
            except Exception as error:  # noqa: BLE001 - whoever watches must not stop the work
                log.warning("observer_failed", error=repr(error)[:300])

    def _count(self, result: Result, late: bool) -> None:
        metrics, claimed, outcome = self._metrics, result.claimed, result.outcome
        if outcome is not None and result.attempt is not None:
            waited = None
            if not claimed.attempts:
                created_at = id_time(claimed.delivery_id)
                waited = (result.attempt["started_at"] - created_at).total_seconds()
            metrics.attempt(outcome.kind.value, outcome.duration, waited)
        if late:
            metrics.late += 1
            return
        match result.step:
            case Delivered():
                metrics.ended["delivered"] += 1
            case Dead():
                metrics.ended["dead"] += 1
            case Ended(status, _):
                metrics.ended[status] += 1
            case Retry():
                pass


def _log(info: Callable[..., object], result: Result, late: bool) -> None:
    """One line of ids and facts: no URL, header, body or secret is among them."""
    claimed, outcome, step = result.claimed, result.outcome, result.step
    ids = {
        "delivery_id": claimed.delivery_id,
        "event_id": claimed.event_id,
        "event_type": claimed.event_type,
        "endpoint_id": claimed.endpoint_id,
        "tenant_id": claimed.tenant_id,
    }
    facts = {"late": True} if late else {}
    if isinstance(step, Ended):
        info("ended", **ids, status=step.status, reason=step.reason, **facts)
        return
    assert outcome is not None  # noqa: S101 - only `Ended` has none
    info(
        "attempt",
        **ids,
        attempt=claimed.attempts + 1,
        step=type(step).__name__.lower(),
        kind=outcome.kind.value,
        status_code=outcome.status_code,
        duration=round(outcome.duration, 6),
        error=_error(outcome),
        **facts,
    )


def _error(outcome: Outcome) -> str | None:
    """The error without what it quotes of the answer, which may be an echo of the request."""
    if outcome.kind is OutcomeKind.PROTOCOL and outcome.error:
        return _QUOTED.split(outcome.error, maxsplit=1)[0]
    return outcome.error
