"""A tenant's rate limit holds for each of its endpoints that has none of its own."""

from __future__ import annotations

from delivery_service.store import tenants
from tests.support.engine import Engined
from tests.support.ports import free_port
from tests.support.receiver import Receiver


def _count(receiver: Receiver, path: str) -> int:
    return len([request for request in receiver.requests if request.path == path])


async def test_a_tenant_s_rate_limit(engined: Engined, receiver: Receiver) -> None:
    with engined.begin() as connection:
        tenants.ensure(connection, "acme", {"rate_limit": 2}, engined.now)
    engined.endpoint(receiver.url("/own"), rate_limit=1000.0)
    engined.endpoint(receiver.url("/default"))
    for _ in range(20):
        engined.publish()
    await engined.work()
    first = _count(receiver, "/default")
    assert _count(receiver, "/own") == 20
    assert 1 <= first <= 4
    engined.advance(seconds=10)
    await engined.work()
    assert first < _count(receiver, "/default") <= 24
    with engined.begin() as connection:
        tenants.change(connection, "acme", {"rate_limit": None}, engined.now)
    engined.advance(seconds=60)
    await engined.work()
    assert _count(receiver, "/default") == 20


async def test_the_outcome_of_the_latest_attempt_is_kept(
    engined: Engined, receiver: Receiver
) -> None:
    engined.endpoint(f"http://127.0.0.1:{free_port()}/")
    (delivery_id,) = engined.publish().delivery_ids
    assert engined.delivery(delivery_id)["last_outcome"] is None
    await engined.work()
    assert engined.delivery(delivery_id)["last_outcome"] == "connect"
    with engined.begin() as connection:
        connection.exec_driver_sql(f"UPDATE surehook_endpoints SET url = '{receiver.url('/')}'")
        connection.exec_driver_sql("UPDATE surehook_endpoints SET version = version + 1")
    engined.advance(minutes=1)
    await engined.work()
    assert engined.delivery(delivery_id)["last_outcome"] == "delivered"
