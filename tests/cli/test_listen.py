"""`surehook listen` as a real process that deliveries are really sent to."""

from __future__ import annotations

import json
import signal
import socket
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.cli.conftest import COMMAND, Operator
from tests.support.ports import HOST
from tests.support.processes import Process, Processes
from tests.support.waiting import wait_until
from wire import generate_secret
from wire.profiles import PROFILES, build_headers
from wire.secrets import parse_secret


class Listening:
    """A running `surehook listen`."""

    def __init__(self, processes: Processes, *arguments: str) -> None:
        command = (*COMMAND, "listen", "--port", "0", *arguments)
        self.process: Process = processes.start(*command)
        match = self.process.wait_for(r"Listening on (http://\S+?)/ ", deadline=60)
        assert match is not None
        self.url = match[1]

    def send(
        self, secret: str, *, profile: str = "standard", at: int | None = None, **more: Any
    ) -> int:
        """Send one signed delivery; return the status of the answer."""
        import time

        body = more.pop("body", b'{"n":1}')
        headers = build_headers(
            [PROFILES[profile]],
            secrets=[parse_secret(secret)],
            **{
                "delivery_id": "dlv_1",
                "event_id": "evt_1",
                "event_type": "a.b",
                "attempt": 1,
                "timestamp": at or int(time.time()),
                "body": body,
                "user_agent": "t",
                **more,
            },
        )
        request = urllib.request.Request(f"{self.url}/x?token=1", body, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return int(error.code)

    def lines(self, count: int) -> list[dict[str, Any]]:
        """The first ``count`` requests that were printed as JSON."""

        def printed() -> list[str]:
            return [line for line in self.process.output.splitlines() if line.startswith("{")]

        wait_until(lambda: len(printed()) >= count, deadline=30)
        return [json.loads(line) for line in printed()]


@pytest.mark.parametrize("kind", ["whsec", "whsk"])
def test_it_verifies_prints_and_tells_repeats(processes: Processes, kind: Any) -> None:
    secret = generate_secret(kind)
    given = parse_secret(secret)
    public = given.verifying_key().reveal() if kind == "whsk" else secret  # type: ignore[attr-defined]
    listening = Listening(processes, "--secret", public, "--json")
    assert listening.send(secret) == 204
    assert listening.send(secret, attempt=2) == 204
    assert listening.send(secret, delivery_id="dlv_2") == 204
    assert listening.send(generate_secret(kind), delivery_id="dlv_2") == 401
    assert listening.send(secret, at=1_000_000) == 401
    first, again, other, forged, old = listening.lines(5)
    assert (first["verified"], first["id"], first["repeat"]) == (True, "dlv_1", 0)
    assert (first["event_type"], first["attempt"], first["body"]) == ("a.b", "1", '{"n":1}')
    assert (again["repeat"], again["attempt"], other["repeat"]) == (1, "2", 0)
    assert (forged["verified"], forged["answer"]) == (False, 401)
    assert "signature_mismatch" in forged["fault"]
    assert "timestamp_too_old" in old["fault"]
    listening.process.send_signal(signal.SIGTERM)
    assert listening.process.wait() == 0
    assert "5 requests, 2 deliveries." in listening.process.output
    assert "Traceback" not in listening.process.output


def test_it_answers_with_the_status_asked_for(processes: Processes) -> None:
    secret = generate_secret()
    listening = Listening(processes, "--secret", secret, "--status", "500")
    assert listening.send(secret) == 500
    assert listening.send(generate_secret()) == 401
    listening.process.send_signal(signal.SIGINT)
    assert listening.process.wait() == 0


def test_during_a_rotation_either_secret_verifies(processes: Processes) -> None:
    old, new = generate_secret(), generate_secret()
    listening = Listening(processes, "--secret", old, "--secret", new)
    assert [listening.send(old), listening.send(new)] == [204, 204]


@pytest.mark.parametrize("profile", ["idempotency-key", "github"])
def test_other_profiles(processes: Processes, profile: str) -> None:
    secret = generate_secret()
    listening = Listening(processes, "--secret", secret, "--profile", profile, "--json")
    assert listening.send(secret, profile=profile) == 204
    assert listening.send(generate_secret(), profile=profile) == 401
    good, bad = listening.lines(2)
    assert (good["verified"], good["id"]) == (True, "dlv_1")
    assert "signature_mismatch" in bad["fault"]


def test_without_a_secret_it_says_that_nothing_is_verified(processes: Processes) -> None:
    listening = Listening(processes)
    assert listening.send(generate_secret()) == 204
    listening.process.wait_for("NOT VERIFIED: no --secret was given")


def test_a_sender_can_not_write_to_the_terminal(processes: Processes) -> None:
    secret = generate_secret()
    listening = Listening(processes, "--secret", secret)
    assert listening.send(secret, body=b"\x1b]0;owned\x07 [bold]x[/bold]") == 204
    listening.process.wait_for(r"\\x1b\]0;owned\\x07 \[bold\]x")
    assert "\x1b" not in listening.process.output


def test_hostile_requests_do_not_end_it(processes: Processes) -> None:
    secret = generate_secret()
    listening = Listening(processes, "--secret", secret, "--json")
    port = int(listening.url.rpartition(":")[2])
    for raw in (
        b"nonsense\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\nwebhook-id: a\r\nwebhook-id: b\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\nwebhook-id: \xff\r\n\r\n",
    ):
        with socket.create_connection((HOST, port), timeout=20) as client:
            client.sendall(raw)
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass
    assert listening.send(secret, body=b"[" * 100_000) == 204
    assert listening.send(secret, body=b"\xff\xfe") == 204
    assert any(line["verified"] for line in listening.lines(2))
    assert listening.process.terminate() == 0
    assert "Traceback" not in listening.process.output


def test_what_a_worker_sends_is_verified_and_repeated(
    operator: Operator, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = generate_secret()
    listening = Listening(processes, "--secret", secret, "--status", "500", "--json")
    url = f"{listening.url}/hook"
    operator.endpoint(url, "--secret", secret, "--schedule", "0s,0s")
    (delivery_id,) = operator.publish()["deliveries"]
    operator.start("worker")
    lines = listening.lines(3)
    assert [(line["id"], line["attempt"], line["repeat"]) for line in lines[:3]] == [
        (delivery_id, "1", 0),
        (delivery_id, "2", 1),
        (delivery_id, "3", 2),
    ]
    assert all(line["verified"] for line in lines)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--secret", "whsec_short"], "secret"),
        (["--profile", "mine"], "profile"),
        (["--host", "192.0.2.1"], "host, port"),
    ],
)
def test_what_is_wrong_is_named(processes: Processes, arguments: list[str], named: str) -> None:
    process = processes.start(*COMMAND, "listen", "--port", "0", *arguments)
    assert process.wait() == 2
    assert f"surehook: {named}" in process.output
    assert "short" not in process.output.replace("too short", "")
    assert "Traceback" not in process.output
