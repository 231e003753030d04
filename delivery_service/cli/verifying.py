"""Verifies a request as a receiver of a given header profile does."""

from __future__ import annotations

from collections.abc import Sequence

from wire.body_signature import verify_hmac_sha256_hex
from wire.errors import SurehookError, VerificationError
from wire.profiles import HeaderProfile, SignatureScheme
from wire.secrets import Secret
from wire.signature import HeaderNames, Reason, verify

Headers = Sequence[tuple[str, str]]


class Verifying:
    """A header profile under one prefix, and the secrets in force."""

    def __init__(self, profile: HeaderProfile, prefix: str, secrets: Sequence[Secret]) -> None:
        self._scheme = profile.scheme
        self._names = profile.names(prefix)
        self._secrets = list(secrets)

    @property
    def checks(self) -> bool:
        """Whether there is a secret to verify with."""
        return bool(self._secrets)

    def named(self, headers: Headers) -> dict[str, str]:
        """Return the values of the profile's headers by field, without the signature."""
        given = {name.lower(): value for name, value in headers}
        return {
            field: given[name.lower()]
            for field, name in self._names.items()
            if field != "signature" and name.lower() in given
        }

    def fault(self, headers: Headers, body: bytes) -> str | None:
        """Say why a request does not verify; None if it does."""
        if not self._secrets:
            return "no --secret was given"
        try:
            if self._scheme is SignatureScheme.STANDARD:
                names = HeaderNames(*(self._names[f] for f in ("id", "timestamp", "signature")))
                verify(self._secrets, headers, body, header_names=names)
            else:
                texts = [secret.reveal() for secret in self._secrets]
                verify_hmac_sha256_hex(texts, self._only(headers, "signature"), body)
        except VerificationError as error:
            return f"{error} ({error.reason})"
        except SurehookError as error:
            return str(error)
        return None

    def _only(self, headers: Headers, field: str) -> str | None:
        name = self._names[field]
        given = [value for key, value in headers if key.lower() == name.lower()]
        if len(given) > 1:
            raise VerificationError(
                Reason.HEADER_REPEATED, f"the header {name} occurs more than once"
            )
        return given[0] if given else None
