"""TLS to real servers: pinned address, name and certificate checks, exact reasons."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import ssl

import aiohttp
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from delivery_service.net.aiohttp_failures import classify_aiohttp
from delivery_service.net.failures import failed
from delivery_service.net.progress import Phase
from delivery_service.net.tls import TlsSettings, TlsSettingsError, build_context
from delivery_service.net.transport import PreparedRequest
from delivery_service.policy.outcome import OutcomeKind
from tests.net.conftest import names
from tests.net.receivers import receiver, until

LONG_AGO = dt.datetime(2001, 1, 1, tzinfo=dt.UTC)
LAST_YEAR = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def server(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)
    return context


def post(url: str, tls: TlsSettings | None = None) -> PreparedRequest:
    return PreparedRequest(url, {"content-type": "application/json"}, b'{"n":1}', tls)


def pem(authority: trustme.CA) -> str:
    return authority.cert_pem.bytes().decode()


def settings(certificate: trustme.LeafCert, authority: trustme.CA) -> TlsSettings:
    chain = "".join(blob.bytes().decode() for blob in certificate.cert_chain_pems)
    return TlsSettings(chain, certificate.private_key_pem.bytes().decode(), pem(authority))


async def test_e21_e26_pinned_address_keeps_name_in_sni_and_host(
    make_transport, authority, trusting
):
    # The certificate knows the name only: verification of the address would fail.
    tls = server(authority.issue_cert("hooks.example"))
    transport = make_transport(tls=trusting, lookup=names(hooks_example="127.0.0.7"))
    async with receiver(tls=tls, host="127.0.0.7") as seen:
        url = seen.url(scheme="https")
        outcomes = [await transport.send(post(url), 5.0) for _ in range(2)]
    assert all(outcome.delivered for outcome in outcomes), outcomes
    assert seen.server_names == ["hooks.example"]
    assert f"host: hooks.example:{seen.port}".encode() in seen.requests[0][0].lower()
    assert (seen.connections, len(seen.requests)) == (1, 2)


async def test_e26_each_name_gets_its_own_sni_and_connection(make_transport, authority, trusting):
    tls = server(authority.issue_cert("*.hooks.example"))
    transport = make_transport(tls=trusting)
    async with receiver(tls=tls) as seen:
        for host in ("a.hooks.example", "b.hooks.example", "a.hooks.example"):
            outcome = await transport.send(post(seen.url(host, scheme="https")), 5.0)
            assert outcome.delivered, outcome
    assert seen.server_names == ["a.hooks.example", "b.hooks.example"]


async def test_literal_address_needs_it_in_the_certificate(make_transport, authority, trusting):
    transport = make_transport(tls=trusting)
    async with receiver(tls=server(authority.issue_cert("127.0.0.1"))) as seen:
        assert (await transport.send(post(seen.url("127.0.0.1", scheme="https")), 5.0)).delivered
    async with receiver(tls=server(authority.issue_cert("hooks.example"))) as seen:
        outcome = await transport.send(post(seen.url("127.0.0.1", scheme="https")), 5.0)
    assert outcome.kind is OutcomeKind.TLS
    assert "IP address mismatch" in outcome.error


def self_signed(name: str) -> trustme.LeafCert:
    key = ec.generate_private_key(ec.SECP256R1())
    return leaf(certificate(name, key, name, key), key)


def certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    not_after: dt.datetime | None = None,
    *,
    ca: bool = False,
    complete: bool = True,
) -> x509.Certificate:
    """``complete``: with all that RFC 5280 asks for."""
    builder = x509.CertificateBuilder(
        subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
        issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=LONG_AGO,
        not_valid_after=not_after or dt.datetime(2100, 1, 1, tzinfo=dt.UTC),
    )
    constraints = x509.BasicConstraints(ca=ca, path_length=None)
    builder = builder.add_extension(constraints, critical=True)
    if complete:
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        ).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    if ca and complete:
        uses = dict.fromkeys(inspect.signature(x509.KeyUsage).parameters, False)
        usage = x509.KeyUsage(**{**uses, "key_cert_sign": True})
        builder = builder.add_extension(usage, critical=True)
    if not ca:
        names_of = x509.SubjectAlternativeName([x509.DNSName(name)])
        builder = builder.add_extension(names_of, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def leaf(own: x509.Certificate, key: ec.EllipticCurvePrivateKey, *chain: x509.Certificate):
    return trustme.LeafCert(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        own.public_bytes(Encoding.PEM),
        [above.public_bytes(Encoding.PEM) for above in chain],
    )


def expired_intermediate() -> tuple[trustme.LeafCert, ssl.SSLContext]:
    root, middle, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    root_certificate = certificate("root", root, "root", root, ca=True)
    middle_certificate = certificate("middle", middle, "root", root, LAST_YEAR, ca=True)
    own_certificate = certificate("hooks.example", own, "middle", middle)
    context = ssl.create_default_context(
        cadata=root_certificate.public_bytes(Encoding.PEM).decode()
    )
    return leaf(own_certificate, own, middle_certificate), context


BAD_CERTIFICATES = {
    "wrong name": "Hostname mismatch, certificate is not valid for 'hooks.example'",
    "expired": "certificate has expired",
    "expired intermediate": "certificate has expired",
    "self-signed": "self-signed certificate",
    "unknown authority": "unable to get local issuer certificate",
}


@pytest.mark.parametrize("fault", BAD_CERTIFICATES)
async def test_e21_e25_bad_certificate_is_tls_with_the_exact_reason(
    make_transport, authority, trusting, fault
):
    if fault == "wrong name":
        bad = authority.issue_cert("other.example")
    elif fault == "expired":
        bad = authority.issue_cert("hooks.example", not_before=LONG_AGO, not_after=LAST_YEAR)
    elif fault == "expired intermediate":
        bad, trusting = expired_intermediate()
    elif fault == "self-signed":
        bad = self_signed("hooks.example")
    else:
        bad = trustme.CA().issue_cert("hooks.example")
    transport = make_transport(tls=trusting)
    async with receiver(tls=server(bad)) as seen:
        outcome = await transport.send(post(seen.url(scheme="https")), 5.0)
    assert outcome.kind is OutcomeKind.TLS
    assert f"certificate verify failed: {BAD_CERTIFICATES[fault]}" in outcome.error
    assert not outcome.may_have_arrived
    assert outcome.public_error == outcome.error
    assert seen.requests == []


async def test_closed_in_the_handshake_is_tls(transport):
    async def hang_up(reader, writer):
        await reader.read(10)
        writer.close()

    async def talk_plain(reader, writer):
        writer.write(b"220 mail.example ESMTP\r\n")
        await reader.read()

    async def answer_plain(reader, writer):
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        await reader.read()

    for behaviour in (hang_up, talk_plain, answer_plain):
        async with receiver(behaviour) as seen:
            outcome = await transport.send(post(seen.url(scheme="https")), 5.0)
        assert outcome.kind is OutcomeKind.TLS, outcome
        assert not outcome.may_have_arrived


async def test_slow_handshake_ends_at_the_deadline(transport):
    async def stall(reader, writer):
        await reader.read(65536)
        await reader.read()

    async with receiver(stall) as slow:
        outcome = await transport.send(post(slow.url(scheme="https")), 0.3)
        await until(lambda: slow.closed == 1)
    assert outcome.kind is OutcomeKind.TIMEOUT
    assert not outcome.may_have_arrived


async def test_slow_handshakes_end_at_the_deadline_200_at_once(make_aiohttp):
    async def stall(reader, writer):
        await reader.read()

    transport = make_aiohttp()
    async with receiver(stall) as slow, receiver() as good:
        outcomes = await asyncio.gather(
            *(transport.send(post(slow.url(scheme="https")), 1.0) for _ in range(200))
        )
        assert {outcome.kind for outcome in outcomes} == {OutcomeKind.TIMEOUT}
        assert not any(outcome.may_have_arrived for outcome in outcomes)
        assert "handshake" in outcomes[0].error
        assert (await transport.send(post(good.url()), 5.0)).delivered
        await until(lambda: slow.closed == slow.connections)


async def test_connect_timeout_is_named(make_transport):
    async def stall(reader, writer):
        await reader.read()

    transport = make_transport(connect_timeout=0.1)
    async with receiver(stall) as slow:
        outcome = await transport.send(post(slow.url(scheme="https")), 5.0)
    assert outcome.kind is OutcomeKind.TIMEOUT
    assert "connect_timeout" in outcome.error
    assert not outcome.may_have_arrived


async def test_private_ca_and_client_certificate(make_transport, authority):
    private = trustme.CA()
    tls = server(private.issue_cert("hooks.example"))
    private.configure_trust(tls)
    tls.verify_mode = ssl.CERT_REQUIRED
    with_both = settings(private.issue_cert("surehook@platform.example"), private)
    ca_only = TlsSettings(private_ca=pem(private))
    transport = make_transport()
    async with receiver(tls=tls) as seen:
        url = seen.url(scheme="https")
        public = await transport.send(post(url), 5.0)
        assert public.kind is OutcomeKind.TLS
        for _ in range(2):
            assert (await transport.send(post(url, with_both), 5.0)).delivered
        # Never over a connection that was opened with the other endpoint's certificate.
        uncertified = await transport.send(post(url, ca_only), 5.0)
        # The alert may be overtaken by the reset of the connection it is sent on.
        assert uncertified.kind in {OutcomeKind.TLS, OutcomeKind.PROTOCOL}, uncertified
        assert (await transport.send(post(url, with_both), 5.0)).delivered
    assert len(seen.requests) == 3


async def test_private_ca_may_be_older_than_rfc_5280(make_transport):
    root, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = certificate("root", root, "root", root, ca=True, complete=False)
    tls = server(leaf(certificate("hooks.example", own, "root", root, complete=False), own))
    trusted = TlsSettings(private_ca=authority.public_bytes(Encoding.PEM).decode())
    async with receiver(tls=tls) as seen:
        outcome = await make_transport().send(post(seen.url(scheme="https"), trusted), 5.0)
    assert outcome.delivered, outcome


def test_alert_after_the_handshake_is_tls():
    alert = aiohttp.ClientOSError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]")
    alert.__cause__ = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]")
    outcome = failed(alert, Phase.ANSWER, classify_aiohttp, deadline=5.0, duration=0.1)
    assert outcome.kind is OutcomeKind.TLS
    assert "CERTIFICATE_REQUIRED" in outcome.error
    assert outcome.may_have_arrived


async def test_private_ca_replaces_the_public_ones(make_transport, authority, trusting):
    transport = make_transport(tls=trusting)
    async with receiver(tls=server(authority.issue_cert("hooks.example"))) as seen:
        url = seen.url(scheme="https")
        assert (await transport.send(post(url), 5.0)).delivered
        other = TlsSettings(private_ca=pem(trustme.CA()))
        assert (await transport.send(post(url, other), 5.0)).kind is OutcomeKind.TLS


async def test_unusable_settings_are_an_outcome(transport):
    async with receiver() as seen:
        outcome = await transport.send(post(seen.url(), TlsSettings(private_ca="nonsense")), 5.0)
    assert outcome.kind is OutcomeKind.TLS
    assert "private_ca" in outcome.error


def test_settings_errors_name_the_field(authority):
    good = settings(authority.issue_cert("a.example"), authority)
    for bad, field in [
        (TlsSettings(private_ca=""), "private_ca"),
        (TlsSettings(private_ca=" \n"), "private_ca"),
        (TlsSettings(private_ca="é"), "private_ca"),
        (TlsSettings(client_certificate=good.client_certificate), "client_key"),
        (TlsSettings(client_key=good.client_key), "client_certificate"),
        (TlsSettings(good.client_certificate, "nonsense"), "client_key"),
        (TlsSettings("nonsense", good.client_key), "client_certificate"),
    ]:
        with pytest.raises(TlsSettingsError, match=field) as caught:
            build_context(bad)
        assert "PRIVATE KEY" not in str(caught.value)
    assert "PRIVATE KEY" not in repr(good)
    assert build_context(good).verify_mode is ssl.CERT_REQUIRED


async def test_e23_tunnel_through_a_proxy_still_verifies_the_name(
    make_transport, authority, trusting
):
    tls = server(authority.issue_cert("hooks.example"))
    requests: list[bytes] = []

    async def pump(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)

    async def connect(reader, writer):
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", seen.port)
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        try:
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        finally:
            far_writer.transport.abort()

    async with receiver(tls=tls) as seen, receiver(connect) as proxy:
        transport = make_transport(proxy=proxy.url("127.0.0.1", ""), tls=trusting)
        outcome = await transport.send(post("https://hooks.example/in"), 5.0)
        assert outcome.delivered, outcome
        outcome = await transport.send(post("https://other.example/in"), 5.0)
        assert outcome.kind is OutcomeKind.TLS
        assert "Hostname mismatch" in outcome.error
    assert requests[0].startswith(b"CONNECT hooks.example:443 HTTP/1.1\r\n")
    assert seen.server_names == ["hooks.example", "other.example"]
