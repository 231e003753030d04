"""The receiver of `surehook listen`."""

from __future__ import annotations

import json
import logging
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import typer
from aiohttp import web

from delivery_service.cli.failing import CommandError
from delivery_service.cli.output import console, plain, print_fields
from delivery_service.cli.stopping import until_stopped
from delivery_service.cli.verifying import Verifying

MOST_SEEN = 10_000
"""Delivery ids remembered, to tell repeats."""

MOST_BODY = 16 * 2**20
"""Bytes of a body, as much as the service can be set to send."""

MOST_SHOWN = 4_000
"""Characters of a body that are printed."""


async def serve(listener: Listener, host: str, port: int) -> None:
    """Receive until SIGTERM or SIGINT. Raises `CommandError` when it can't listen there."""
    app = web.Application(client_max_size=MOST_BODY)
    app.router.add_route("*", "/{path:.*}", listener.receive)
    runner = web.AppRunner(app, access_log=None, logger=_one_line_log(), shutdown_timeout=2)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            reason = error.strerror or str(error)
            raise CommandError(
                f"host, port: can't listen on {host} port {port}: {reason}"
            ) from None
        bound = runner.addresses[0][1]
        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"Listening on http://{shown}:{bound}/ (any path)", err=True)
        await until_stopped()
    finally:
        await runner.cleanup()
    typer.echo(f"{listener.count:,} requests, {len(listener.seen):,} deliveries.", err=True)


def _one_line_log() -> logging.Logger:
    """A log that tells a broken request in one line: aiohttp would print a traceback for it."""
    log = logging.Logger("surehook.listen")
    log.addHandler(_OneLine())
    return log


class _OneLine(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        fault = record.exc_info[1] if record.exc_info else None
        text = record.getMessage() if fault is None else f"{record.getMessage()}: {fault!r}"
        typer.echo(plain(text), err=True)


@dataclass
class Listener:
    """Judges and prints requests. ``seen`` counts them by delivery id, the newest last."""

    verifying: Verifying
    status: int
    as_json: bool = False
    count: int = 0
    seen: OrderedDict[str, int] = field(default_factory=OrderedDict)

    async def receive(self, request: web.Request) -> web.Response:
        """Answer one request with what it deserves."""
        body = await request.read()
        self.count += 1
        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in request.raw_headers
        ]
        fault = self.verifying.fault(headers, body)
        named = self.verifying.named(headers)
        refused = fault is not None and self.verifying.checks
        status = 401 if refused else self.status
        repeat = 0 if refused else self._repeat(named.get("id"))
        self._print(request, named, body, fault, status, repeat)
        return web.Response(status=status)

    def _repeat(self, delivery_id: str | None) -> int:
        """Return how often this delivery came before."""
        if delivery_id is None:
            return 0
        before = self.seen.pop(delivery_id, 0)
        self.seen[delivery_id] = before + 1
        if len(self.seen) > MOST_SEEN:
            self.seen.popitem(last=False)
        return before

    def _print(
        self,
        request: web.Request,
        named: Mapping[str, str],
        body: bytes,
        fault: str | None,
        status: int,
        repeat: int,
    ) -> None:
        shown: dict[str, Any] = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request": _printable(f"{request.method} {request.raw_path}"),
            "verified": fault is None,
            "fault": fault,
            "answer": status,
            "repeat": repeat,
            **{name: _printable(value) for name, value in named.items()},
            "content_type": _printable(request.content_type),
            "body": body.decode(errors="replace"),
        }
        if self.as_json:
            typer.echo(json.dumps(shown, ensure_ascii=False))
        else:
            _print_for_people(shown, self.verifying.checks)
        sys.stdout.flush()


def _printable(text: str) -> str:
    # aiohttp keeps bytes that are no UTF-8 as lone surrogates, which no terminal takes.
    return text.encode(errors="surrogateescape").decode(errors="replace")


_LINES: Sequence[str] = ("id", "event_type", "event_id", "attempt", "timestamp")


def _print_for_people(shown: Mapping[str, Any], checks: bool) -> None:
    verdict, style = "verified", "green"
    if shown["fault"] is not None:
        verdict = f"NOT VERIFIED: {shown['fault']}"
        style = "red" if checks else "yellow"
    if shown["repeat"]:
        verdict += f" (repeat: came {shown['repeat']}x before, act on it once)"
    out = console()
    out.print(
        plain(f"{shown['at']}  {shown['request']}  {verdict}, answered {shown['answer']}"),
        style=style,
        soft_wrap=True,
    )
    print_fields((name, shown[name]) for name in _LINES if name in shown)
    if not shown["repeat"]:
        for line in _pretty(shown["body"]).splitlines():
            typer.echo(f"  {plain(line)}")
    typer.echo()


def _pretty(body: str) -> str:
    try:
        text = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = body
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}… ({len(body):,} characters)"
