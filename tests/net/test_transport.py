"""The transport against real sockets: outcomes, connections, pinning, deadlines."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_network

import pytest

from delivery_service.net.guard import GuardPolicy
from delivery_service.net.responses import safe_text
from delivery_service.net.transport import RESPONSE_CAP, PreparedRequest
from delivery_service.policy.outcome import OutcomeKind
from tests.net.conftest import names
from tests.net.receivers import (
    GOOD,
    after_request,
    body,
    never_answer,
    read_request,
    receiver,
    until,
)

HEADERS = {"content-type": "application/json", "webhook-id": "dlv_1", "user-agent": "surehook/1"}
BODY = '{"n":1.10,"s":"é\\u2028🚀"}'.encode()
ONE_ADDRESS = GuardPolicy(allow_http=True, allowed_networks=(ip_network("127.0.0.1/32"),))


def post(url: str, content: bytes = BODY) -> PreparedRequest:
    return PreparedRequest(url, HEADERS, content)


async def test_request_arrives_byte_for_byte(transport):
    async with receiver() as seen:
        outcome = await transport.send(post(seen.url()), 5.0)
    head, content = seen.requests[0]
    assert content == BODY
    lines = head.decode().lower().split("\r\n")
    assert lines[0] == "post /in http/1.1"
    assert f"host: hooks.example:{seen.port}" in lines
    assert "accept-encoding: identity" in lines
    assert f"content-length: {len(BODY)}" in lines
    for name, value in HEADERS.items():
        assert lines.count(f"{name}: {value}") == 1
    assert not any(line.startswith(("cookie:", "authorization:", "expect:")) for line in lines)
    assert outcome.delivered
    assert outcome.error is None
    assert outcome.response_body == b"ok"
    assert outcome.response_headers == (("content-length", "2"),)
    assert 0 < outcome.duration < 5


async def test_empty_and_large_bodies_arrive(transport):
    async with receiver() as seen:
        for content in (b"", b"x" * 3_000_000):
            assert (await transport.send(post(seen.url(), content), 10.0)).delivered
    assert [len(content) for _, content in seen.requests] == [0, 3_000_000]


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
async def test_d05_every_2xx_is_delivered(transport, status):
    answer = f"HTTP/1.1 {status} X\r\n" + ("" if status == 204 else "content-length: 0\r\n")
    async with receiver(answer.encode() + b"\r\n") as seen:
        for _ in range(2):
            outcome = await transport.send(post(seen.url()), 5.0)
            assert (outcome.kind, outcome.status_code) == (OutcomeKind.DELIVERED, status)
    assert seen.connections == 1


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308, 399])
async def test_d13_d14_redirects_are_not_followed(transport, status):
    async with receiver() as target:
        location = f"location: {target.url(path='/x?secret=1')}".encode()
        content = b"" if status == 304 else b"moved"
        async with receiver(body(content, location, status=b"%d X" % status)) as seen:
            outcome = await transport.send(post(seen.url()), 5.0)
    assert (outcome.kind, outcome.status_code) == (OutcomeKind.REDIRECT, status)
    assert target.connections == 0
    assert len(seen.requests) == 1
    assert "not followed" in outcome.error
    assert "secret" not in outcome.error


async def test_e19_redirect_to_a_refused_address_is_not_followed(transport):
    answer = body(b"", b"location: http://169.254.169.254/", status=b"302 Found")
    async with receiver(answer) as seen:
        outcome = await transport.send(post(seen.url()), 5.0)
    assert outcome.kind is OutcomeKind.REDIRECT


@pytest.mark.parametrize("status", [400, 401, 404, 410, 413, 429, 500, 503, 599, 600, 999])
async def test_other_statuses(transport, status):
    answer = body(b"no", b"Retry-After: -1", status=b"%d X" % status)
    async with receiver(answer) as seen:
        outcome = await transport.send(post(seen.url()), 5.0)
    assert (outcome.kind, outcome.status_code) == (OutcomeKind.STATUS, status)
    assert outcome.retry_after == "-1"
    assert outcome.may_have_arrived


async def test_e01_a_byte_at_a_time_ends_at_the_deadline(transport):
    drip = after_request(b"HTTP/1.1 200 OK\r\nx: ", b"y", pause=0.02, repeat=True)
    async with receiver(drip) as seen:
        outcome = await transport.send(post(seen.url()), 0.3)
        await until(lambda: seen.closed == 1)
    assert outcome.kind is OutcomeKind.TIMEOUT
    assert "waiting for the answer" in outcome.error


async def test_e02_stale_connection_fails_honestly_and_is_not_resent(make_transport):
    async def answer_once(reader, writer):
        seen.requests.append(await read_request(reader))
        writer.write(GOOD)
        seen.requests.append(await read_request(reader))
        writer.close()

    transport = make_transport()
    async with receiver(answer_once) as seen:
        assert (await transport.send(post(seen.url()), 5.0)).delivered
        outcome = await transport.send(post(seen.url()), 5.0)
    assert outcome.kind is OutcomeKind.PROTOCOL
    assert outcome.may_have_arrived
    assert len(seen.requests) == 2
    assert seen.connections == 1
    assert (transport.connections_opened, transport.connections_reused) == (1, 1)


async def test_e04_cancelled_in_a_body_then_closed(make_transport):
    drip = after_request(b"HTTP/1.1 200 OK\r\n\r\n", b"y", pause=0.02, repeat=True)
    transport = make_transport()
    async with receiver(drip) as seen:
        task = asyncio.create_task(transport.send(post(seen.url()), 30.0))
        await until(lambda: seen.connections == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: seen.closed == 1)
        await transport.close()


async def test_e04_closed_with_requests_in_flight(make_transport):
    async def read_only(reader, writer):
        seen.requests.append(await read_request(reader))
        await reader.read()

    transport = make_transport()
    async with receiver(read_only) as seen:
        tasks = [asyncio.create_task(transport.send(post(seen.url()), 30.0)) for _ in range(5)]
        await until(lambda: len(seen.requests) == 5)
        await transport.close()
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert not any(outcome.delivered for outcome in outcomes)


@pytest.mark.parametrize("size", [0, 1, RESPONSE_CAP - 1, RESPONSE_CAP, RESPONSE_CAP + 1, 200_000])
async def test_e06_body_is_kept_up_to_the_cap(transport, size):
    async with receiver(body(b"x" * size)) as seen:
        outcome = await transport.send(post(seen.url()), 5.0)
        assert outcome.delivered
        assert outcome.response_body == b"x" * min(size, RESPONSE_CAP)
        assert outcome.response_truncated == (size > RESPONSE_CAP)
        assert (await transport.send(post(seen.url()), 5.0)).delivered
    # A body read to its end leaves the connection usable, a cut one does not.
    if size <= RESPONSE_CAP:
        assert seen.connections == 1


async def test_e05_compressed_answers_stay_compressed(transport):
    async with receiver(body(b"\x1f\x8b\x08\x00rest", b"content-encoding: gzip")) as seen:
        outcome = await transport.send(post(seen.url()), 5.0)
    assert outcome.delivered
    assert outcome.response_body == b"\x1f\x8b\x08\x00rest"


async def test_e08_no_answer_is_our_own_timeout(transport):
    async with receiver(never_answer) as seen:
        outcome = await transport.send(post(seen.url()), 0.2)
    assert outcome.kind is OutcomeKind.TIMEOUT
    assert outcome.status_code is None
    assert outcome.may_have_arrived
    assert "0.2 s" in outcome.error


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a\x00b", b"\xed\xa0\x80", b"\x1b[31m"])
async def test_e09_e10_odd_bytes_become_safe_text(transport, content):
    async with receiver(body(content, b"x-odd: \xff\xfe", status=b"500 \xff")) as seen:
        outcome = await transport.send(post(seen.url()), 5.0)
    assert outcome.kind is OutcomeKind.STATUS
    assert outcome.response_body == content
    for text in (safe_text(outcome.response_body), dict(outcome.response_headers)["x-odd"]):
        text.encode()
        assert "\x00" not in text
        assert "\x1b" not in text


@pytest.mark.parametrize(
    ("data", "limit", "text"),
    [
        (b"x" * 1023 + "é".encode(), 1024, "x" * 1023),
        ("🚀".encode()[:3], None, ""),
        ("é🚀".encode(), 3, "é"),
        ("é🚀".encode(), 6, "é🚀"),
        (b"a\xffb", None, "a\ufffdb"),
        (b"a\tb\r\nc\x00\x7f\xc2\x85", None, "a\tb\r\nc\ufffd\ufffd\ufffd"),
        (b"", None, ""),
    ],
)
def test_b11_text_is_cut_on_a_character_boundary(data, limit, text):
    assert safe_text(data, limit) == text


async def test_e10_connection_refused_is_an_outcome(transport):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://hooks.example:{unused.getsockname()[1]}/?token=secret"
        outcome = await transport.send(post(url), 5.0)
    assert outcome.kind is OutcomeKind.CONNECT
    assert outcome.status_code is None
    assert not outcome.may_have_arrived
    assert "refused" in outcome.error
    assert "secret" not in outcome.error


async def test_e11_query_is_sent_exactly_as_registered(transport):
    path = "/in%2Fout/../a%27?a=%2F%27%28%29&b='()!*&c=%zz&d=+%20&e=[]{}|^`\"<>&&=&%c3%a9&?/:@"
    async with receiver() as seen:
        assert (await transport.send(post(seen.url(path=path)), 5.0)).delivered
    assert seen.requests[0][0].split(b"\r\n")[0] == f"POST {path} HTTP/1.1".encode()


@pytest.mark.parametrize("host", ["foo_bar.example", "_a.foo.example", "bücher.example"])
async def test_e12_odd_hosts_work(transport, host):
    async with receiver() as seen:
        assert (await transport.send(post(seen.url(host)), 5.0)).delivered
    assert host.encode("idna" if not host.isascii() else "ascii") in seen.requests[0][0]


async def test_e12_ipv6_literal_works(make_transport):
    transport = make_transport(GuardPolicy(allow_http=True, allow_private_networks=True))
    try:
        context = receiver(host="::1")
        seen = await context.__aenter__()
    except OSError:
        pytest.skip("no IPv6 loopback here")
    outcome = await transport.send(post(seen.url("[::1]")), 5.0)
    await context.__aexit__(None, None, None)
    assert outcome.delivered
    assert f"host: [::1]:{seen.port}".encode() in seen.requests[0][0].lower()


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1/",
        "http://u:p@hooks.example/",
        " http://hooks.example/",
        "https://①/",
        "\ud800",
        "",
        "http://127.0.0.1:22/",
        "http://0x7f.1/",
    ],
    ids=ascii,
)
async def test_bad_url_in_a_row_is_blocked_at_delivery(transport, url):
    outcome = await transport.send(post(url), 5.0)
    assert outcome.kind is OutcomeKind.BLOCKED
    assert outcome.public_error == "blocked"
    assert not outcome.may_have_arrived
    assert transport.connections_opened == 0


@pytest.mark.parametrize("headers", [{"x": "a\r\nX-B: 1"}, {"x a": "1"}, {"x": "a\x00"}, {"": "1"}])
async def test_c19_a_header_that_would_inject_is_not_sent(transport, headers):
    async with receiver() as seen:
        outcome = await transport.send(PreparedRequest(seen.url(), headers, b"{}"), 5.0)
        assert outcome.kind in {OutcomeKind.INTERNAL, OutcomeKind.DELIVERED}
        assert (await transport.send(post(seen.url()), 5.0)).delivered
    assert b"X-B" not in seen.requests[0][0]


async def test_e17_one_refused_address_refuses_the_name(make_transport):
    for refused in (
        "fe80::1",
        "fe80::1%2",
        "10.0.0.1",
        "::1",
        "64:ff9b::7f00:1",
        "::ffff:10.0.0.1",
    ):
        transport = make_transport(lookup=names(hooks_example=["127.0.0.1", refused]))
        async with receiver() as seen:
            outcome = await transport.send(post(seen.url()), 5.0)
        assert outcome.kind is OutcomeKind.BLOCKED
        assert "SSRF guard" in outcome.error or "scope id" in outcome.error
        assert outcome.public_error == "blocked"
        assert seen.connections == 0


@pytest.mark.parametrize("kept_alive", [True, False])
async def test_e18_rebinding_never_reaches_a_refused_listener(make_transport, kept_alive):
    answers = iter(["127.0.0.1"])
    asked = 0

    async def lookup(host):
        nonlocal asked
        asked += 1
        return [next(answers, "127.0.0.2")]

    transport = make_transport(ONE_ADDRESS, lookup=lookup, dns_cache_ttl=0)
    answer = GOOD if kept_alive else body(b"ok", b"connection: close")
    async with (
        receiver(answer) as allowed,
        receiver(answer, host="127.0.0.2", port=allowed.port) as refused,
    ):
        outcomes = [await transport.send(post(allowed.url()), 5.0) for _ in range(5)]
        assert refused.connections == 0
    assert outcomes[0].delivered
    assert allowed.connections == 1
    if kept_alive:
        assert asked == 1
        assert all(outcome.delivered for outcome in outcomes)
    else:
        assert asked == 5
        assert {outcome.kind for outcome in outcomes[1:]} == {OutcomeKind.BLOCKED}


async def test_e18_each_connection_uses_the_answer_that_was_checked(make_aiohttp):
    asked = 0

    async def lookup(host):
        nonlocal asked
        asked += 1
        return ["127.0.0.1" if asked % 2 else "127.0.0.2"]

    transport = make_aiohttp(ONE_ADDRESS, lookup=lookup, dns_cache_ttl=0, max_connection_age=0)
    async with receiver() as allowed, receiver(host="127.0.0.2", port=allowed.port) as refused:
        kinds = [(await transport.send(post(allowed.url()), 5.0)).kind for _ in range(6)]
        assert refused.connections == 0
    assert kinds == [OutcomeKind.DELIVERED, OutcomeKind.BLOCKED] * 3
    assert allowed.connections == 3


async def test_literal_addresses_are_judged_when_the_connection_is_opened(make_transport):
    transport = make_transport(ONE_ADDRESS)
    async with receiver(host="127.0.0.2") as refused:
        outcome = await transport.send(post(refused.url("127.0.0.2")), 5.0)
        assert refused.connections == 0
    assert outcome.kind is OutcomeKind.BLOCKED


async def test_connections_are_not_shared_between_names(make_transport):
    transport = make_transport()
    async with receiver() as seen:
        for host in ("a.example", "b.example", "a.example", "b.example", "127.0.0.1"):
            assert (await transport.send(post(seen.url(host)), 5.0)).delivered
    assert seen.connections == 3
    assert (transport.connections_opened, transport.connections_reused) == (3, 2)


async def test_next_address_is_tried(make_transport):
    transport = make_transport(lookup=names(hooks_example=["127.0.0.9", "127.0.0.8", "127.0.0.1"]))
    async with receiver() as seen:
        outcome = await transport.send(post(seen.url()), 5.0)
    assert outcome.delivered


async def test_idle_connections_are_closed(make_aiohttp):
    transport = make_aiohttp(keepalive_timeout=0.05)
    async with receiver() as seen:
        assert (await transport.send(post(seen.url()), 5.0)).delivered
        await until(lambda: seen.closed == 1)
        assert (await transport.send(post(seen.url()), 5.0)).delivered
    assert seen.connections == 2


async def test_busy_connections_are_renewed(make_aiohttp):
    transport = make_aiohttp(max_connection_age=0)
    async with receiver() as seen:
        for _ in range(3):
            assert (await transport.send(post(seen.url()), 5.0)).delivered
    assert seen.connections == 3


async def test_connection_closed_while_idle_is_not_used(make_transport):
    transport = make_transport()

    async def answer_and_close(reader, writer):
        await read_request(reader)
        writer.write(GOOD)
        await writer.drain()
        writer.close()

    async with receiver(answer_and_close) as seen:
        for number in range(3):
            assert (await transport.send(post(seen.url()), 5.0)).delivered
            await until(lambda number=number: seen.closed == number + 1)
            await asyncio.sleep(0.01)
    assert seen.connections == 3


async def test_slow_resolver_is_dns(make_transport):
    async def lookup(host):
        await asyncio.sleep(3600)

    for options, deadline in (({"dns_timeout": 0.05}, 5.0), ({}, 0.05)):
        transport = make_transport(lookup=lookup, **options)
        outcome = await transport.send(post("http://hooks.example/"), deadline)
        assert outcome.kind is OutcomeKind.DNS
        assert not outcome.may_have_arrived


async def test_d04_unknown_name_is_dns_and_works_once_it_resolves(make_transport):
    answers = iter([OSError(-2, "Name or service not known"), [], ["127.0.0.1"]])

    async def lookup(host):
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    transport = make_transport(lookup=lookup)
    async with receiver() as seen:
        outcomes = [await transport.send(post(seen.url()), 5.0) for _ in range(3)]
    kinds = [outcome.kind for outcome in outcomes]
    assert kinds == [OutcomeKind.DNS, OutcomeKind.DNS, OutcomeKind.DELIVERED]
    assert "Name or service not known" in outcomes[0].error


async def test_e23_proxy_variables_are_ignored(make_transport, monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine hooks.example login u password p\n", encoding="ascii")
    async with receiver() as proxy, receiver() as seen:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NETRC", str(netrc))
        outcome = await make_transport().send(post(seen.url()), 5.0)
    assert outcome.delivered
    assert proxy.connections == 0
    assert b"authorization" not in seen.requests[0][0].lower()


async def test_e23_explicit_proxy_is_used_and_urls_are_still_judged(make_transport):
    async def lookup(host):
        raise AssertionError(f"{host} was looked up")

    async with receiver() as proxy:
        transport = make_transport(ONE_ADDRESS, proxy=proxy.url("127.0.0.1", ""), lookup=lookup)
        assert (await transport.send(post("http://hooks.example/a?b=%27"), 5.0)).delivered
        blocked = await transport.send(post("http://10.0.0.1/"), 5.0)
        refused = await transport.send(post("https://hooks.example/"), 0.3)
    assert proxy.requests[0][0].startswith(b"POST http://hooks.example/a?b=%27 HTTP/1.1\r\n")
    assert blocked.kind is OutcomeKind.BLOCKED
    assert proxy.requests[1][0].startswith(b"CONNECT hooks.example:443 ")
    assert len(proxy.requests) <= 3
    assert not refused.delivered


async def test_e23_proxy_is_told_its_login_from_the_first_request_on(make_transport):
    async with receiver() as proxy:
        login = proxy.url("127.0.0.1", "").replace("//", "//user:pass@")
        transport = make_transport(ONE_ADDRESS, proxy=login)
        for _ in range(2):
            assert (await transport.send(post("http://hooks.example/"), 5.0)).delivered
    for head, _ in proxy.requests:
        lines = head.lower().split(b"\r\n")
        assert lines.count(b"proxy-authorization: basic dxnlcjpwyxnz") == 1


async def test_unreachable_proxy_does_not_show_its_address(make_transport):
    transport = make_transport(proxy="http://127.0.0.1:9")
    outcome = await transport.send(post("http://hooks.example/"), 5.0)
    assert outcome.kind is OutcomeKind.CONNECT
    assert "proxy" in outcome.error
    assert "127.0.0.1" not in outcome.error


async def test_an_answer_nobody_asked_for_is_not_the_next_ones(make_aiohttp):
    async def unasked(reader, writer):
        await read_request(reader)
        writer.write(GOOD)
        await idle.wait()
        writer.write(b"HTTP/1.1 500 Unasked\r\ncontent-length: 0\r\n\r\n")
        await reader.read()

    def arrived():
        (kept,) = transport._connector._conns.values()
        return kept[0][0].should_close

    idle = asyncio.Event()
    transport = make_aiohttp()
    async with receiver(unasked) as seen:
        assert (await transport.send(post(seen.url()), 5.0)).delivered
        idle.set()
        await until(arrived)
        assert (await transport.send(post(seen.url()), 5.0)).delivered
    assert seen.connections == 2
