"""Secrets at rest: Fernet (AES-128-CBC and HMAC-SHA256) under one or more keys."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from delivery_service.settings import Settings, SettingsError

KEY_FILE_MODE = 0o600

_NO_KEY = (
    "a stored secret can't be decrypted: encryption_keys lacks the key that it was encrypted with"
)


class Sealer:
    """Encrypts with the first key, decrypts with any (so keys can be rotated)."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Raise `SettingsError` when there is no key or one is not a Fernet key."""
        if not keys:
            raise SettingsError(
                "encryption_keys is empty: set SUREHOOK_ENCRYPTION_KEYS to a key made with"
                " `surehook keys encryption`, and keep it safe: without it no secret can be read"
            )
        try:
            each = [Fernet(key) for key in keys]
        except ValueError as error:
            raise SettingsError(
                "encryption_keys: each key must be 32 bytes in URL-safe base64, as"
                " `surehook keys encryption` makes them"
            ) from error
        self._first = each[0]
        self._fernet = MultiFernet(each)

    def seal(self, value: str) -> bytes:
        """Encrypt text."""
        return self._fernet.encrypt(value.encode())

    def open(self, sealed: bytes) -> str:
        """Decrypt text. Raises `SettingsError` when none of the keys fits."""
        try:
            return self._fernet.decrypt(sealed).decode()
        except InvalidToken as error:
            raise SettingsError(_NO_KEY) from error

    def seal_json(self, value: Any) -> bytes | None:
        """Encrypt a JSON value; nothing for an empty one."""
        return self.seal(json.dumps(value)) if value else None

    def open_json(self, sealed: bytes | None) -> Any:
        """Decrypt what `seal_json` made."""
        return None if sealed is None else json.loads(self.open(sealed))

    def reseal(self, sealed: bytes) -> bytes:
        """Encrypt under the first key what any key can decrypt. Raises `SettingsError` when none
        of the keys fits."""
        try:
            return self._fernet.rotate(sealed)
        except InvalidToken as error:
            raise SettingsError(_NO_KEY) from error

    def is_current(self, sealed: bytes) -> bool:
        """Whether it is the first key that this was encrypted under."""
        try:
            self._first.decrypt(sealed)
        except InvalidToken:
            return False
        return True


def generate_encryption_key() -> str:
    """Return a fresh key for ``encryption_keys``."""
    return Fernet.generate_key().decode()


def sealer_for(settings: Settings) -> Sealer:
    """Build the sealer that the settings ask for.

    For SQLite without ``encryption_keys``, a key file beside the database is used, and created
    with mode 0600 if it is missing.
    """
    keys = [key.get_secret_value() for key in settings.encryption_keys]
    if not keys and settings.is_sqlite:
        database = settings.async_database_url.database
        keys = [_key_from_file(Path(f"{database or 'surehook'}.key"))]
    return Sealer(keys)


def _key_from_file(path: Path) -> str:
    if not path.exists():
        _create_key_file(path)
    key = path.read_text().strip()
    if not key:
        raise SettingsError(f"encryption key file {path} is empty; restore it from a backup")
    return key


def _create_key_file(path: Path) -> None:
    # Written aside and linked into place, so that two processes that start at once end up with
    # the same, whole key.
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, KEY_FILE_MODE)
            file.write(generate_encryption_key())
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(aside, path)
    finally:
        Path(aside).unlink()
