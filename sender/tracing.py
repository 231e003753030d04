"""The current OpenTelemetry trace, in the form that an event carries it."""

from __future__ import annotations


def current_trace_context() -> str | None:
    """Return the W3C ``traceparent`` of the current span, or None.

    Pass it to `publish` and the service links its spans of the event's attempts to your trace::

        publish(session, …, trace_context=current_trace_context())

    None when there is no valid current span, and when OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 - an extra
            TraceContextTextMapPropagator,
        )
    except ImportError:
        return None
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


__all__ = ["current_trace_context"]
