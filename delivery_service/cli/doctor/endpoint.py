"""A registered endpoint: its state, its secrets, and the signature that its receiver will see."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from delivery_service.bootstrap import Service
from delivery_service.cli.doctor.findings import Finding, failure, ok, warning
from delivery_service.cli.doctor.reaching import check_reach
from delivery_service.cli.trial import Loaded, load
from delivery_service.cli.verifying import Verifying
from delivery_service.net.rules import guard_policy
from delivery_service.worker.targets import Target
from wire.ids import DELIVERY, EVENT, new_id
from wire.profiles import build_headers
from wire.secrets import Secret, SigningKey


async def check_endpoint(service: Service, endpoint_id: str) -> AsyncIterator[Finding]:
    """Look at an endpoint as a worker would see it. Raises `CommandError` when there is none."""
    loaded = await service.database.read(load, service.sending(), endpoint_id)
    for finding in _state(loaded.row):
        yield finding
    target = loaded.target
    for finding in _signature(loaded, service.settings.header_prefix):
        yield finding
    tls = target.tls if isinstance(target, Target) else None
    async for finding in check_reach(loaded.row["url"], guard_policy(service.settings), tls):
        yield finding


def _state(row: Mapping[str, Any]) -> Iterator[Finding]:
    if row["status"] != "enabled":
        yield failure(
            "status",
            f"disabled ({row['disabled_reason']}) since {row['disabled_at']:%Y-%m-%d %H:%M} UTC:"
            f" `surehook endpoint enable {row['id']}`",
        )
    elif row["circuit"] != "closed":
        yield warning(
            "circuit",
            f"{row['circuit']} after {row['failures']} failures in a row; next probe"
            f" {row['paused_until']:%Y-%m-%d %H:%M:%S} UTC",
        )
    elif row["failing_since"] is not None:
        yield warning("status", f"failing since {row['failing_since']:%Y-%m-%d %H:%M} UTC")
    else:
        yield ok("status", "enabled, circuit closed")


def _signature(loaded: Loaded, prefix: str) -> Iterator[Finding]:
    target = loaded.target
    if isinstance(target, Exception):
        yield failure("signature", f"no attempt can be signed: {target}")
        return
    body = b'{"test":true}'
    # By this machine's clock, as is the verification: what is tested is the signature.
    headers = build_headers(
        target.profiles,
        secrets=target.secrets,
        delivery_id=new_id(DELIVERY),
        event_id=new_id(EVENT),
        event_type="surehook.test",
        attempt=1,
        timestamp=int(time.time()),
        body=body,
        user_agent="surehook",
        prefix=prefix,
    )
    for profile in target.profiles:
        verifying = Verifying(profile, prefix, [_known_to_receiver(s) for s in target.secrets])
        fault = verifying.fault(list(headers.items()), body)
        if fault is None:
            number = len(target.secrets)
            yield ok("signature", f"profile {profile.name}: verifies ({number} secrets in force)")
        else:
            yield failure("signature", f"profile {profile.name}: does not verify: {fault}")


def _known_to_receiver(secret: Secret) -> Secret:
    return secret.verifying_key() if isinstance(secret, SigningKey) else secret
