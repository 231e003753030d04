"""The catalogue of event types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from delivery_service.api.schemas.common import (
    EventType,
    Given,
    PageParameters,
    Shown,
    Text,
    UtcMoment,
)

Validation = Literal["off", "warn", "refuse"]


def _check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"is no JSON Schema (draft 2020-12): {error.message[:200]}") from None
    return schema


class EventTypeSettings(Given):
    """What the catalogue says of an event type."""

    description: Text = Field(default="", examples=["An invoice was paid in full."])
    data_schema: Annotated[dict[str, Any], AfterValidator(_check_schema)] | None = Field(
        default=None,
        alias="schema",
        description="JSON Schema (draft 2020-12) of `data`. References to other documents are not"
        " followed.",
        examples=[{"type": "object", "required": ["id"]}],
    )
    validation: Validation = Field(
        default="off",
        description="What happens to data that does not fit when it is published over this API:"
        " `warn` publishes it and says so, `refuse` answers 422. Counts within 5 seconds.",
    )
    example: Any = Field(default=None, description="Example of `data`.", examples=[{"id": 1042}])

    @model_validator(mode="after")
    def _needs_schema(self) -> EventTypeSettings:
        if self.validation != "off" and self.data_schema is None:
            raise ValueError("validation needs a schema")
        return self


class EventTypeInfo(Shown):
    """An event type in the catalogue."""

    name: EventType
    description: str
    data_schema: dict[str, Any] | None = Field(alias="schema")
    validation: Validation
    example: Any
    archived_at: UtcMoment | None
    created_at: UtcMoment
    updated_at: UtcMoment


class EventTypeFilter(PageParameters):
    """Which event types to list."""

    archived: bool = Field(default=False, description="Whether to list archived ones too.")


class OpenApiDocument(BaseModel):
    """An OpenAPI 3.1 document; members that do not matter here are left alone."""

    model_config = ConfigDict(extra="ignore", strict=True)

    openapi: str = Field(pattern=r"^3\.1\.[0-9]+$", examples=["3.1.0"])
    webhooks: dict[str, Any] = Field(
        max_length=1000,
        description="Event types by name.",
        examples=[
            {
                "invoice.paid": {
                    "post": {
                        "description": "An invoice was paid in full.",
                        "requestBody": {
                            "content": {"application/json": {"schema": {"type": "object"}}}
                        },
                    }
                }
            }
        ],
    )
    components: dict[str, Any] | None = None


class RefusedEventType(Shown):
    """A webhook that could not be imported."""

    name: str
    reason: str


class ImportedEventTypes(Shown):
    """What an import did. Types that were so already are in none of the lists."""

    created: list[str]
    changed: list[str]
    refused: list[RefusedEventType]
