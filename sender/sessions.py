"""Where work of ours joins the caller's transaction."""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.orm import Session


def connection_of(session: Session | Connection) -> Connection:
    """Return the connection that a session's transaction is on, or the connection given."""
    return session.connection() if isinstance(session, Session) else session
