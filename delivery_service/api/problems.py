"""Errors as RFC 9457 problem documents: one shape for every answer that is not a success."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"
TYPE = "urn:surehook:problem:"
REQUEST_ID = "surehook.request_id"
"""Key of the ASGI scope that holds the id of the request."""
EXTRA_HEADERS = "surehook.headers"
"""Key of the ASGI scope that holds headers to add to whatever is answered."""

_INVALID = "invalid"
_MESSAGE_PREFIXES = ("Value error, ", "Assertion failed, ")
logger = logging.getLogger(__name__)


class Problem(HTTPException):
    """An answer other than success.

    ``code`` is the stable last part of the problem's ``type``; ``detail`` is for people and never
    holds a secret. ``errors`` names the faulty members, ``members`` are extra members of the
    document.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(status, detail, dict(headers) if headers else None)
        self.code = code
        self.errors = errors
        self.members = members or {}


class FieldError(BaseModel):
    """One thing that is wrong with a request."""

    in_: str = Field(
        alias="in",
        description="Where it is: `body`, `query`, `path` or `header`.",
        examples=["body"],
    )
    pointer: str = Field(
        description="JSON pointer to it, as a URI fragment (RFC 6901); the name, for a parameter.",
        examples=["#/event_types/0"],
    )
    detail: str = Field(description="What is wrong with it.")


class ProblemDocument(BaseModel):
    """RFC 9457 problem details."""

    model_config = ConfigDict(title="Problem", extra="allow")

    type: str = Field(description="Stable URI of the kind of problem.", examples=[TYPE + _INVALID])
    title: str = Field(description="The HTTP status in words.", examples=["Unprocessable Content"])
    status: int = Field(description="The HTTP status.", examples=[422])
    detail: str = Field(description="What happened, and what to change.")
    instance: str = Field(
        description="This occurrence; the answer's `X-Request-Id` with a URN in front.",
        examples=["urn:surehook:request:req_01K"],
    )
    errors: list[FieldError] | None = Field(None, description="The faulty members of the request.")


def not_found(what: str) -> Problem:
    """The problem for something that is not there, or not the caller's."""
    return Problem(404, "not-found", f"There is no such {what}.")


def conflict(code: str, detail: str) -> Problem:
    """The problem for something that can't be done in the present state."""
    return Problem(409, code, detail)


def invalid(pointer: str, detail: str, where: str = "body") -> Problem:
    """The problem for one member of a request that can't be used."""
    return invalid_request([{"in": where, "pointer": pointer, "detail": detail}])


def invalid_request(errors: Sequence[Mapping[str, str]]) -> Problem:
    """The problem for members of a request that can't be used."""
    summary = "; ".join(f"{error['pointer']}: {error['detail']}" for error in errors[:3])
    return Problem(422, _INVALID, f"The request is not valid: {summary}", errors=errors)


def render(problem: Problem, request_id: str) -> Response:
    """Return the answer for a problem."""
    document: dict[str, Any] = {
        "type": TYPE + problem.code,
        "title": _title(problem.status_code),
        "status": problem.status_code,
        "detail": problem.detail,
        "instance": f"urn:surehook:request:{request_id}",
    }
    if problem.errors:
        document["errors"] = list(problem.errors)
    # Escaped to ASCII: texts from a request may hold what UTF-8 can't, such as lone surrogates.
    content = json.dumps({**document, **problem.members})
    return Response(content, problem.status_code, problem.headers, MEDIA_TYPE)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of problem answers, for OpenAPI."""
    reference = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {
            "description": f"{_title(status)}: {_MEANINGS[status]}",
            "content": {MEDIA_TYPE: {"schema": reference}},
        }
        for status in statuses
    }


def install(app: FastAPI) -> None:
    """Make every error of an application a problem document."""
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid)


def _title(status: int) -> str:
    return HTTPStatus(status).phrase


async def _on_http_exception(request: Request, error: Exception) -> Response:
    if isinstance(error, Problem):
        return render(error, request.scope[REQUEST_ID])
    assert isinstance(error, HTTPException)  # noqa: S101 - what the handler is registered for
    details = {
        404: ("not-found", "There is nothing at this address."),
        405: ("method-not-allowed", f"{request.method} is not possible at this address."),
    }
    code, detail = details.get(error.status_code, ("bad-request", error.detail))
    problem = Problem(error.status_code, code, detail, headers=error.headers)
    return render(problem, request.scope[REQUEST_ID])


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    problem = invalid_request([_field_error(fault) for fault in error.errors()])
    return render(problem, request.scope[REQUEST_ID])


def _field_error(fault: Mapping[str, Any]) -> dict[str, str]:
    # The input is left out: it may be a secret.
    where, *path = fault["loc"]
    detail = str(fault["msg"])
    for prefix in _MESSAGE_PREFIXES:
        detail = detail.removeprefix(prefix)
    steps = "".join("/" + _escape(str(step)) for step in path)
    return {"in": str(where), "pointer": f"#{steps}", "detail": detail}


def _escape(step: str) -> str:
    return step[:64].replace("~", "~0").replace("/", "~1")


_MEANINGS = {
    400: "the body is not JSON in UTF-8, or a header can't be read.",
    401: "the API key is missing, unknown, expired or revoked.",
    403: "the API key's scope does not allow this.",
    404: "there is no such thing, or it belongs to another tenant.",
    405: "the method is not possible at this address.",
    409: "not possible in the present state.",
    413: "the body is too large.",
    415: "the body must be `application/json`.",
    422: "a member or parameter can't be used; `errors` says which.",
    429: "too many requests.",
    500: "a fault of the service; its log has the request id.",
    503: "the service can't do this at the moment; try again.",
}
