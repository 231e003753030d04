"""Reading a request: the cap while streaming, the parts of the URL."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest

import receiver
from receiver.errors import RequestError, TooLargeError
from receiver.request import Request, read_capped, read_capped_async


class Endless:
    """A stream that never ends and counts what was taken from it."""

    def __init__(self) -> None:
        self.taken = 0

    def read(self, size: int, /) -> bytes:
        self.taken += size
        return b"x" * size

    async def receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": self.read(65_536), "more_body": True}


def test_g10_an_endless_stream_is_read_no_further_than_the_limit() -> None:
    stream = Endless()
    with pytest.raises(TooLargeError):
        read_capped(stream, 1000)
    assert stream.taken == 1001


async def test_g10_an_endless_asgi_body_is_read_no_further_than_the_limit() -> None:
    stream = Endless()
    with pytest.raises(TooLargeError):
        await read_capped_async(stream.receive, 100_000)
    assert stream.taken == 2 * 65_536


@pytest.mark.parametrize("length", ["1001", 1001, "9" * 5000, "00000000000000000001001"])
async def test_g10_an_announced_length_over_the_limit_is_not_read_at_all(length: Any) -> None:
    stream = Endless()
    with pytest.raises(TooLargeError):
        read_capped(stream, 1000, length)
    with pytest.raises(TooLargeError):
        await read_capped_async(stream.receive, 1000, length)
    assert stream.taken == 0


@pytest.mark.parametrize("size", [0, 1, 999, 1000])
@pytest.mark.parametrize("length", [None, "", "x", "-1"])
async def test_g10_up_to_the_limit_everything_is_read(size: int, length: str | None) -> None:
    body = b"y" * size
    events: Iterator[dict[str, Any]] = iter(
        [
            {"type": "http.request", "body": body[:300], "more_body": True},
            {"type": "http.request", "body": body[300:]},
        ]
    )

    async def receive() -> dict[str, Any]:
        return next(events)

    assert read_capped(io.BytesIO(body), 1000, length) == body
    assert await read_capped_async(receive, 1000, length) == body


async def test_a_client_that_goes_away_is_the_one_error() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(RequestError) as caught:
        await read_capped_async(receive, 1000)
    assert caught.value.reason == "disconnected"


@pytest.mark.parametrize(
    ("url", "path", "query"),
    [
        ("https://h.example/a/b?c=d#e", "/a/b", "c=d"),
        ("https://h.example", "", ""),
        ("https://h.example?x=/y", "", "x=/y"),
        ("/a/b?c=%20", "/a/b", "c=%20"),
        ("", "", ""),
        ("https://h.example/a%2Fb/?", "/a%2Fb/", ""),
    ],
)
def test_path_and_query_stay_raw(url: str, path: str, query: str) -> None:
    request = Request({}, b"", url=url)
    assert (request.path, request.query) == (path, query)


def test_the_public_surface_is_small() -> None:
    assert len(receiver.__all__) <= 10
    assert {"Verifier", "Gate"} <= set(receiver.__all__)
    assert all(hasattr(receiver, name) for name in receiver.__all__)
