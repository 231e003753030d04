"""Reading the contract that a Surehook service publishes, for `receiver.windows.check_memory`."""

from __future__ import annotations

import httpx

from receiver.errors import ConfigurationError
from wire.contract import MAX_CONTRACT_BYTES, Contract
from wire.errors import WireError

__all__ = ["fetch_contract"]

TIMEOUT = 10.0
"""Seconds for each step of the request."""


def fetch_contract(service: str, client: httpx.Client | None = None) -> Contract:
    """The contract of the Surehook service at `service`, such as ``https://hooks.example.com``.

    Reads ``/.well-known/webhooks``, at most 64 KiB of it, following no redirect. `client` is an
    httpx client to use in place of one of its own.

    Raises `ConfigurationError` when there is no contract to be had.
    """
    url = f"{service.rstrip('/')}/.well-known/webhooks"
    try:
        if client is not None:
            return Contract.from_json(_read(client, url))
        with httpx.Client(timeout=TIMEOUT) as own:
            return Contract.from_json(_read(own, url))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigurationError(f"no contract at {url}: {type(error).__name__}") from error
    except WireError as error:
        raise ConfigurationError(f"no contract at {url}: {error}") from error


def _read(client: httpx.Client, url: str) -> bytes:
    body = bytearray()
    headers = {"accept-encoding": "identity"}
    with client.stream("GET", url, headers=headers, follow_redirects=False) as response:
        if response.status_code != httpx.codes.OK:
            raise ConfigurationError(f"{url} answered {response.status_code}")
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > MAX_CONTRACT_BYTES:
                break
    return bytes(body)
