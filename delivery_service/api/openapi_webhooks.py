"""The catalogue as an OpenAPI 3.1 document with `webhooks`, and the other way round.

In the catalogue a schema is whole: what it refers to stands in its own ``$defs``. In the document
the parts stand among the components, where code generators look for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from wire.envelope import check_event_type
from wire.errors import EnvelopeError
from wire.version import VERSION

JSON = "application/json"
COMPONENTS = "#/components/schemas/"
DEFINITIONS = "#/$defs/"
ENVELOPE = frozenset({"id", "type", "timestamp", "data"})
MOST_PARTS = 200
"""Schemas that one event type may refer to."""
_COMPONENT_NAME = re.compile(r"[A-Za-z0-9._-]{1,256}")


class NotImportable(Exception):
    """A webhook can't become an event type; the message says why."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What a document says of one event type."""

    name: str
    description: str
    schema: dict[str, Any] | None
    example: Any


def exported(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the document of event types: rows of the catalogue."""
    components: dict[str, Any] = {}
    webhooks = {row["name"]: {"post": _webhook(row, components)} for row in rows}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Webhooks", "version": VERSION},
        "webhooks": webhooks,
    }
    return {**document, "components": {"schemas": components}} if components else document


def _webhook(row: Mapping[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    schema = {} if row["schema"] is None else _hoisted(row["name"], row["schema"], components)
    envelope = {
        "type": "object",
        "required": ["id", "type", "timestamp", "data"],
        "properties": {
            "id": {"type": "string"},
            "type": {"const": row["name"]},
            "timestamp": {"type": "string", "format": "date-time"},
            "data": schema,
        },
    }
    content: dict[str, Any] = {"schema": envelope}
    if row["example"] is not None:
        content["example"] = {
            "id": "evt_01KB8Q3ZP0F5T2M4W6X8Y0Z1A2",
            "type": row["name"],
            "timestamp": "2026-11-29T10:00:00Z",
            "data": row["example"],
        }
    return {
        "summary": row["name"],
        "description": row["description"],
        "requestBody": {"required": True, "content": {JSON: content}},
        "responses": {"2XX": {"description": "Accepted; anything else is sent again."}},
    }


def _hoisted(name: str, schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose ``$defs`` went to the components, under names of their own."""
    parts = schema.get("$defs")
    if not isinstance(parts, dict) or not all(_COMPONENT_NAME.fullmatch(part) for part in parts):
        return schema

    def moved(reference: str) -> str:
        rest = reference.removeprefix(DEFINITIONS)
        return reference if rest == reference else f"{COMPONENTS}{name}.{rest}"

    for part, definition in parts.items():
        components[f"{name}.{part}"] = _mapped(definition, moved)
    rest = {key: value for key, value in schema.items() if key != "$defs"}
    mapped: dict[str, Any] = _mapped(rest, moved)
    return mapped


def imported(document: Mapping[str, Any], name: str) -> Imported:
    """Return what a document says of the webhook ``name``. Raises `NotImportable`."""
    try:
        check_event_type(name)
    except EnvelopeError as error:
        raise NotImportable(str(error)) from None
    operation = _operation(document["webhooks"][name])
    content = _object(_object(operation.get("requestBody")).get("content"))
    media = _object(content.get(JSON))
    schema = _bundled(document, media["schema"]) if "schema" in media else None
    is_envelope = schema is not None and _is_envelope(schema)
    if schema is not None and is_envelope:
        data = schema["properties"]["data"]
        parts = {"$defs": schema["$defs"]} if "$defs" in schema else {}
        schema = {**data, **parts} if data or parts else None
    if schema is not None:
        _check_schema(schema)
    description = operation.get("description", operation.get("summary"))
    return Imported(
        name,
        description if isinstance(description, str) else "",
        schema,
        _example(media, is_envelope),
    )


def _operation(item: Any) -> Mapping[str, Any]:
    operation = _object(item).get("post")
    if not isinstance(operation, Mapping):
        raise NotImportable("it has no post operation")
    return operation


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_envelope(schema: Mapping[str, Any]) -> bool:
    properties = schema.get("properties")
    return (
        isinstance(properties, dict)
        and set(properties) == ENVELOPE
        and isinstance(properties["data"], dict)
    )


def _bundled(document: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """Return a schema with the components that it needs in its ``$defs``."""
    parts: dict[str, Any] = {}
    waiting: list[str] = []

    def moved(reference: str) -> str:
        if not reference.startswith(COMPONENTS):
            if reference.startswith("#/$defs/"):
                return reference
            raise NotImportable(f"it refers to {reference[:100]!r}, which is no component")
        name = reference.removeprefix(COMPONENTS)
        if name not in parts and name not in waiting:
            waiting.append(name)
        return DEFINITIONS + name

    components = _object(_object(document.get("components")).get("schemas"))
    bundled = _mapped(_followed(components, schema), moved)
    while waiting:
        name = waiting.pop()
        if name not in components or len(parts) == MOST_PARTS:
            raise NotImportable(f"it refers to {name[:100]!r}, which is no component")
        parts[name] = None
        parts[name] = _mapped(components[name], moved)
    if parts:
        bundled["$defs"] = {**_object(bundled.get("$defs")), **parts}
    return bundled  # type: ignore[no-any-return]


def _followed(components: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """Return a schema, or the component that is the whole of it."""
    seen: set[str] = set()
    while isinstance(schema, dict) and schema.keys() == {"$ref"}:
        reference = schema["$ref"]
        name = reference.removeprefix(COMPONENTS) if isinstance(reference, str) else ""
        if name in seen or name not in components:
            raise NotImportable(f"it refers to {str(reference)[:100]!r}, which is no component")
        seen.add(name)
        schema = components[name]
    if not isinstance(schema, dict):
        raise NotImportable("its schema is no object")
    return schema


def _mapped(value: Any, move: Callable[[str], str]) -> Any:
    """Return a schema with each ``$ref`` changed by ``move``."""
    if isinstance(value, list):
        return [_mapped(each, move) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: move(each) if key == "$ref" and isinstance(each, str) else _mapped(each, move)
        for key, each in value.items()
    }


def _check_schema(schema: dict[str, Any]) -> None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise NotImportable(f"its schema is not valid: {error.message[:200]}") from None


def _example(media: Mapping[str, Any], is_envelope: bool) -> Any:
    """The first example, of `data`."""
    found = media.get("example")
    if found is None:
        several = (_object(each).get("value") for each in _object(media.get("examples")).values())
        found = next((each for each in several if each is not None), None)
    if found is not None and is_envelope:
        return _object(found).get("data")
    return found
