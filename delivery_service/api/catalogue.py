"""Validation of data at publish, by the schemas of the catalogue."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from delivery_service.api.problems import invalid_request
from delivery_service.store import event_types
from wire.rawjson import RawJson

if TYPE_CHECKING:
    from delivery_service.api.context import Context

KEPT_FOR = 5.0
"""Seconds that schemas are kept before they are read again: a change counts within that time."""
MOST_ERRORS = 20

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rule:
    """What the data of one event type must be like, and whether it is refused if it is not."""

    validator: Draft202012Validator
    refuses: bool

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Rule:
        """Make the rule of an event type that is validated, from its row."""
        # A registry of its own retrieves nothing: a schema must not make the service fetch URLs.
        validator = Draft202012Validator(row["schema"], registry=Registry())
        return cls(validator, row["validation"] == "refuse")

    def check(self, data: RawJson, at: str) -> list[str]:
        """Return warnings about data that does not fit, or raise the problem 422.

        ``at`` is the JSON pointer to the data.
        """
        faults = _faults(self.validator, data, at)
        if faults and self.refuses:
            raise invalid_request(faults)
        return [f"{fault['pointer']}: {fault['detail']}" for fault in faults]


class Catalogue:
    """The schemas that data is validated by, kept in memory for a moment."""

    def __init__(self) -> None:
        self._rules: Mapping[str, Rule] = {}
        self._read_at: float | None = None

    def forget(self) -> None:
        """Read the schemas again at the next publish."""
        self._read_at = None

    async def check(self, context: Context, event_type: str, data: RawJson, at: str) -> list[str]:
        """Return warnings about data of a type, or raise the problem 422: see `Rule.check`."""
        moment = context.clock.monotonic()
        if self._read_at is None or not 0 <= moment - self._read_at < KEPT_FOR:
            rows = await context.read(event_types.validated)
            self._rules = {row["name"]: Rule.of(row) for row in rows}
            self._read_at = moment
        rule = self._rules.get(event_type)
        return [] if rule is None else rule.check(data, at)


def _faults(validator: Draft202012Validator, data: RawJson, at: str) -> list[dict[str, str]]:
    faults: list[dict[str, str]] = []
    try:
        for error in validator.iter_errors(json.loads(data.content)):
            faults.append(_fault(error, at))
            if len(faults) == MOST_ERRORS:
                break
    except (Unresolvable, RecursionError) as error:
        detail = f"the event type's schema can't be applied ({type(error).__name__})"
        faults.append({"in": "body", "pointer": at, "detail": detail})
    return faults


def _fault(error: ValidationError, at: str) -> dict[str, str]:
    steps = (str(step).replace("~", "~0").replace("/", "~1") for step in error.absolute_path)
    return {
        "in": "body",
        "pointer": "/".join((at, *steps)),
        "detail": error.message[:200],
    }
