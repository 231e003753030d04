"""What the settings permit is what the guard permits, at registration and at each attempt (E22)."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from delivery_service.bootstrap import make_transport
from delivery_service.net.guard import BlockedUrl, check_address, check_url
from delivery_service.net.httpx_transport import HttpxTransport
from delivery_service.net.rules import guard_policy
from delivery_service.net.transport import AiohttpTransport
from delivery_service.settings import Settings


def _policy(monkeypatch: pytest.MonkeyPatch, **variables: str):
    for name, value in variables.items():
        monkeypatch.setenv(f"SUREHOOK_{name.upper()}", value)
    return guard_policy(Settings())


def test_e22_every_setting_that_a_refusal_names_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [
        "https://10.20.0.1/", "https://receiver/", "https://h.example:81/", "http://h.example/",
    ]  # fmt: skip
    named = set()
    for url in refused:
        with pytest.raises(BlockedUrl) as blocked:
            check_url(url, _policy(monkeypatch, allow_http="false"))
        named |= {name for name in Settings.model_fields if name in str(blocked.value)}
    assert named >= {"allowed_networks", "allowed_hosts", "allowed_ports", "allow_http"}


def test_e22_networks_hosts_and_ports_are_permitted_by_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = _policy(
        monkeypatch,
        allowed_networks="10.20.0.0/16, fd00:20::/32",
        allowed_hosts="receiver, .svc",
        allowed_ports="81",
    )
    for url in (
        "https://10.20.0.1/", "https://[fd00:20::1]/", "https://receiver/",
        "https://hooks.svc/", "https://h.example:81/",
    ):  # fmt: skip
        check_url(url, policy)
    for url in ("https://10.21.0.1/", "https://[fd00:21::1]/", "https://other/"):
        with pytest.raises(BlockedUrl):
            check_url(url, policy)


def test_refusals_of_the_operator_are_stronger(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _policy(
        monkeypatch,
        allow_private_networks="true",
        refused_networks="203.0.114.0/24,192.168.7.0/24",
        refused_ports="9443",
    )
    for url in ("https://203.0.114.9/", "https://192.168.7.1/", "https://h.example:9443/"):
        with pytest.raises(BlockedUrl):
            check_url(url, policy)
    check_url("https://192.168.8.1/", policy)


def test_nat64_prefixes_are_judged_by_what_they_embed(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _policy(monkeypatch, nat64_prefixes="2001:67c:2b0::/96")
    check_address("2001:67c:2b0::5db8:d822", policy)  # 93.184.216.34
    with pytest.raises(BlockedUrl):
        check_address("2001:67c:2b0::a9fe:a9fe", policy)  # 169.254.169.254


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allowed_networks", "10.0.0.0/33"),
        ("allowed_networks", "10.0.0.1/8"),
        ("refused_networks", "everything"),
        ("nat64_prefixes", "64:ff9b::/97"),
        ("allowed_ports", "0"),
        ("refused_ports", "http"),
        ("transport", "curl"),
        ("egress_proxy", "socks5://127.0.0.1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    with pytest.raises(ValidationError, match=name):
        _policy(monkeypatch, **{name: value})


async def test_the_transport_is_a_setting() -> None:
    for name, kind in (("aiohttp", AiohttpTransport), ("httpx", HttpxTransport)):
        made = make_transport(Settings(transport=name))
        assert isinstance(made, kind)
        await made.close()
