"""The one procedure behind every claim in SQL: insert; else read, judge and swap."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from receiver.receipt import (
    CLAIMED,
    DONE,
    FREE,
    PARKED,
    Claimed,
    ClaimResult,
    InProgress,
    Parked,
    Receipt,
    attempts_after,
    verdict,
)
from receiver.statements import Result, Statements

# Each swap that is lost means that another claim won, so few rounds are ever needed.
_ROUNDS = 10


def claim_on(
    connection: Connection,
    statements: Statements,
    wanted: dict[str, Any],
    max_failures: int | None,
    *,
    one_trip: bool,
) -> ClaimResult:
    """Claim on one connection: insert, or judge what is there and swap it if that is allowed."""
    token = wanted["token"]
    found = None
    if one_trip and statements.family == "postgresql":
        rows = statements.claim.run(connection, wanted).rows
        if rows and rows[0][0] is None:
            return Claimed(token, 1)
        found = _receipt(rows[0]) if rows else None
    elif _inserted(statements.insert.run(connection, wanted), statements):
        return Claimed(token, 1)
    for _ in range(_ROUNDS):
        found = found or _read(connection, statements, wanted)
        if found is not None:
            result = _take_over(connection, statements, wanted, max_failures, found)
            if result is not None:
                return result
        elif _inserted(statements.insert.run(connection, wanted), statements):
            # What was there is over and was deleted in between.
            return Claimed(token, 1)
        found = None
    return InProgress(1.0)


def _take_over(
    connection: Connection,
    statements: Statements,
    wanted: dict[str, Any],
    max_failures: int | None,
    found: tuple[Receipt, int],
) -> ClaimResult | None:
    """Judge a receipt and swap it where the verdict asks for that; None if the swap was lost."""
    receipt, now = found
    result = verdict(receipt, wanted["fingerprint"], wanted["token"], max_failures, now)
    if isinstance(result, Parked) and receipt.state != PARKED:
        parked = _successor(receipt, wanted, now, PARKED, receipt.attempts)
        return result if _swap(connection, statements, wanted, receipt, parked) else None
    if result is not None:
        return result
    attempts = attempts_after(receipt, now)
    mine = _successor(receipt, wanted, now, wanted["state"], attempts)
    if _swap(connection, statements, wanted, receipt, mine):
        return Claimed(wanted["token"], attempts)
    return None


def fail_on(
    connection: Connection, statements: Statements, wanted: dict[str, Any], limit: int | None
) -> bool:
    """Count a failure under a key that nobody holds; False when somebody does, or is done."""
    if _inserted(statements.fail.run(connection, wanted), statements):
        return True
    for _ in range(_ROUNDS):
        found = _read(connection, statements, wanted)
        if found is None or found[0].state in {DONE, CLAIMED, PARKED}:
            return False
        receipt, now = found
        attempts = attempts_after(receipt, now)
        state = PARKED if limit is not None and attempts >= limit else FREE
        failed = _successor(receipt, wanted, now, state, attempts)
        failed["error"] = wanted["error"]
        if _swap(connection, statements, wanted, receipt, failed):
            return True
    return False


def _inserted(result: Result, statements: Statements) -> bool:
    if statements.family == "mysql":
        return result.lastrowid == 0
    return result.rowcount == 1


def _read(
    connection: Connection, statements: Statements, wanted: dict[str, Any]
) -> tuple[Receipt, int] | None:
    rows = statements.read.run(connection, wanted).rows
    return _receipt(rows[0]) if rows else None


def _receipt(row: Any) -> tuple[Receipt, int]:
    state, token, mark, attempts, leased_until, expires_at, response, error, now = row
    answer = None if response is None else bytes(response)
    receipt = Receipt(state, token, mark, attempts, leased_until, expires_at, answer, error)
    return receipt, int(now)


def _successor(
    receipt: Receipt, wanted: dict[str, Any], now: int, state: str, attempts: int
) -> dict[str, Any]:
    leased_until = now + wanted["lease"]
    return {
        "state": state,
        "token": wanted["token"],
        "fingerprint": wanted["fingerprint"] or receipt.fingerprint,
        "attempts": attempts,
        "since": now,
        "leased_until": leased_until,
        "expires_at": leased_until + wanted["ttl"],
        "error": receipt.error if attempts > 1 else None,
    }


def _swap(
    connection: Connection,
    statements: Statements,
    wanted: dict[str, Any],
    old: Receipt,
    new: dict[str, Any],
) -> bool:
    values = {
        **new,
        "key": wanted["key"],
        "old_token": old.token,
        "old_state": old.state,
        "old_attempts": old.attempts,
        "old_leased_until": old.leased_until,
    }
    return statements.swap.run(connection, values).rowcount == 1
