"""The demo's story: what is started, done, watched and judged."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import typer

from delivery_service.cli.demo import receiver, service
from delivery_service.cli.demo.screen import Screen, Tracked
from delivery_service.cli.demo.shop import TENANT, CardRefused, Shop
from delivery_service.cli.demo.verdict import EXPECTED, Story, verdict
from delivery_service.cli.failing import CommandError
from sender.publish import Published

STORY_SECONDS = 60.0
"""When deliveries that did not end are given up."""

LOOK_SECONDS = 0.1
PAYING, REFUSED = "Ada", "Bob"


def play(*, keep: bool) -> bool:
    """Play the story, and return whether everything happened as it must.

    ``keep``: leave everything running until Ctrl+C.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="surehook-demo-")))
        holds = _Demo(stack, folder).run()
        if keep:
            typer.echo("Everything is still running; Ctrl+C stops it.")
            _wait_for_interrupt()
    return holds


def _wait_for_interrupt() -> None:
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        typer.echo("Stopping.")


class _Demo:
    """The parts, started one after the other, and stopped by ``stack``."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._screen = screen = Screen()
        database_url = f"sqlite:///{folder / 'surehook.sqlite3'}"
        screen.say("Starting the service on SQLite, and a receiver …")
        self._receiver_url, self._books = stack.enter_context(
            receiver.running(hang_seconds=4 * service.ATTEMPT_TIMEOUT)
        )
        self._url = stack.enter_context(service.running(folder, database_url))
        self._shop = Shop(database_url)
        stack.callback(self._shop.close)
        self._key = self._shop.api_key()
        self._api = stack.enter_context(service.Api(self._url, self._key))
        screen.say(f"  service  {self._url}")
        screen.say(f"  receiver {self._receiver_url}")
        screen.say(f"  database {database_url}")
        screen.say(f"  API key  {self._key}")

    def run(self) -> bool:
        """Tell the story; return whether all of it is as it must be."""
        screen = self._screen
        paths = {}
        for path in EXPECTED:
            endpoint = self._api.add_endpoint(TENANT, self._receiver_url + path)
            self._books.secrets[path] = endpoint["secret"]
            paths[endpoint["id"]] = path
        published = self._sell()
        tracked = self._watch(paths)
        screen.log(tracked)
        story = Story(
            published=published,
            rolled_back=REFUSED,
            customers=self._shop.customers(),
            events=self._api.events(TENANT),
            deliveries={each.path: each.delivery for each in tracked},
            attempts={each.path: each.attempts for each in tracked},
            books=self._books,
        )
        claims = verdict(story)
        screen.claims(claims)
        return all(holds for _, holds in claims)

    def _sell(self) -> Published:
        published = self._shop.sell(PAYING, 4200)
        self._screen.say(
            f"Committed: an invoice for {PAYING}, and with it {published.event_id} for"
            f" {len(published.delivery_ids)} endpoints."
        )
        try:
            self._shop.sell(REFUSED, 1300, refused=True)
        except CardRefused as error:
            self._screen.say(f"Rolled back: an invoice for {REFUSED} and its event ({error}).")
        else:
            raise CommandError("the second sale was not rolled back")
        return published

    def _watch(self, paths: dict[str, str]) -> list[Tracked]:
        """Show the deliveries until all have ended."""
        deadline = time.monotonic() + STORY_SECONDS
        with self._screen.live() as show:
            while True:
                tracked = self._look(paths, show)
                done = all(each.delivery["status"] != "pending" for each in tracked)
                if (tracked and done) or time.monotonic() > deadline:
                    return tracked
                time.sleep(LOOK_SECONDS)

    def _look(self, paths: dict[str, str], show: Callable[[list[Tracked]], None]) -> list[Tracked]:
        tracked = [
            Tracked(paths[delivery["endpoint"]], delivery, self._api.attempts(delivery["id"]))
            for delivery in self._api.deliveries(TENANT)
        ]
        show(tracked)
        return tracked
