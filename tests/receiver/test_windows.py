"""Memories outlive what the sender can still repeat."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from receiver.contract import fetch_contract
from receiver.errors import ConfigurationError
from receiver.gate import Gate
from receiver.handle import Receiver
from receiver.memory import MemoryStore
from receiver.verify import Verifier
from receiver.windows import DEFAULT_MEMORY, WINDOWS, Window, check_memory
from tests.receiver import samples
from tests.receiver.samples import WHSEC
from wire.contract import Contract
from wire.schedule import RetrySchedule

CONTRACT = Contract(RetrySchedule.parse("1m,5m,30m,2h,6h"), replay_window=timedelta(days=14))


def handler(message: object) -> None:
    """Never called."""


@pytest.mark.parametrize("source", WINDOWS)
def test_g03_the_edge_of_every_providers_window(source: str) -> None:
    window = WINDOWS[source]
    required = window.horizon + window.replay
    with pytest.raises(ConfigurationError) as caught:
        check_memory(required, source)
    assert f"{window.recommended().total_seconds():.0f} seconds" in str(caught.value)
    assert check_memory(required + timedelta(seconds=1), source)
    assert check_memory(window.recommended(), source)
    assert window.reference.startswith("https://")


@pytest.mark.parametrize("source", samples.SAMPLES)
def test_g03_every_provider_has_a_window(source: str) -> None:
    assert source in WINDOWS


def test_g03_five_minutes_are_too_short_for_retries_of_days() -> None:
    with pytest.raises(ConfigurationError, match="use ttl="):
        check_memory(300, "stripe")


def test_the_default_is_seven_days() -> None:
    assert timedelta(days=7) == DEFAULT_MEMORY
    assert check_memory() == DEFAULT_MEMORY


def test_g03_a_contract_counts_replays_and_their_retries() -> None:
    with pytest.raises(ConfigurationError, match="14 days"):
        check_memory(timedelta(days=7), CONTRACT)
    assert check_memory(CONTRACT.min_dedup_ttl + timedelta(seconds=1), CONTRACT)
    with pytest.raises(ConfigurationError):
        check_memory(CONTRACT.min_dedup_ttl, CONTRACT)


def test_g07_the_memory_covers_both_sides_of_the_tolerance() -> None:
    tolerance = timedelta(minutes=5)
    with pytest.raises(ConfigurationError, match="0:10:00"):
        check_memory(timedelta(minutes=10), "someone", tolerance=tolerance)
    assert check_memory(timedelta(minutes=10, seconds=1), "someone", tolerance=tolerance)


def test_g07_a_wide_tolerance_counts_for_a_verifier() -> None:
    verifier = Verifier.slack("hush", tolerance=timedelta(days=2))
    with pytest.raises(ConfigurationError, match="4 days"):
        Receiver(verifier, Gate(MemoryStore()), handler, ttl=4 * 86_400)


def test_g03_a_receiver_refuses_a_short_memory_and_names_the_right_one() -> None:
    verifier = Verifier.stripe("whsec_x")
    for gate, settings in (
        (Gate(MemoryStore(), ttl=3600), {}),
        (Gate(MemoryStore()), {"ttl": 86_400.0}),
    ):
        with pytest.raises(ConfigurationError, match=r"ttl=2937600 seconds \(34 days\)"):
            Receiver(verifier, gate, handler, **settings)
    assert Receiver(verifier, Gate(MemoryStore(), ttl=2_937_600), handler)


def test_g03_the_default_memory_grows_to_what_the_provider_needs() -> None:
    receiver = Receiver(Verifier.stripe("whsec_x"), Gate(MemoryStore()), handler)
    assert receiver.ttl == 34 * 86_400
    receiver = Receiver(Verifier.standard(WHSEC), Gate(MemoryStore()), handler)
    assert receiver.ttl == 7 * 86_400
    receiver = Receiver(Verifier.standard(WHSEC), Gate(MemoryStore()), handler, sender=CONTRACT)
    assert receiver.ttl is not None
    assert receiver.ttl > CONTRACT.min_dedup_ttl.total_seconds()


@contextmanager
def service(status: int, body: bytes) -> Iterator[str]:
    """A service on loopback whose well-known document is what is given."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/.well-known/webhooks"
            self.send_response(status if found else 404)
            self.send_header("location", "/elsewhere")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_the_contract_of_a_service_is_read() -> None:
    with service(200, json.dumps(CONTRACT.to_dict()).encode()) as url, httpx.Client() as client:
        assert fetch_contract(url) == fetch_contract(url, client) == CONTRACT
    assert Window.of_contract(CONTRACT).required() == CONTRACT.min_dedup_ttl


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, b""), (302, b""), (200, b"<html>"), (200, b"{}"), (200, b" " * 10_000_000)],
    ids=["missing", "redirect", "html", "empty", "huge"],
)
def test_no_contract_is_a_configuration_error(status: int, body: bytes) -> None:
    with service(status, body) as url, pytest.raises(ConfigurationError, match="well-known"):
        fetch_contract(url)


def test_a_service_that_is_away_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="no contract at"):
        fetch_contract("http://127.0.0.1:9")
    with pytest.raises(ConfigurationError):
        fetch_contract("http://[")
