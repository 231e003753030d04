"""The states of endpoints as a claim needs them, for many at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import NamedTuple

from sqlalchemy import Connection, Executable, Text, and_, func, select

from sender.rows import Columns, parameters, relation
from sender.tables import endpoints, tenants

_IDS: Columns = (("id", Text()),)


class State(NamedTuple):
    """What decides whether and how an endpoint is sent to. ``pristine``: a success would change
    nothing of its health. ``rate_limit`` is the tenant's where the endpoint has none."""

    version: int
    status: str
    disabled_reason: str | None
    deleted: bool
    circuit: str
    paused_until: datetime | None
    rate_limit: float | None
    pristine: bool


def states_of(connection: Connection, endpoint_ids: Sequence[str]) -> dict[str, State]:
    """Return the states of endpoints by id; of deleted ones too."""
    values = parameters(connection, _IDS, [{"id": id_} for id_ in endpoint_ids])
    found = connection.execute(_states(connection.dialect.name), values)
    return {row[0]: State(*row[1:]) for row in found.all()}


@cache
def _states(dialect: str) -> Executable:
    ids = relation(dialect, "ids", _IDS)
    of = endpoints.c
    of_tenant = select(tenants.c.rate_limit).where(tenants.c.id == of.tenant_id)
    pristine = and_(of.circuit == "closed", of.failures == 0, of.failing_since.is_(None))
    return select(
        of.id,
        of.version,
        of.status,
        of.disabled_reason,
        of.deleted_at.is_not(None).label("deleted"),
        of.circuit,
        of.paused_until,
        func.coalesce(of.rate_limit, of_tenant.scalar_subquery()).label("rate_limit"),
        pristine.label("pristine"),
    ).join(ids, ids.c.id == of.id)
