"""Every option of the service, documented where it is defined.

Values come from, in this order: arguments, environment variables (``SUREHOOK_`` + the name in
capitals), a TOML file (``surehook.toml``, or the one that ``SUREHOOK_CONFIG`` names), defaults.
`docs/reference/settings.md` is generated from this package.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from delivery_service.settings.network import NetworkSettings, split
from wire.errors import SurehookError
from wire.profiles import PROFILES
from wire.schedule import RetrySchedule

CONFIG_VARIABLE = "SUREHOOK_CONFIG"
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
SETTLE_MARGIN = timedelta(seconds=5)
"""What a lease must outlast an attempt by, so that its outcome can still be recorded."""


def _seconds(value: Any) -> Any:
    # pydantic reads "5" in a variable as seconds, but not "0.5".
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        raise ValueError("must be a number of seconds, such as 0.5 or 90") from None


Duration = Annotated[timedelta, BeforeValidator(_seconds)]
Seconds = Annotated[Duration, Field(gt=timedelta())]


class SettingsError(SurehookError):
    """A setting is missing or can't be used; the message names it."""


class Settings(NetworkSettings):
    """The service's settings. Durations are given in seconds."""

    model_config = SettingsConfigDict(
        env_prefix="SUREHOOK_", extra="forbid", frozen=True, validate_default=True
    )

    database_url: str = Field(
        "sqlite:///surehook.sqlite3",
        description="Where everything is stored: `postgresql://user:password@host/name`, or"
        " `sqlite:///path` for the embedded default.",
    )
    database_schema: str | None = Field(
        None, description="PostgreSQL schema that holds the tables. Default: the search path's."
    )
    database_pool_size: int = Field(
        10, ge=2, le=200, description="Most database connections of one process."
    )
    database_timeout: Seconds = Field(
        timedelta(seconds=30),
        description="Time of one statement on PostgreSQL. A connection that died without a word"
        " is left after it, and one that was idle after 5 s.",
    )
    pgbouncer: bool = Field(
        False,
        description="Set when PostgreSQL is behind PgBouncer in transaction mode: prepared"
        " statements are then not kept between transactions.",
    )
    encryption_keys: Annotated[list[SecretStr], NoDecode] = Field(
        default_factory=list,
        description="Fernet keys (`surehook keys encryption` makes one) for secrets at rest,"
        " separated by commas: the first encrypts, all decrypt. Required with PostgreSQL; with"
        " SQLite a key file beside the database is created when this is empty.",
    )

    host: str = Field("127.0.0.1", description="Address that the API listens on.")
    port: int = Field(8080, ge=0, le=65535, description="Port that the API listens on.")
    max_body_bytes: int = Field(
        256 * 1024, ge=1024, le=16 * 2**20, description="Largest body of an event, in bytes."
    )
    require_ownership_proof: bool = Field(
        False,
        description="Whether an endpoint stays disabled, as `unverified`, until its receiver has"
        " answered a signed challenge, and again when its URL changes. Endpoints that are enabled"
        " when this is switched on stay so.",
    )
    secret_overlap: Seconds = Field(
        timedelta(hours=24),
        description="How long a rotated-out secret goes on signing beside its successor.",
    )
    key_rate_limit: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Requests that an API key may make within `key_rate_window`, through all"
        " processes together; unset, there is no limit. A key can have its own.",
    )
    key_rate_window: Seconds = Field(
        timedelta(minutes=1),
        le=timedelta(days=1),
        description="The sliding window of the rate limit of API keys.",
    )
    metrics_public: bool = Field(
        False,
        description="Whether the API's `/metrics` needs no API key; otherwise it needs one of scope"
        " `admin` or `read`.",
    )
    ready_due_age: Seconds = Field(
        timedelta(minutes=5),
        description="`/readyz` turns red when the oldest due delivery has waited longer.",
    )
    ready_worker_age: Seconds = Field(
        timedelta(minutes=1), description="`/readyz` turns red when no worker was seen for so long."
    )

    schedule: str = Field(
        "default",
        description="Delays between attempts: a preset (`default`, `standard-webhooks`, `fast`) or"
        " a list such as `1m,5m,30m,2h,6h`. A tenant or an endpoint can have its own.",
    )
    retry_jitter: float = Field(
        0.0, ge=0, le=1, description="Largest part of a delay that is added to it at random."
    )
    retry_after_cap: Seconds = Field(
        timedelta(hours=1), description="Longest wait that a receiver's `Retry-After` can cause."
    )
    profiles: Annotated[list[str], NoDecode] = Field(
        ["standard"],
        description=f"Header profiles of every request, separated by commas: {', '.join(PROFILES)}."
        " An endpoint can have its own.",
    )
    header_prefix: str = Field(
        "X-Webhook-",
        pattern=r"^[A-Za-z][A-Za-z0-9-]{0,39}-$",
        description="Prefix of the headers that name ids and the attempt; brand it `X-Acme-`.",
    )
    replay_window: Seconds = Field(
        timedelta(days=3),
        description="How long after publishing an event may be redelivered, published in"
        " `/.well-known/webhooks` so that receivers keep their dedup memory longer.",
    )
    tolerance: Seconds = Field(
        timedelta(minutes=5), description="Timestamp tolerance that receivers are told to allow."
    )

    concurrency: int = Field(
        400, ge=1, le=10_000, description="Most requests in flight in one worker process."
    )
    endpoint_concurrency: int = Field(
        50,
        ge=1,
        le=10_000,
        description="Most requests in flight to one endpoint from one worker process, unless the"
        " endpoint has its own limit.",
    )
    attempt_timeout: Seconds = Field(
        timedelta(seconds=15),
        description="Total time of an attempt: DNS, connect, TLS, request and answer.",
    )
    lease: Seconds = Field(
        timedelta(seconds=60),
        description="How long a worker's claim lasts; must exceed `attempt_timeout` by 5 s or"
        " more. After a crash, deliveries in flight are sent again when it ends.",
    )
    poll_interval: Seconds = Field(
        timedelta(seconds=1), description="How often an idle worker looks for due deliveries."
    )
    notify: bool = Field(
        True,
        description="Whether API processes tell workers in other processes at once that something"
        " is due (PostgreSQL's NOTIFY, in transactions of its own). Each worker process has one"
        " more connection for it. Without effect on SQLite and with `pgbouncer`.",
    )
    shutdown_grace: Seconds = Field(
        timedelta(seconds=20), description="How long a stopping worker waits for what is in flight."
    )
    response_cap: int = Field(
        16 * 1024, ge=0, le=2**20, description="Bytes kept of a receiver's answer."
    )

    circuit_open_after: int = Field(
        10, ge=1, description="Endpoint-level failures in a row that open an endpoint's circuit."
    )
    circuit_first_pause: Seconds = Field(
        timedelta(seconds=30), description="First pause of an open circuit; doubles each time."
    )
    circuit_longest_pause: Seconds = Field(
        timedelta(minutes=30), description="Longest pause of an open circuit."
    )
    disable_after: Duration = Field(
        timedelta(days=5),
        ge=timedelta(),
        description="Failing for so long without a success disables an endpoint; 0 never does.",
    )

    bulk_rate: int = Field(
        200,
        ge=1,
        le=100_000,
        description="Deliveries a second that one bulk operation (recover, replay, broadcast) makes"
        " due, so that live traffic keeps its pace; down to a tenth of it while workers can't keep"
        " up.",
    )

    retention: Duration = Field(
        timedelta(days=90),
        ge=timedelta(),
        description="How long an event is kept with its deliveries and attempts, counted from"
        " the end of the last of its deliveries, and an operation, counted from its own; 0 keeps"
        " everything. What has not ended is never removed.",
    )
    attempt_retention: Duration = Field(
        timedelta(days=30),
        ge=timedelta(),
        description="How long the attempts of ended deliveries are kept, the bulk of what is"
        " stored; 0 keeps them as long as their event.",
    )
    idempotency_key_ttl: Duration = Field(
        timedelta(days=7),
        ge=timedelta(hours=1),
        description="How long an idempotency key is remembered; used again later, it publishes a"
        " new event, or starts a new operation. Must exceed the time in which callers repeat a"
        " call.",
    )

    metrics_host: str = Field(
        "127.0.0.1", description="Address of each process's `/metrics` and `/healthz`."
    )
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of a process's `/metrics` and `/healthz`, apart from the API's; unset,"
        " there are none. Of several worker processes each has its own: this port, the next, and so"
        " on.",
    )
    tracing: bool = Field(
        False,
        description="Whether workers make an OpenTelemetry span of each attempt, linked to the"
        " trace that published the event. Needs the extra `opentelemetry`.",
    )

    log_format: Literal["json", "console"] = Field(
        "json", description="`json` writes one object a line, `console` is for reading."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe messages that are logged."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = TomlConfigSettingsSource(settings_cls, config_file())
        return init_settings, env_settings, file

    @field_validator("encryption_keys", "profiles", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return split(value)

    @field_validator("schedule")
    @classmethod
    def _schedule(cls, value: str) -> str:
        RetrySchedule.parse(value)
        return value

    @field_validator("profiles")
    @classmethod
    def _profiles(cls, value: list[str]) -> list[str]:
        unknown = [name for name in value if name not in PROFILES]
        if unknown or not value:
            raise ValueError(f"unknown profile {unknown}; choose from {', '.join(PROFILES)}")
        return value

    @field_validator("database_url")
    @classmethod
    def _database_url(cls, value: str) -> str:
        try:
            backend = make_url(value).get_backend_name()
        except ArgumentError as error:
            raise ValueError("not a database URL such as postgresql://host/name") from error
        if backend not in DRIVERS:
            raise ValueError(f"{backend} is not supported; use postgresql:// or sqlite:///")
        return value

    @model_validator(mode="after")
    def _lease_outlasts_attempt(self) -> Self:
        if self.lease < self.attempt_timeout + SETTLE_MARGIN:
            raise ValueError(
                f"lease ({self.lease.total_seconds():g} s) must exceed attempt_timeout"
                f" ({self.attempt_timeout.total_seconds():g} s) by at least"
                f" {SETTLE_MARGIN.total_seconds():g} s"
            )
        return self

    @model_validator(mode="after")
    def _schema_needs_postgresql(self) -> Self:
        if self.database_schema is not None and self.is_sqlite:
            raise ValueError("database_schema: SQLite has no schemas; leave it unset")
        return self

    @property
    def async_database_url(self) -> URL:
        """The database URL with the async driver that the service uses."""
        url = make_url(self.database_url)
        return url.set(drivername=DRIVERS[url.get_backend_name()])

    @property
    def is_sqlite(self) -> bool:
        """Whether the embedded default is in use."""
        return make_url(self.database_url).get_backend_name() == "sqlite"


def config_file() -> Path:
    """The TOML file that settings are read from, whether it exists or not."""
    return Path(os.environ.get(CONFIG_VARIABLE, "surehook.toml"))
