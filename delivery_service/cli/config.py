"""`surehook config`: every setting, its value, and where that comes from."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

import typer
from pydantic import SecretStr
from pydantic_settings import EnvSettingsSource, TomlConfigSettingsSource
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from delivery_service.cli.opening import load_settings
from delivery_service.cli.output import AsJson, print_json, print_rows
from delivery_service.settings import Settings, config_file

HIDDEN = "***"
_SECRET_PARAMETERS = ("password", "sslpassword", "sslkey")


def config(
    changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that are not left at their default.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show every setting with its value and where that comes from: default, file or environment.

    Secrets are hidden. Durations are in seconds.
    """
    settings = load_settings()
    rows = [
        {"setting": name, "value": value, "origin": origin}
        for name, (value, origin) in resolved(settings).items()
        if not changed or origin != "default"
    ]
    if as_json:
        print_json(rows)
    else:
        print_rows(
            [{**row, "value": _text(row["value"])} for row in rows],
            ("setting", "value", "origin"),
            none="Every setting is left at its default.",
        )


def resolved(settings: Settings) -> dict[str, tuple[Any, str]]:
    """Return, by name, the value of each setting as it may be shown, and its origin."""
    # The sources themselves are asked, so this can't disagree with them.
    environment = EnvSettingsSource(Settings)()
    file: Mapping[str, Any] = TomlConfigSettingsSource(Settings, config_file())()
    found = {}
    for name in Settings.model_fields:
        origin = "default"
        if name in environment:
            origin = f"environment (SUREHOOK_{name.upper()})"
        elif name in file:
            origin = f"file ({config_file()})"
        found[name] = (shown(getattr(settings, name)), origin)
    return found


def shown(value: Any) -> Any:
    """A setting's value without what must not be seen: secrets, and passwords in URLs."""
    if isinstance(value, SecretStr):
        return HIDDEN
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds
    if isinstance(value, str) and "://" in value:
        return _without_password(value)
    return value


def _without_password(text: str) -> str:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        return HIDDEN
    query = {
        name: HIDDEN if name in _SECRET_PARAMETERS else value for name, value in url.query.items()
    }
    return url.set(query=query).render_as_string(hide_password=True)


def _text(value: Any) -> str:
    if value is None or value == []:
        return "(not set)"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
