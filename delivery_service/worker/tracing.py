"""OpenTelemetry spans of attempts, linked to the trace that published the event.

A link and not a parent: an attempt may start days after the publisher's span has ended. Spans are
made when their attempt has been recorded, with the times it had; a receiver is told nothing of
them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from delivery_service.settings import SettingsError
from delivery_service.worker.attempt import Result
from wire.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.trace import Link, TracerProvider

SPAN_NAME = "surehook attempt"


class AttemptTracer:
    """Makes a span of each attempt with ``provider`` (the global one when left out).

    Raises `SettingsError` when OpenTelemetry is not installed.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import trace  # noqa: PLC0415 - an extra, needed here only
            from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
                TraceContextTextMapPropagator,
            )
        except ImportError as error:
            raise SettingsError(
                "tracing needs OpenTelemetry: pip install 'surehook[opentelemetry]'"
            ) from error
        self._trace = trace
        self._tracer = trace.get_tracer("surehook", VERSION, tracer_provider=provider)
        self._propagator = TraceContextTextMapPropagator()

    def attempt(self, result: Result, *, late: bool) -> None:
        """Make the span of an attempt that was recorded; nothing if there was no attempt."""
        outcome, row, claimed = result.outcome, result.attempt, result.claimed
        if outcome is None or row is None:
            return
        attributes: dict[str, Any] = {
            "surehook.delivery_id": claimed.delivery_id,
            "surehook.event_id": claimed.event_id,
            "surehook.event_type": claimed.event_type,
            "surehook.endpoint_id": claimed.endpoint_id,
            "surehook.tenant_id": claimed.tenant_id,
            "surehook.attempt": row["number"],
            "surehook.outcome": outcome.kind.value,
            "surehook.late": late,
            "http.request.method": "POST",
        }
        if outcome.status_code is not None:
            attributes["http.response.status_code"] = outcome.status_code
        started_at = row["started_at"]
        span = self._tracer.start_span(
            SPAN_NAME,
            context=self._trace.set_span_in_context(self._trace.INVALID_SPAN),
            kind=self._trace.SpanKind.CLIENT,
            attributes=attributes,
            links=self._links(claimed.trace_context),
            start_time=_nanoseconds(started_at.timestamp()),
        )
        if not outcome.delivered:
            span.set_status(self._trace.StatusCode.ERROR, outcome.error)
        ended_at = started_at + timedelta(seconds=outcome.duration)
        span.end(_nanoseconds(ended_at.timestamp()))

    def _links(self, trace_context: str | None) -> list[Link]:
        if not trace_context:
            return []
        # Takes any text: what is not a traceparent gives a context without a span.
        context = self._propagator.extract({"traceparent": trace_context})
        published = self._trace.get_current_span(context).get_span_context()
        return [self._trace.Link(published)] if published.is_valid else []


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000) * 1000
