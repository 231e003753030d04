"""The composition root: builds everything from the settings. Nothing else chooses a clock, a
driver or a transport."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from delivery_service.clock import Clock, DatabaseClock
from delivery_service.net.rules import guard_policy
from delivery_service.net.transport import AiohttpTransport, Transport
from delivery_service.policy.health import HealthRules
from delivery_service.policy.retry import RetryRules
from delivery_service.sealing import Sealer, sealer_for
from delivery_service.settings import Settings
from delivery_service.store.database import Database, open_database
from delivery_service.worker.attempt import Sending
from delivery_service.worker.loop import Worker
from delivery_service.worker.targets import Targets
from wire.schedule import RetrySchedule
from wire.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

USER_AGENT = f"surehook/{VERSION}"


@dataclass(frozen=True)
class Service:
    """The parts of one process. They share a database, and nothing else."""

    settings: Settings
    database: Database
    sealer: Sealer
    clock: Clock

    def worker(self, transport: Transport | None = None) -> Worker:
        """Make a worker, on aiohttp unless ``transport`` is given."""
        settings = self.settings
        sending = Sending(
            transport=transport or make_transport(settings),
            targets=Targets(settings, self.sealer),
            schedule=RetrySchedule.parse(settings.schedule),
            rules=RetryRules(settings.retry_after_cap, settings.retry_jitter),
            header_prefix=settings.header_prefix,
            user_agent=USER_AGENT,
        )
        health_rules = HealthRules(
            open_after=settings.circuit_open_after,
            first_pause=settings.circuit_first_pause,
            longest_pause=settings.circuit_longest_pause,
            disable_after=settings.disable_after or None,
        )
        return Worker(settings, self.database, self.clock, sending, health_rules)

    def api(self, on_publish: Callable[[], None] | None = None) -> FastAPI:
        """Make the API. ``on_publish`` is called after each publish has been committed."""
        from delivery_service.api.app import create_app  # noqa: PLC0415 - workers need no FastAPI

        return create_app(
            settings=self.settings,
            database=self.database,
            sealer=self.sealer,
            clock=self.clock,
            on_publish=on_publish,
        )

    async def close(self) -> None:
        """Close the database."""
        await self.database.close()


def build(settings: Settings, clock: Clock | None = None) -> Service:
    """Build the parts of one process. Nothing is connected yet.

    Raises `SettingsError` when the encryption keys are missing or unusable.
    """
    return Service(
        settings=settings,
        database=open_database(settings),
        sealer=sealer_for(settings),
        clock=clock or DatabaseClock(),
    )


def make_transport(settings: Settings) -> Transport:
    """The transport of a worker."""
    return AiohttpTransport(
        guard_policy(settings),
        max_connections=settings.concurrency,
        response_cap=settings.response_cap,
    )


def configure_logging(settings: Settings) -> None:
    """Log structured lines to standard error."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
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
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
