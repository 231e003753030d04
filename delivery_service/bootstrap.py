"""The composition root: builds everything from the settings. Nothing else chooses a clock, a
driver or a transport."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from delivery_service import migrations
from delivery_service.clock import Clock, DatabaseClock
from delivery_service.jobs.housekeeping import Housekeeping
from delivery_service.jobs.operations import OperationRunner
from delivery_service.listener import listening
from delivery_service.metrics import Metrics
from delivery_service.net.authentication import Authenticator
from delivery_service.net.httpx_transport import HttpxTransport
from delivery_service.net.rules import guard_policy
from delivery_service.net.transport import AiohttpTransport, Transport
from delivery_service.policy.health import HealthRules
from delivery_service.policy.retry import RetryRules
from delivery_service.sealing import Sealer, sealer_for
from delivery_service.settings import Settings
from delivery_service.store.database import Database, open_database
from delivery_service.store.waking import Together, announcer, can_notify
from delivery_service.worker.attempt import Sending
from delivery_service.worker.loop import Worker
from delivery_service.worker.targets import Targets
from delivery_service.worker.tracing import AttemptTracer
from wire.schedule import RetrySchedule
from wire.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

    from delivery_service.api.context import Context

USER_AGENT = f"surehook/{VERSION}"


@dataclass(frozen=True)
class Service:
    """The parts of one process. They share a database, and nothing else."""

    settings: Settings
    database: Database
    sealer: Sealer
    clock: Clock
    metrics: Metrics = field(default_factory=Metrics)
    announcer: Together | None = None
    """Tells the workers of other processes that something is due, if they can hear it."""

    def worker(self, transport: Transport | None = None) -> Worker:
        """Make a worker, on aiohttp unless ``transport`` is given."""
        settings = self.settings
        sending = self.sending(transport)
        health_rules = HealthRules(
            open_after=settings.circuit_open_after,
            first_pause=settings.circuit_first_pause,
            longest_pause=settings.circuit_longest_pause,
            disable_after=settings.disable_after or None,
        )
        tracer = AttemptTracer() if settings.tracing else None
        return Worker(
            settings, self.database, self.clock, sending, health_rules, self.metrics, tracer
        )

    def sending(self, transport: Transport | None = None) -> Sending:
        """Make what attempts have in common, on aiohttp unless ``transport`` is given."""
        settings = self.settings
        transport = transport or make_transport(settings)
        return Sending(
            transport=transport,
            authenticator=Authenticator(transport, self.clock.monotonic),
            targets=Targets(settings, self.sealer),
            schedule=RetrySchedule.parse(settings.schedule),
            rules=RetryRules(settings.retry_after_cap, settings.retry_jitter),
            header_prefix=settings.header_prefix,
            user_agent=USER_AGENT,
        )

    def housekeeping(self) -> Housekeeping:
        """Make the housekeeping of this process; it runs within ``async with``. For every process
        that has a worker or an API: any number may do it at once."""
        return Housekeeping(self.settings, self.database, self.clock, self.metrics)

    @asynccontextmanager
    async def metrics_listener(self, index: int = 0) -> AsyncIterator[int | None]:
        """Serve the metrics of this process, the one of number ``index``, if the settings say so;
        gives the port."""
        settings = self.settings
        if settings.metrics_port is None:
            yield None
            return
        port = settings.metrics_port and settings.metrics_port + index
        async with listening(settings.metrics_host, port, self.metrics.render) as port:
            yield port

    def api(self, on_publish: Callable[[], None] | None = None) -> FastAPI:
        """Make the API. ``on_publish`` is called after each commit that made something due; left
        out, the workers of other processes are told."""
        from delivery_service.api.app import create_app  # noqa: PLC0415 - workers need no FastAPI

        return create_app(self.context(on_publish))

    def context(self, on_publish: Callable[[], None] | None = None) -> Context:
        """Make what the API's operations work with. ``on_publish`` is as for `api`."""
        from delivery_service.api.context import Context  # noqa: PLC0415 - workers need no FastAPI

        return Context(
            settings=self.settings,
            database=self.database,
            sealer=self.sealer,
            clock=self.clock,
            metrics=self.metrics,
            on_publish=on_publish or self.announcer,
            transport=lambda: make_transport(self.settings),
        )

    async def close(self) -> None:
        """Close the database."""
        if self.announcer is not None:
            await self.announcer.close()
        await self.database.close()


def build(
    settings: Settings, clock: Clock | None = None, database: Database | None = None
) -> Service:
    """Build the parts of one process. Nothing is connected yet, unless a ``database`` is given that
    is open already.

    Raises `SettingsError` when the encryption keys are missing or unusable.
    """
    database = database or open_database(settings)
    return Service(
        settings=settings,
        database=database,
        sealer=sealer_for(settings),
        clock=clock or DatabaseClock(),
        announcer=announcer(database) if can_notify(settings) else None,
    )


async def migrate_database(settings: Settings) -> None:
    """Create the tables, or upgrade them to head; of several processes that do so at once, one
    does it and the others wait."""
    # Without the service's limit on the time of a statement.
    database = open_database(settings, time_limit=False)
    try:
        await migrations.upgrade(database)
    finally:
        await database.close()


def operation_runner(
    settings: Settings, database: Database, *, only: str | None = None
) -> OperationRunner:
    """Make what carries out bulk operations; housekeeping has one of its own. ``only``: the one
    operation to do."""
    return OperationRunner(settings, database, DatabaseClock(), only=only)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop of a process or thread; None is asyncio's own."""
    if sys.platform == "win32":
        return None
    import uvloop  # noqa: PLC0415 - it does not exist on Windows

    return uvloop.new_event_loop


def make_transport(settings: Settings) -> Transport:
    """Return a transport for as many requests in flight as a worker has."""
    make = AiohttpTransport if settings.transport == "aiohttp" else HttpxTransport
    return make(
        guard_policy(settings),
        max_connections=settings.concurrency,
        response_cap=settings.response_cap,
        proxy=settings.egress_proxy,
    )


def configure_logging(settings: Settings) -> None:
    """Log structured lines to standard error."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(serializer=_json)
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            getattr(logging, settings.log_level.upper())
        ),
        logger_factory=lambda *_: _StandardError(),
        cache_logger_on_first_use=True,
    )


_encoder = json.JSONEncoder(separators=(",", ":"), default=repr)


def _json(event: Any, **_options: Any) -> str:
    # `json.dumps` would make an encoder for each line, a third of what a line costs.
    return _encoder.encode(event)


class _StandardError:
    """Writes lines to standard error. When nobody reads it any more, lines are lost, not work."""

    def msg(self, line: str) -> None:
        try:
            # One write for the whole line: lines of several processes don't mix.
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            pass

    debug = info = warning = error = critical = exception = msg
