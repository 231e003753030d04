"""TLS towards receivers: always verified, with an endpoint's own certificates where it has some."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from wire.errors import SurehookError

_CACHE_SIZE = 1000


class TlsSettingsError(SurehookError):
    """An endpoint's certificates can't be used; names the field."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """An endpoint's own TLS material, as PEM text.

    ``client_certificate`` (with its chain) and ``client_key`` (not encrypted) go together.
    ``private_ca`` replaces the public certificate authorities for this endpoint.
    """

    client_certificate: str | None = None
    client_key: str | None = field(default=None, repr=False)
    private_ca: str | None = None


def build_context(settings: TlsSettings | None = None) -> ssl.SSLContext:
    """Return a verifying client context; raises ``TlsSettingsError``.

    Reads the system's certificate authorities (some 10 ms), so not for the event loop's thread.
    """
    if settings is None:
        return ssl.create_default_context()
    if settings.private_ca is not None and not settings.private_ca.strip():
        # The ssl module would take an empty text for "the public authorities".
        raise TlsSettingsError("private_ca is empty")
    try:
        context = ssl.create_default_context(cadata=settings.private_ca)
    except (ssl.SSLError, ValueError, TypeError) as exc:
        raise TlsSettingsError(f"private_ca is not a PEM certificate: {exc}") from exc
    if settings.private_ca is not None:
        # Since Python 3.13, certificates must have all that RFC 5280 asks for, such as the key id
        # of their authority. One's own authority often leaves it out; it is no matter of trust.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if settings.client_certificate is None and settings.client_key is None:
        return context
    if settings.client_certificate is None or settings.client_key is None:
        raise TlsSettingsError("client_certificate and client_key must be set together")
    # The ssl module loads a key from a file only; the folder is private to this user.
    with tempfile.TemporaryDirectory(prefix="surehook-") as folder:
        path = Path(folder) / "client.pem"
        path.touch(mode=0o600)
        try:
            path.write_text(f"{settings.client_key}\n{settings.client_certificate}\n", "utf-8")
            # A password of our own keeps OpenSSL from asking for one on the terminal.
            context.load_cert_chain(path, password="")
        except (ssl.SSLError, ValueError) as exc:
            raise TlsSettingsError(
                "client_certificate and client_key are not a PEM certificate and its"
                f" unencrypted key: {exc}"
            ) from exc
    return context


class TlsContexts:
    """One context for each distinct `TlsSettings`, built off the event loop's thread.

    ``default`` is for endpoints without settings of their own; None builds the system's at once.
    """

    def __init__(self, default: ssl.SSLContext | None = None) -> None:
        self._contexts: dict[TlsSettings, ssl.SSLContext] = {}
        self.default = default or build_context()

    def ready(self, settings: TlsSettings | None) -> ssl.SSLContext | None:
        """Return the context if there is one already."""
        return self.default if settings is None else self._contexts.get(settings)

    async def get(self, settings: TlsSettings | None) -> ssl.SSLContext:
        """Return the context, built if need be; raises ``TlsSettingsError``."""
        context = self.ready(settings)
        if context is None and settings is not None:
            built = await asyncio.to_thread(build_context, settings)
            # Somebody else may have built the same meanwhile: the pool needs one for all.
            if len(self._contexts) >= _CACHE_SIZE:
                self._contexts.pop(next(iter(self._contexts)))
            context = self._contexts.setdefault(settings, built)
        return context or self.default
