"""One line of log and one span for each attempt, with ids and without secrets."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from delivery_service.bootstrap import Service, configure_logging, make_transport
from delivery_service.settings import SettingsError
from delivery_service.store import endpoints
from delivery_service.worker import observe
from delivery_service.worker.loop import Worker
from delivery_service.worker.tracing import AttemptTracer
from sender.tracing import current_trace_context
from tests.support.receiver import Answer, Receiver
from tests.support.stored import Stored, open_service, settings_for

SECRET_PARTS = ("whsec_", "hush", "s3cret", "Bearer", "token=")


class Lines:
    """What was logged."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured
        self._text = ""

    @property
    def text(self) -> str:
        self._text += self._captured.readouterr().err
        return self._text

    def of(self, event: str) -> list[dict[str, Any]]:
        entries = [json.loads(line) for line in self.text.splitlines()]
        return [entry for entry in entries if entry["event"] == event]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Lines]:
    """The log as in production, at its default level."""
    set_up(monkeypatch, "info")
    yield Lines(capsys)
    structlog.reset_defaults()


def set_up(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    configure_logging(settings_for("sqlite://", log_level=level))
    # A logger keeps the configuration it was first used with.
    monkeypatch.setattr(observe, "log", structlog.get_logger())


async def test_each_attempt_is_one_line_with_ids_and_facts(
    sqlite_url: str, receiver: Receiver, log: Lines
) -> None:
    receiver.script("/a", Answer(500))
    async with open_service(sqlite_url) as service:
        stored = Stored(service)
        endpoint_id = await stored.endpoint(receiver.url("/a"))
        published = await stored.publish()
        await stored.work()
    (line,) = log.of("attempt")
    duration = line.pop("duration")
    assert isinstance(duration, float)
    assert duration > 0
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "attempt",
        "level": "info",
        "delivery_id": published.delivery_ids[0],
        "event_id": published.event_id,
        "event_type": "invoice.paid",
        "endpoint_id": endpoint_id,
        "tenant_id": "acme",
        "attempt": 1,
        "step": "retry",
        "kind": "status",
        "status_code": 500,
        "error": "status 500",
    }


async def test_a_delivery_that_ends_without_an_attempt_says_why(
    sqlite_url: str, log: Lines
) -> None:
    async with open_service(sqlite_url) as service:
        stored = Stored(service)
        endpoint_id = await stored.endpoint()
        await stored.publish()
        change = {"status": "disabled", "disabled_reason": "operator"}
        await service.database.write(endpoints.change, endpoint_id, change)
        await stored.work()
    (line,) = log.of("ended")
    assert (line["status"], line["reason"]) == ("skipped", "endpoint_disabled")
    assert log.of("attempt") == []


@pytest.mark.parametrize(
    "url",
    [
        "http://hush:s3cret@127.0.0.1:{port}/a?token=hush#hush",
        "http://hush:s3cret@127.0.0.1:22/a?token=hush",
        "http://hush:s3cret@no-such-host.invalid/a?token=hush",
        "https://127.0.0.1:{port}/a?token=hush",
        "http://127.0.0.1:{port}/moved?token=hush",
        "http://127.0.0.1:{port}/broken?token=hush",
        "gopher://hush:s3cret@127.0.0.1/?token=hush",
        "http://[hush:s3cret@?token=hush",
    ],
)
async def test_e15_no_secret_is_logged_whatever_the_endpoint_is_like(
    sqlite_url: str, receiver: Receiver, log: Lines, url: str
) -> None:
    moved = Answer(302, headers=(("Location", "http://x.example/?token=hush"),))
    receiver.script("/moved", moved)
    receiver.script("/broken", Answer(raw=b"HTTP/1.1 \x00hush s3cret token=hush\r\n\r\n"))
    async with open_service(sqlite_url) as service:
        stored = Stored(service)
        headers = service.sealer.seal_json({"Authorization": "Bearer hush"})
        await stored.endpoint(url.format(port=receiver.port), headers=headers)
        await stored.publish(data={"password": "hush"})
        await stored.work()
    assert len(log.of("attempt")) == 1
    assert not [part for part in SECRET_PARTS if part in log.text], log.text
    assert log.of("attempt")[0]["error"]


async def test_logging_that_is_off_builds_nothing(
    sqlite_url: str, receiver: Receiver, log: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_arguments: object) -> None:
        raise AssertionError("a line was built that nobody wants")

    set_up(monkeypatch, "warning")
    monkeypatch.setattr(observe, "_log", build)
    async with open_service(sqlite_url) as service:
        stored = Stored(service)
        await stored.endpoint(receiver.url("/a"))
        await stored.publish()
        await stored.work()
    assert log.text == ""
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("I/O operation on closed file")])
async def test_a_log_that_nobody_reads_holds_up_no_delivery(
    sqlite_url: str,
    receiver: Receiver,
    log: Lines,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    class Closed(io.StringIO):
        def write(self, _text: str) -> int:
            raise error

    monkeypatch.setattr(sys, "stderr", Closed())
    async with open_service(sqlite_url) as service:
        stored = Stored(service)
        await stored.endpoint(receiver.url("/a"))
        for _ in range(2):
            await stored.publish()
            await stored.work()
        assert service.metrics.ended["delivered"] == 2


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


async def work_traced(service: Service, provider: TracerProvider) -> None:
    transport = make_transport(service.settings)
    worker: Worker = service.worker(transport)
    worker._observer._tracer = AttemptTracer(provider)
    try:
        await worker.run_until_idle()
    finally:
        await transport.close()


async def test_attempts_are_linked_to_the_trace_that_published(
    sqlite_url: str, receiver: Receiver, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    receiver.script("/a", Answer(503))
    async with open_service(sqlite_url) as service:
        stored = Stored(service)
        await stored.endpoint(receiver.url("/a?token=hush"))
        await stored.endpoint(receiver.url("/b"))
        with provider.get_tracer("platform").start_as_current_span("pay invoice") as paying:
            published = await stored.publish(trace_context=current_trace_context())
        spans.clear()
        await work_traced(service, provider)

    finished = {span.attributes["surehook.outcome"]: span for span in spans.get_finished_spans()}
    assert set(finished) == {"status", "delivered"}
    for span in finished.values():
        (link,) = span.links
        assert link.context.trace_id == paying.get_span_context().trace_id
        assert link.context.span_id == paying.get_span_context().span_id
        assert span.parent is None
        assert span.context.trace_id != link.context.trace_id
        assert span.kind is trace.SpanKind.CLIENT
        assert span.attributes["surehook.event_id"] == published.event_id
        assert span.end_time > span.start_time
        assert "hush" not in span.to_json()
    assert finished["status"].status.status_code is trace.StatusCode.ERROR
    assert finished["status"].attributes["http.response.status_code"] == 503
    assert finished["delivered"].status.status_code is trace.StatusCode.UNSET


@pytest.mark.parametrize("trace_context", [None, "nonsense", "00-" + "0" * 32 + "-1-01", "é" * 9])
async def test_an_event_without_a_usable_trace_context_has_spans_without_links(
    sqlite_url: str,
    receiver: Receiver,
    provider: TracerProvider,
    spans: InMemorySpanExporter,
    trace_context: str | None,
) -> None:
    async with open_service(sqlite_url) as service:
        stored = Stored(service)
        await stored.endpoint(receiver.url("/a"))
        await stored.publish(trace_context=trace_context)
        await work_traced(service, provider)
    span: ReadableSpan
    (span,) = spans.get_finished_spans()
    assert span.links == ()
    # A receiver is no part of anybody's trace.
    assert receiver.requests[0].header("traceparent") is None


async def test_a_tracer_that_fails_holds_up_no_delivery(
    sqlite_url: str, receiver: Receiver, log: Lines, provider: TracerProvider
) -> None:
    class Failing(SimpleSpanProcessor):
        def on_start(self, *_arguments: Any, **_options: Any) -> None:
            raise RuntimeError("no room")

    provider.add_span_processor(Failing(InMemorySpanExporter()))
    async with open_service(sqlite_url) as service:
        stored = Stored(service)
        await stored.endpoint(receiver.url("/a"))
        for _ in range(2):
            await stored.publish()
            await work_traced(service, provider)
        assert service.metrics.ended["delivered"] == 2
    (first, _second) = log.of("observer_failed")
    assert "no room" in first["error"]


def test_tracing_is_off_unless_asked_for() -> None:
    assert settings_for("sqlite://").tracing is False


async def test_tracing_without_opentelemetry_names_the_extra(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.setitem(sys.modules, name, None)
    async with open_service(sqlite_url, tracing=True) as service:
        with pytest.raises(SettingsError, match=r"tracing.*surehook\[opentelemetry\]"):
            service.worker()
    assert current_trace_context() is None


def test_there_is_no_trace_context_outside_a_span() -> None:
    token = otel_context.attach(otel_context.Context())
    try:
        assert current_trace_context() is None
    finally:
        otel_context.detach(token)
