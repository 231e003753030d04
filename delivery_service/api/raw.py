"""Stored bodies inside JSON answers, byte for byte."""

from __future__ import annotations

import base64
import json
from typing import NoReturn

from pydantic import BaseModel


def with_body(shown: BaseModel, body: bytes, *, encoded: bool = False) -> bytes:
    """Return the JSON of ``shown`` with the members ``body`` and ``body_base64`` filled.

    A body that is JSON stands in the document as it is; another one, or with ``encoded`` any,
    goes in as base64.
    """
    head = shown.model_dump_json(exclude={"body", "body_base64"})[:-1].encode()
    if not encoded and _is_json(body):
        return b'%b,"body_base64":null,"body":%b}' % (head, body)
    other = json.dumps(base64.b64encode(body).decode()).encode()
    return b'%b,"body_base64":%b,"body":null}' % (head, other)


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body.decode(), parse_int=str, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
