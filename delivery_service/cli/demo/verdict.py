"""What must have happened, and whether it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from delivery_service.cli.demo.receiver import FLAKY, STEADY, Books
from sender.publish import Published

EXPECTED: dict[str, list[tuple[int, str, int | None]]] = {
    FLAKY: [(1, "status", 500), (2, "timeout", None), (3, "delivered", 204)],
    STEADY: [(1, "delivered", 204)],
}
"""Number, kind and status code of each attempt, by the path of the endpoint."""


@dataclass(frozen=True)
class Story:
    """Everything that was observed. ``attempts`` are the admin API's, by path."""

    published: Published
    rolled_back: str
    customers: list[str]
    events: list[dict[str, Any]]
    deliveries: dict[str, dict[str, Any]]
    attempts: dict[str, list[dict[str, Any]]]
    books: Books


def verdict(story: Story) -> list[tuple[str, bool]]:
    """Return each claim of the demo, and whether it holds."""
    books, arrivals = story.books, story.books.arrivals
    ids = set(story.published.delivery_ids)
    of_path = {path: [a for a in arrivals if a.path == path] for path in EXPECTED}
    return [
        (
            "every expected attempt happened, and no other",
            {path: _summary(made) for path, made in story.attempts.items()} == EXPECTED,
        ),
        (
            "every delivery ended as delivered",
            len(story.deliveries) == len(EXPECTED)
            and all(d["status"] == "delivered" for d in story.deliveries.values()),
        ),
        (
            "the receiver got each attempt once, numbered, under one id and with the same bytes",
            all(_consistent(of_path[path], len(EXPECTED[path])) for path in EXPECTED)
            and len(arrivals) == sum(map(len, EXPECTED.values())),
        ),
        (
            "the receiver verified every signature",
            bool(arrivals) and all(arrival.verified for arrival in arrivals),
        ),
        (
            "the receiver acted exactly once on each delivery id",
            dict(books.effects) == dict.fromkeys(ids, 1) and len(ids) == len(EXPECTED),
        ),
        (
            "the sale that was rolled back left no invoice and no event, and was never sent",
            story.rolled_back not in story.customers
            and [event["id"] for event in story.events] == [story.published.event_id]
            and not any(story.rolled_back.encode() in arrival.body for arrival in arrivals),
        ),
    ]


def _summary(attempts: list[dict[str, Any]]) -> list[tuple[int, str, int | None]]:
    return [(made["number"], made["kind"], made["status_code"]) for made in attempts]


def _consistent(arrivals: list[Any], count: int) -> bool:
    return (
        [arrival.attempt for arrival in arrivals] == [str(n + 1) for n in range(count)]
        and len({arrival.delivery_id for arrival in arrivals}) == 1
        and len({arrival.body for arrival in arrivals}) == 1
    )
