"""Routes of the API: the key is checked before the body is read, and JSON is read strictly."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from inspect import signature
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from delivery_service.api.auth import PUBLISHERS, authenticate, check_scope
from delivery_service.api.problems import Problem, responses
from wire.errors import EnvelopeError
from wire.rawjson import RawJson, parse_strictly, raw_items, raw_members

JSON = "application/json"
_HEADERS = {"key": "idempotency-key", "trace": "traceparent"}


class JsonRequest(Request):
    """A request whose JSON is UTF-8 without lone surrogates, NaN or endless numbers."""

    def parse(self, text: str) -> Any:
        """Return the value of the body. Raises `wire.errors.EnvelopeError`."""
        return parse_strictly(text)

    async def json(self) -> Any:
        """Return the body's value, or raise the problem 400."""
        body = await self.body()
        try:
            return self.parse(body.decode("utf-8"))
        except UnicodeDecodeError as error:
            detail = f"The body is not valid UTF-8 at byte {error.start}."
        except EnvelopeError as error:
            detail = f"The body is not acceptable: {str(error).partition(': ')[2]}."
        raise Problem(400, "malformed", detail)


class RawMembersRequest(JsonRequest):
    """A request whose member ``data`` stays the text that it is (`wire.RawJson`)."""

    def parse(self, text: str) -> Any:
        """Return the body's members."""
        return _members(text, raw="data")


class BatchRequest(JsonRequest):
    """A request whose member ``events`` is a list of such members."""

    def parse(self, text: str) -> Any:
        """Return the body's members."""
        members = _members(text, raw="events")
        if isinstance(members, dict) and isinstance(members.get("events"), RawJson):
            events = members["events"]
            if events.content.startswith(b"["):
                members["events"] = [
                    _split(item, raw="data") if item.content.startswith(b"{") else _value(item)
                    for item in raw_items(events)
                ]
        return members


def _members(text: str, raw: str) -> Any:
    """Parse JSON, but keep the member ``raw`` of an object as the text that it is."""
    if not text.lstrip(" \t\r\n").startswith("{"):
        return parse_strictly(text)
    return _kept(raw_members(text), raw)


def _split(item: RawJson, raw: str) -> Any:
    return _kept(raw_members(item), raw)


def _kept(members: dict[str, RawJson], raw: str) -> dict[str, Any]:
    return {name: member if name == raw else _value(member) for name, member in members.items()}


def _value(part: RawJson) -> Any:
    # A part of what was parsed strictly.
    return json.loads(part.content)


class KeyedRoute(APIRoute):
    """A route that needs an API key."""

    request_class: type[JsonRequest] = JsonRequest

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler that FastAPI makes."""
        handle = super().get_route_handler()
        request_class = self.request_class
        takes_json = self.body_field is not None

        async def handle_keyed(request: Request) -> Response:
            await authenticate(request, request.app.state.surehook)
            if takes_json:
                _check_content_type(request)
            return await handle(request_class(request.scope, request.receive))

        return handle_keyed


class RawMembersRoute(KeyedRoute):
    """A route that needs an API key and takes ``data`` as it is."""

    request_class = RawMembersRequest


def publishing_route(model: type[BaseModel], reads: type[JsonRequest]) -> type[KeyedRoute]:
    """Return a class of routes that publish: ``endpoint(context, caller, body)`` is called
    with the body, and with the headers that it has parameters ``key`` and ``trace`` for.

    What FastAPI does for each request, to find out what a function wants and to give it, took
    a third of the time of a publish. The documentation still comes from the function's signature,
    and so must the names of its parameters.
    """

    class PublishingRoute(KeyedRoute):
        request_class = reads

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            publish = self.endpoint
            taken = signature(publish).parameters.keys() & _HEADERS.keys()

            async def handle(request: Request) -> Response:
                context = request.app.state.surehook
                caller = await authenticate(request, context)
                check_scope(caller, PUBLISHERS)
                _check_content_type(request)
                body = await _validated(reads(request.scope, request.receive), model)
                headers = {name: request.headers.get(_HEADERS[name]) for name in taken}
                response: Response = await publish(context, caller, body, **headers)
                return response

            return handle

    return PublishingRoute


async def _validated(request: JsonRequest, model: type[BaseModel]) -> BaseModel:
    if not await request.body():
        raise RequestValidationError([{"loc": ("body",), "msg": "Field required"}])
    try:
        return model.model_validate(await request.json())
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError(
            [{**fault, "loc": ("body", *fault["loc"])} for fault in faults]
        ) from None


def _check_content_type(request: Request) -> None:
    headers = request.headers
    given = headers.get("content-type")
    is_empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
    if given is None and is_empty:
        return
    if (given or "").partition(";")[0].strip().lower() != JSON:
        raise Problem(415, "unsupported-media-type", f"The content type must be {JSON}.")


def router(tag: str, route_class: type[KeyedRoute] = KeyedRoute) -> APIRouter:
    """Return a router for the operations of one resource."""
    return APIRouter(
        prefix="/v1",
        tags=[tag],
        route_class=route_class,
        responses=responses(401, 403, 422, 429, 500, 503),
    )


def body_problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of problems of an operation that takes a body."""
    return responses(400, 413, 415, *statuses)
