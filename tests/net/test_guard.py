"""The guard: every rule for URLs and addresses, as tables."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delivery_service.net.addresses import REFUSED_IPV4, SERVICE_PORTS
from delivery_service.net.guard import (
    MAX_URL_LENGTH,
    BlockedUrl,
    CheckedUrl,
    GuardPolicy,
    check_address,
    check_url,
    display_url,
)

DEFAULT = GuardPolicy()
HTTP = GuardPolicy(allow_http=True)
BAD_URLS = json.loads(
    (Path(__file__).parent.parent / "data" / "bad_urls.json").read_text(encoding="utf-8")
)
# This one is an ordinary name: only what it resolves to is bad (see test_resolver).
RESOLVES_INSIDE = "http://localtest.me/"


@pytest.mark.parametrize("entry", BAD_URLS, ids=lambda e: ascii(e["url"])[1:50])
def test_bad_url_is_refused(entry):
    with pytest.raises(BlockedUrl):
        check_url(entry["url"], DEFAULT)
    if entry["url"] != RESOLVES_INSIDE:
        with pytest.raises(BlockedUrl):
            check_url(entry["url"], HTTP)
        with pytest.raises(BlockedUrl):  # and not only for its scheme
            check_url(entry["url"].replace("http:", "https:"), DEFAULT)


@pytest.mark.parametrize(
    ("url", "rebuilt"),
    [
        ("https://hooks.example.com", "https://hooks.example.com/"),
        ("HTTPS://Hooks.Example.COM/In", "https://hooks.example.com/In"),
        ("https://hooks.example.com:443/", "https://hooks.example.com/"),
        ("https://hooks.example.com:0443/", "https://hooks.example.com/"),
        ("https://hooks.example.com:8443/a", "https://hooks.example.com:8443/a"),
        ("https://hooks.example.com:1024/", "https://hooks.example.com:1024/"),
        ("https://hooks.example.com:65535/", "https://hooks.example.com:65535/"),
        ("https://hooks.example.com./x", "https://hooks.example.com/x"),
        ("https://hooks.example.com?a=1", "https://hooks.example.com/?a=1"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("https://faß.example/", "https://xn--fa-hia.example/"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/"),
        ("https://93.184.216.34/", "https://93.184.216.34/"),
        ("https://[2606:4700::1111]/", "https://[2606:4700::1111]/"),
        ("https://[2606:4700:0:0::1111]:8443/x", "https://[2606:4700::1111]:8443/x"),
        ("https://h.example/a/../b//c;d=e/", "https://h.example/a/../b//c;d=e/"),
        ("https://h.example/é?ü=ñ", "https://h.example/%C3%A9?%C3%BC=%C3%B1"),
        ("https://h.example/?", "https://h.example/"),
        ("https://127.0.0.1.nip.io/", "https://127.0.0.1.nip.io/"),
        ("https://0x7f.example/", "https://0x7f.example/"),
        ("https://h.example/http://127.0.0.1/@x", "https://h.example/http://127.0.0.1/@x"),
    ],
)
def test_good_url_is_rebuilt(url, rebuilt):
    checked = check_url(url, DEFAULT)
    assert checked.url == rebuilt
    assert check_url(rebuilt, DEFAULT) == checked


def test_e11_query_stays_exactly_as_registered():
    query = "?a=%2F%27%28%29&b='()!*&c=%zz&d=+ %20"[:-4] + '&e=[]{}|^`"<>&a=2&&=&%c3%a9&?/:@'
    checked = check_url(f"https://h.example/in%2Fout{query}", DEFAULT)
    assert checked.target == f"/in%2Fout{query}"


def test_checked_url_has_the_parts():
    assert check_url("https://[2606:4700::1]:8443/p?q", DEFAULT) == CheckedUrl(
        url="https://[2606:4700::1]:8443/p?q",
        scheme="https",
        host="2606:4700::1",
        port=8443,
        target="/p?q",
        address=IPv6Address("2606:4700::1"),
    )
    assert check_url("http://h.example/", HTTP).port == 80


@pytest.mark.parametrize(
    "url",
    [
        " https://h.example/x",
        "https://h.example/x ",
        "https://h.example/x\n",
        "https://h.example/x\t",
        "\thttps://h.example/x",
        "https://h.example/\x7f",
        "https://h.example/\x85",
        "https://h.example/\u00a0",
        "https://h.example/\u2028",
        "https://h.example/\u200b",
        "https://h.example/\ufeff",
        "https://h.example/\ud800",
        "https://h.example/?\x00",
    ],
    ids=ascii,
)
def test_e13_white_space_and_control_characters_are_refused(url):
    with pytest.raises(BlockedUrl) as caught:
        check_url(url, DEFAULT)
    assert caught.value.rule == "url"
    assert "character" in caught.value.public_reason


@pytest.mark.parametrize(
    "url",
    [
        "https://u:p%40ss@h.example/",
        "https://u@h.example/",
        "https://@h.example/",
        "https://:secret@h.example:8443/",
    ],
)
def test_e15_user_information_is_refused_and_never_repeated(url):
    with pytest.raises(BlockedUrl) as caught:
        check_url(url, DEFAULT)
    assert "user information" in str(caught.value)
    assert "p%40ss" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "p%40ss" not in display_url(url)
    assert "secret" not in display_url(url)


def test_e12_underscore_hosts_and_ipv6_literals_are_accepted():
    assert check_url("https://foo_bar.example/", DEFAULT).host == "foo_bar.example"
    assert check_url("https://_hooks.foo.example/", DEFAULT).host == "_hooks.foo.example"
    policy = GuardPolicy(allowed_networks=(ip_network("2001:db8::/32"),))
    assert check_url("https://[2001:db8::1]:8443/", policy).port == 8443


@pytest.mark.parametrize(
    "url", ["https://①.example/", "https://❤.example/", "https://a\u00adb.example/"], ids=ascii
)
def test_e12_odd_hosts_are_a_name_or_refused_and_nothing_else(url):
    try:
        checked = check_url(url, DEFAULT)
    except BlockedUrl:
        return
    assert checked.host.isascii()


@pytest.mark.parametrize(
    "url",
    [
        "https://",
        "https:///path",
        "https://?a",
        "https://:443/",
        "https://h.example:/",
        "https://h.example:+443/",
        "https://h.example:4 43/",
        "https://h.example:٤٤٣/",
        "https://h.example:443:443/",
        "https://h.example:0/",
        "https://a..example/",
        "https://-a.example/",
        "https://a-.example/",
        "https://" + "a" * 64 + ".example/",
        "https://" + "a." * 127 + "example/",
        "https://h.example../",
        "https://h.example,evil.example/",
        "https://h.example;evil/",
        "https://h.example#@evil.example/",
        "https://h.example/#",
        "https://[2606:4700::1%25eth0]/",
        "https://[fe80::1%eth0]/",
        "https://[v1.x]/",
        "https://[]/",
        "https://2606:4700::1111/",
        "https://93.184.216.034/",
        "https://93.184.216.34./",
        "https://93.184.216/",
        "https://1.2.3.4.5/",
        "https://256.1.1.1/",
        "https://foo.0x10/",
        "https://foo.123/",
        "https://9\uff13.184.216.34/",
        "https://xn--.example/\x00",
        "h.example/x",
        "",
        "https",
        "https:/h.example/",
        "javascript://h.example/",
        "wss://h.example/",
        "https+unix://h.example/",
        "https://h.example/" + "a" * MAX_URL_LENGTH,
        "https://h.example/" + "é" * 1000,
    ],
    ids=lambda url: ascii(url)[1:40],
)
def test_other_bad_urls_are_refused(url):
    with pytest.raises(BlockedUrl):
        check_url(url, DEFAULT)


@pytest.mark.parametrize(
    "port", sorted({1, 21, 22, 25, 53, 81, 110, 444, 1023, 65536, *SERVICE_PORTS})
)
def test_port_is_refused(port):
    with pytest.raises(BlockedUrl) as caught:
        check_url(f"https://h.example:{port}/", DEFAULT)
    assert "allowed_ports" in str(caught.value)


def test_ports_are_settings():
    policy = GuardPolicy(allowed_ports=frozenset({81, 9200}), refused_ports=frozenset({9999}))
    assert check_url("https://h.example:81/", policy).port == 81
    assert check_url("https://h.example:9200/", policy).port == 9200
    assert check_url("https://h.example:6379/", policy).port == 6379
    with pytest.raises(BlockedUrl):
        check_url("https://h.example:9999/", policy)


# First and last address of each refused network, and its neighbours where those are acceptable.
EDGES_V4 = [edge for network in REFUSED_IPV4 for edge in (network[0], network[-1])]


@pytest.mark.parametrize("address", EDGES_V4, ids=str)
def test_e20_edges_of_refused_ipv4_networks(address):
    for form in (
        str(address),
        f"::ffff:{address}",
        str(IPv6Address(int(IPv6Address("::ffff:0:0")) | int(address))),
    ):
        with pytest.raises(BlockedUrl) as caught:
            check_address(form, DEFAULT)
        assert "allowed_networks" in str(caught.value)
        assert caught.value.public_reason == "blocked"


@pytest.mark.parametrize(
    "address",
    [
        *("1.0.0.0", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0"),
        *("126.255.255.255", "128.0.0.0", "169.253.255.255", "169.255.0.0", "172.15.255.255"),
        *("172.32.0.0", "191.255.255.255", "192.0.1.0", "192.0.1.255", "192.0.3.0"),
        *("192.31.195.255", "192.31.197.0", "192.52.192.255", "192.52.194.0", "192.88.98.255"),
        *("192.88.100.0", "192.167.255.255", "192.169.0.0", "192.175.47.255", "192.175.49.0"),
        *("198.17.255.255", "198.20.0.0", "198.51.99.255", "198.51.101.0", "203.0.112.255"),
        *("203.0.114.0", "223.255.255.255", "168.63.129.15", "168.63.129.17", "8.8.8.8"),
        *("2001:200::", "2001:db7:ffff::", "2001:db9::", "2003::", "2606:4700::1111"),
        *("3ffe:ffff::", "3fff:1000::", "3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "2000::"),
        "::ffff:8.8.8.8",
    ],
)
def test_e20_neighbours_of_refused_networks_are_accepted(address):
    assert check_address(address, DEFAULT) == ip_address(address)


@pytest.mark.parametrize(
    "address",
    [
        *("::", "::1", "::127.0.0.1", "::ffff:0:127.0.0.1", "::ffff:127.0.0.1", "::8.8.8.8"),
        *("64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::7f00:1", "100::1", "1fff:ffff::"),
        *("2001::", "2001::1", "2001:1ff:ffff::", "2001:db8::", "2001:db8:ffff:ffff::1"),
        *("2002::", "2002:7f00:1::", "2002:ffff::1", "3fff::", "3fff:fff:ffff::1", "4000::"),
        *("5f00::1", "fc00::1", "fd00:ec2::254", "fd7a:115c:a1e0::1", "fe80::1", "febf::1"),
        *("fec0::1", "ff02::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ],
)
def test_e20_ipv6_outside_the_global_range_is_refused(address):
    with pytest.raises(BlockedUrl):
        check_address(address, DEFAULT)


@pytest.mark.parametrize(
    "address", ["fe80::1%eth0", "2606:4700::1111%1", "::1%lo", "::ffff:8.8.8.8%2"]
)
def test_scope_ids_are_refused_whatever_is_allowed(address):
    policy = GuardPolicy(allow_private_networks=True, allowed_networks=(ip_network("::/0"),))
    with pytest.raises(BlockedUrl):
        check_address(address, policy)


def test_e17_link_local_aaaa_has_a_clear_reason():
    with pytest.raises(BlockedUrl, match=r"fe80::1: outside 2000::/3"):
        check_address("fe80::1", DEFAULT)


def test_e22_reason_names_the_guard_and_the_setting():
    with pytest.raises(BlockedUrl) as caught:
        check_url("https://192.168.1.5/hook", DEFAULT)
    assert "SSRF guard" in str(caught.value)
    assert "192.168.0.0/16" in str(caught.value)
    assert "allow_private_networks" in str(caught.value)
    assert caught.value.public_reason == "blocked"
    with pytest.raises(BlockedUrl, match="allow_http"):
        check_url("http://h.example/", DEFAULT)


def test_allowed_networks_permit_exactly_those():
    policy = GuardPolicy(allowed_networks=(ip_network("192.168.7.0/24"), ip_network("fd12::/16")))
    assert check_address("192.168.7.1", policy) == IPv4Address("192.168.7.1")
    assert check_address("::ffff:192.168.7.1", policy)
    assert check_address("fd12::1", policy)
    for refused in ("192.168.8.1", "fd13::1"):
        with pytest.raises(BlockedUrl):
            check_address(refused, policy)


def test_refused_networks_win_over_everything():
    policy = GuardPolicy(
        allow_private_networks=True,
        allowed_networks=(ip_network("0.0.0.0/0"), ip_network("::/0")),
        refused_networks=(ip_network("8.8.8.0/24"), ip_network("2606:4700::/32")),
    )
    for refused in ("8.8.8.8", "::ffff:8.8.8.8", "2606:4700::1"):
        with pytest.raises(BlockedUrl, match="refused_networks"):
            check_address(refused, policy)


@pytest.mark.parametrize(
    ("prefix", "embedded"),
    [
        ("64:ff9b::/96", "64:ff9b::{0:02x}{1:02x}:{2:02x}{3:02x}"),
        ("2001:db8::/32", "2001:db8:{0:02x}{1:02x}:{2:02x}{3:02x}::"),
        ("2001:db8:100::/40", "2001:db8:1{0:02x}:{1:02x}{2:02x}:{3:02x}::"),
        ("2001:db8:122::/48", "2001:db8:122:{0:02x}{1:02x}:{2:02x}:{3:02x}00::"),
        ("2001:db8:122:300::/56", "2001:db8:122:3{0:02x}:{1:02x}:{2:02x}{3:02x}::"),
        ("2001:db8:122:344::/64", "2001:db8:122:344:{0:02x}:{1:02x}{2:02x}:{3:02x}00::"),
    ],
)
def test_nat64_prefixes_are_judged_by_the_embedded_address(prefix, embedded):
    policy = GuardPolicy(nat64_prefixes=(ip_network(prefix),))
    good = embedded.format(*IPv4Address("8.8.4.4").packed)
    bad = embedded.format(*IPv4Address("169.254.169.254").packed)
    assert check_address(good, policy) == ip_address(good)
    with pytest.raises(BlockedUrl, match=r"169\.254\.169\.254"):
        check_address(bad, policy)
    with pytest.raises(BlockedUrl):
        check_address(good, DEFAULT)


def test_nat64_prefix_of_another_length_is_an_error():
    with pytest.raises(ValueError, match="nat64_prefixes"):
        GuardPolicy(nat64_prefixes=(ip_network("64:ff9b::/95"),))


@pytest.mark.parametrize(
    "url",
    [
        *("https://localhost/", "https://127.0.0.1:8080/", "https://[::1]/", "https://receiver/"),
        *("https://10.1.2.3/", "https://db.internal/", "https://[fd00::1]/", "https://100.64.0.1/"),
    ],
)
def test_allow_private_networks_opens_private_use(url):
    check_url(url, GuardPolicy(allow_private_networks=True))
    with pytest.raises(BlockedUrl):
        check_url(url, DEFAULT)


@pytest.mark.parametrize(
    "url",
    [
        *("https://169.254.169.254/", "https://[fd00:ec2::254]/", "https://100.100.100.200/"),
        *("https://168.63.129.16/", "https://0.0.0.0/", "https://[::]/", "https://224.0.0.1/"),
        *("https://[fe80::1]/", "https://[ff02::1]/", "https://192.0.0.192/", "http://10.0.0.1/"),
    ],
)
def test_allow_private_networks_keeps_metadata_and_multicast_shut(url):
    with pytest.raises(BlockedUrl):
        check_url(url, GuardPolicy(allow_private_networks=True))


def test_allowed_hosts_permit_local_names_but_not_their_addresses():
    policy = GuardPolicy(allowed_hosts=("receiver", ".svc", "printer.local"))
    for good in ("receiver", "RECEIVER", "a.b.svc", "printer.local", "a.svc."):
        check_url(f"https://{good}/", policy)
    for bad in ("receiver2", "svc", "asvc", "x.printer.local", "localhost", "a.internal"):
        with pytest.raises(BlockedUrl, match="allowed_hosts"):
            check_url(f"https://{bad}/", policy)
    with pytest.raises(BlockedUrl):
        check_address("10.0.0.1", policy)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h.example/a?token=1", "https://h.example/a"),
        ("https://u:p@h.example/a@b#frag", "https://h.example/a@b"),
        ("https://h.example/a\x1b[31m\n", "https://h.example/a\ufffd[31m\ufffd"),
        ("u:p@h.example", "h.example"),
        ("", ""),
    ],
)
def test_display_url(url, shown):
    assert display_url(url) == shown


urls = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(["https://", "http://", "https:", "HTTPS://", "//", "https://u:p@"]),
    st.one_of(
        st.text(max_size=20),
        st.sampled_from(
            ["h.example", "127.0.0.1", "[::1]", "①.example", "xn--a.example", "a.\u0661"]
        ),
        st.ip_addresses(v=4).map(str),
        st.ip_addresses(v=6).map("[{}]".format),
    ),
    st.one_of(st.just(""), st.integers(-1, 70000).map(":{}".format)),
    st.sampled_from(["", "/", "?", "#"]),
    st.text(max_size=20),
)


@given(
    st.one_of(st.text(), urls),
    st.sampled_from([DEFAULT, HTTP, GuardPolicy(allow_http=True, allow_private_networks=True)]),
)
@example("https://\udcff.example/", DEFAULT)
@example("https://" + "\u0661" * 300 + ".example/", DEFAULT)
def test_any_text_is_judged_and_nothing_but_blocked_url_is_raised(url, policy):
    display_url(url)
    try:
        checked = check_url(url, policy)
    except BlockedUrl:
        return
    assert check_url(checked.url, policy) == checked
    assert checked.url.isascii()
    parts = urlsplit(checked.url)
    assert (parts.scheme, parts.hostname) == (checked.scheme, checked.host)
    assert (parts.port or {"http": 80, "https": 443}[parts.scheme]) == checked.port
    assert parts.username is None
    assert (parts.path, parts.query) == (
        checked.target.partition("?")[0],
        checked.target.partition("?")[2],
    )


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str) | st.text(max_size=40))
def test_any_address_is_judged(address):
    try:
        parsed = check_address(address, DEFAULT)
    except BlockedUrl:
        return
    assert parsed.version == 4 or parsed in ip_network("2000::/3") or parsed.ipv4_mapped
    assert not parsed.is_loopback
    assert not parsed.is_multicast
