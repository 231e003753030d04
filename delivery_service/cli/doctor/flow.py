"""Whether deliveries flow: workers, the oldest due delivery, circuits, names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from delivery_service.cli.doctor.findings import Finding, failure, ok, warning
from delivery_service.cli.lengths import spoken
from delivery_service.cli.overview import overview
from delivery_service.net.guard import BlockedUrl, check_url
from delivery_service.net.resolver import ThreadedLookup
from delivery_service.net.rules import guard_policy
from delivery_service.settings import Settings
from delivery_service.store import endpoints

WINDOW = timedelta(minutes=5)
NAMES = 3
"""Hosts of endpoints that are looked up."""

DNS_TIMEOUT = 5.0


def check_flow(connection: Connection, settings: Settings) -> list[Finding]:
    """Look at what the workers have done lately."""
    found = overview(connection, settings, WINDOW)
    return [*_workers(found), *_due(found, settings), *_circuits(found)]


def _workers(found: Mapping[str, Any]) -> Iterator[Finding]:
    seen = found["workers"]
    alive = [worker for worker in seen if worker["alive"]]
    if not seen:
        yield failure("workers", "no worker was ever seen: start one with `surehook worker`")
    elif not alive:
        last = spoken(min(worker["seen_age"] for worker in seen))
        yield failure("workers", f"no worker was seen for {last}: start one with `surehook worker`")
    else:
        hosts = ", ".join(sorted({worker["host"] for worker in alive}))
        yield ok("workers", f"{len(alive)} alive, on {hosts}")
    for worker in seen:
        if alive and not worker["alive"]:
            yield warning(
                "workers",
                f"{worker['id']} (pid {worker['pid']} on {worker['host']}) was not seen for"
                f" {spoken(worker['seen_age'])}, and did not say that it stopped",
            )


def _due(found: Mapping[str, Any], settings: Settings) -> Iterator[Finding]:
    age = found["oldest_due_age"]
    if age is None:
        yield ok("oldest due", "nothing is due")
    elif age > settings.ready_due_age.total_seconds():
        yield failure(
            "oldest due",
            f"a delivery has waited for {spoken(age)}, longer than ready_due_age: the workers are"
            " stopped, stuck or too few (`surehook status`)",
        )
    else:
        yield ok("oldest due", f"for {spoken(age)}")


def _circuits(found: Mapping[str, Any]) -> Iterator[Finding]:
    broken = found["circuits"]["open"]
    if broken:
        yield warning("circuits", f"{broken} open: `surehook status` lists the worst endpoints")


def newest_hosts(connection: Connection, settings: Settings) -> list[str]:
    """Return a few hosts that deliveries go to."""
    policy = guard_policy(settings)
    hosts: dict[str, None] = {}
    for row in endpoints.page(connection, limit=50, status="enabled"):
        try:
            checked = check_url(row["url"], policy)
        except BlockedUrl:
            continue
        if checked.address is None:
            hosts[checked.host] = None
    return list(hosts)[:NAMES]


async def check_names(hosts: Sequence[str]) -> list[Finding]:
    """Look up names of endpoints with the system's resolver; ``localhost`` where there are none."""
    names = list(hosts) or ["localhost"]
    answers = await asyncio.gather(*(addresses_of(name) for name in names))
    faults = [answer for answer in answers if isinstance(answer, str)]
    if len(faults) == len(names):
        return [failure("DNS", f"no name resolves: {'; '.join(faults)}")]
    found = [warning("DNS", fault) for fault in faults]
    return found or [ok("DNS", f"resolves {', '.join(names)}")]


async def addresses_of(host: str) -> list[str] | str:
    """Return the addresses of a name, or say why there are none."""
    try:
        async with asyncio.timeout(DNS_TIMEOUT):
            found = await ThreadedLookup()(host)
    except TimeoutError:
        return f"{host} did not resolve within {DNS_TIMEOUT:g} s"
    except (OSError, UnicodeError) as error:
        return f"{host} does not resolve: {getattr(error, 'strerror', None) or error}"
    return list(dict.fromkeys(found)) or f"{host} has no address"
