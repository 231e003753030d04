"""Keyset pages: every row once, the last page right, cursors that can't be misused."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Any

import pytest
from sqlalchemy import select

from sender import NewEvent, publish_many, tables
from tests.service.caller import Api
from tests.service.conftest import START
from wire import ids
from wire.envelope import format_timestamp

PREPARE = {
    "/v1/endpoints": lambda api, n: api.endpoint(description=str(n)),
    "/v1/events": lambda api, n: api.publish(data=str(n)),
    "/v1/deliveries": lambda api, n: api.publish(data=str(n)),
    "/v1/tenants": lambda api, n: api.ok("POST", "/v1/tenants", json={"id": f"t{n}"}),
    "/v1/keys": lambda api, n: api.ok("POST", "/v1/keys", json={"name": "k", "scope": "read"}),
}


async def _pages(api: Api, path: str, limit: int, meanwhile: bool = False) -> list[list[str]]:
    pages, cursor = [], None
    while True:
        params = {"limit": limit, **({"cursor": cursor} if cursor else {})}
        page = await api.ok("GET", path, params=params)
        pages.append([item["id"] for item in page["items"]])
        cursor = page["next_cursor"]
        if cursor is None:
            return pages
        if meanwhile:
            await PREPARE[path](api, 1000 + len(pages))


@pytest.mark.parametrize("path", PREPARE)
@pytest.mark.parametrize(("rows", "limit"), [(0, 5), (4, 5), (5, 5), (6, 5), (10, 5), (11, 5)])
async def test_f33_the_last_page_and_exact_multiples(
    sqlite_api: Api, path: str, rows: int, limit: int
) -> None:
    api = sqlite_api
    if path == "/v1/deliveries":
        await api.endpoint()
    present = len((await api.ok("GET", path))["items"])
    for number in range(rows):
        await PREPARE[path](api, number)
    total = rows + present
    pages = await _pages(api, path, limit)
    assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1)
    assert len(pages) == max(1, -(-total // limit))
    seen = [item for page in pages for item in page]
    assert len(set(seen)) == len(seen) == total


@pytest.mark.parametrize("path", ["/v1/events", "/v1/deliveries", "/v1/endpoints"])
async def test_each_row_once_while_rows_of_the_same_moment_are_added(api: Api, path: str) -> None:
    if path == "/v1/deliveries":
        await api.endpoint()
    for number in range(12):
        await PREPARE[path](api, number)
    before = [item["id"] for item in (await api.ok("GET", path))["items"]]
    pages = await _pages(api, path, 3, meanwhile=True)
    assert [item for page in pages for item in page] == before


async def _publish_at_one_moment(api: Api, count: int) -> None:
    """Publish as another process would in the same millisecond: ids begin anywhere in it."""
    ids._generator.reset()
    new = [NewEvent(tenant="acme", type="invoice.paid", data=number) for number in range(count)]
    await api.database.write(publish_many, new, now=START)


@pytest.mark.parametrize("path", ["/v1/events", "/v1/deliveries"])
async def test_each_of_5000_rows_of_one_moment_once_while_others_are_inserted(
    api: Api, path: str
) -> None:
    await api.endpoint()
    for _ in range(20):
        await _publish_at_one_moment(api, 250)
    table = tables.events if path == "/v1/events" else tables.deliveries
    before = set(await api.database.read(lambda c: c.scalars(select(table.c.id)).all()))
    assert len(before) == 5000
    seen: list[str] = []
    moments: set[str] = set()
    params: dict[str, Any] = {"limit": 200}
    while params.get("cursor", "") is not None:
        page = await api.ok("GET", path, params=params)
        seen += [item["id"] for item in page["items"]]
        moments |= {item["created_at"] for item in page["items"]}
        params["cursor"] = page["next_cursor"]
        # Some of these come before what has been read, and some after it.
        await _publish_at_one_moment(api, 40)
    assert moments == {format_timestamp(START)}
    assert len(seen) == len(set(seen))
    assert before <= set(seen)
    assert seen == sorted(seen, reverse=True)
    assert set(seen) > before, "none of those that were inserted came after what had been read"


async def test_f33_one_more_than_a_full_page(api: Api) -> None:
    for number in range(101):
        await api.publish(data=str(number))
    pages = await _pages(api, "/v1/events", 100)
    assert [len(page) for page in pages] == [100, 1]


def _cursor(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "cursor",
    [
        _cursor("ep_01M8MZ1BD68JM5KXSYHDE9A657"),
        _cursor("tenant:acme"),
        _cursor("1:att_01M8MZ1BD68JM5KXSYHDE9A657"),
        _cursor("evt_01M8MZ1BD68JM5KXSYHDE9A657\0"),
        _cursor("evt_01m8mz1bd68jm5kxsyhde9a657"),
        _cursor("' OR 1=1 --"),
        _cursor("evt_01M8MZ1BD68JM5KXSYHDE9A657") + "\n",
        "!" + _cursor("evt_01M8MZ1BD68JM5KXSYHDE9A657"),
        _cursor("evt_01M8MZ1BD68JM5KXSYHDE9A657")[:-1],
    ],
)
async def test_a_cursor_of_another_list_or_none_at_all_is_refused(
    sqlite_api: Api, cursor: str
) -> None:
    problem = await sqlite_api.problem(422, "GET", "/v1/events", params={"cursor": cursor})
    assert problem["errors"][0]["pointer"] == "#/cursor"
