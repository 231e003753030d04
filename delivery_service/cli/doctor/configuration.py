"""Settings that work and are still no good idea."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from delivery_service.cli.doctor.findings import Finding, failure, ok, warning
from delivery_service.sealing import KEY_FILE_MODE, Sealer, sealer_for
from delivery_service.settings import Settings, SettingsError, config_file
from wire.schedule import RetrySchedule

PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")


def check_settings(settings: Settings) -> Iterator[Finding]:
    """Look at the settings, without the database."""
    path = config_file()
    source = f"{path} and the environment" if path.exists() else "the environment and defaults"
    yield ok("settings", f"read from {source}")
    yield from _networks(settings)
    yield from _encryption(settings)
    horizon = RetrySchedule.parse(settings.schedule).horizon
    if horizon > settings.replay_window:
        yield warning(
            "schedule",
            f"retries go on for {horizon}, longer than receivers are told to remember ids"
            f" (replay_window, {settings.replay_window}); raise replay_window",
        )
    proxies = [
        name for name in PROXY_VARIABLES if os.environ.get(name, os.environ.get(name.lower()))
    ]
    if proxies:
        yield warning(
            "proxy",
            f"{', '.join(proxies)} is set and has no effect: deliveries never go through a proxy of"
            " the environment",
        )


def _networks(settings: Settings) -> Iterator[Finding]:
    if settings.allow_private_networks:
        yield warning(
            "allow_private_networks",
            "every tenant can reach the platform's own network; in production it must be false",
        )
    else:
        yield ok("allow_private_networks", "false: loopback and private addresses are refused")
    if settings.allow_http:
        yield warning(
            "allow_http",
            "endpoints may have http:// URLs, whose events anybody on the way can read; production"
            " wants false",
        )
    if settings.is_sqlite:
        yield ok("database_url", "SQLite: one machine; PostgreSQL is for production")


def _encryption(settings: Settings) -> Iterator[Finding]:
    about = "encryption_keys"
    keys = [key.get_secret_value() for key in settings.encryption_keys]
    if keys or not settings.is_sqlite:
        try:
            Sealer(keys)
        except SettingsError as error:
            yield failure(about, str(error))
            return
        if len(keys) > 1:
            yield warning(
                about,
                f"{len(keys)} keys: `surehook secrets rotate-encryption` says when the older ones"
                " can be removed",
            )
        else:
            yield ok(about, "one key")
        return
    path = Path(f"{settings.async_database_url.database or 'surehook'}.key")
    if not path.exists():
        yield ok(about, f"none; {path} will be created")
        return
    try:
        sealer_for(settings)
    except SettingsError as error:
        yield failure(about, str(error))
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & ~KEY_FILE_MODE:
        yield failure(about, f"others can read {path} (mode {mode:o}): chmod 600 {path}")
    else:
        yield ok(about, f"key file {path}; keep a copy apart from the database")
