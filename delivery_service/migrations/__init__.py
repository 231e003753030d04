"""The database's schema, from empty to head and back, on PostgreSQL and SQLite.

Everything happens in one transaction, in which whoever migrates holds a lock: of several
processes that start at once one migrates, the others wait and find nothing left to do, and one
that dies half-way leaves nothing behind. No session state is needed, so PgBouncer may be between.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, MetaData, Table, inspect, text
from sqlalchemy.schema import CreateSchema, DropTable

from delivery_service.store.database import Database
from wire.errors import SurehookError

VERSION_TABLE = "surehook_alembic_version"
BASE = "base"
HEAD = "head"

LOCK = 0x7375_7265_686F_6F6B
"""Key of the PostgreSQL advisory lock: "surehook" in ASCII."""


class MigrationError(SurehookError):
    """The database is not at the revision that this version works with, or can't get there."""


async def upgrade(database: Database, revision: str = HEAD) -> None:
    """Migrate up to ``revision``. Nothing happens where the database is there already.

    The schema of the settings is created when it is missing. Raises `MigrationError` for a
    revision that this version does not know, asked for or found in the database.
    """
    await database.write(_locked, _schema(database), command.upgrade, revision)


async def downgrade(database: Database, revision: str = BASE) -> None:
    """Migrate down to ``revision``, by default to nothing: that drops every table with its rows.

    Raises `MigrationError` as `upgrade` does.
    """
    await database.write(_locked, _schema(database), command.downgrade, revision)


async def current(database: Database) -> str | None:
    """Return the revision that the database is at; None for one that holds nothing of ours."""
    return await database.read(_current, _schema(database))


def head() -> str:
    """Return the revision that this version of Surehook works with."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    if found is None:
        raise MigrationError("the installed package lacks its migrations; install surehook again")
    return found


async def check_head(database: Database) -> None:
    """Raise `MigrationError`, which says what to do, unless the database is at head."""
    found, wanted = await current(database), head()
    if found == wanted:
        return
    if found is None:
        raise MigrationError("the database has no tables of Surehook yet; run `surehook migrate`")
    if found not in revisions():
        raise MigrationError(_unknown(found))
    raise MigrationError(
        f"the database is at revision {found}, this version of surehook needs {wanted}; run"
        " `surehook migrate`"
    )


def revisions() -> tuple[str, ...]:
    """Return every revision that this version knows, oldest first."""
    walk = ScriptDirectory.from_config(_config()).walk_revisions()
    return tuple(reversed([script.revision for script in walk]))


def as_sql(dialect: str, schema: str | None = None, revision: str = HEAD) -> str:
    """Return the SQL that takes an empty database to ``revision``, for those who run it by hand.

    ``dialect`` is ``postgresql`` or ``sqlite``. The text is one transaction.
    """
    output = io.StringIO()
    preamble: list[str] = []
    if dialect == "postgresql":
        preamble.append(f"SELECT pg_advisory_xact_lock({LOCK})")
        if schema is not None:
            name = _quoted(schema)
            preamble += [f"CREATE SCHEMA IF NOT EXISTS {name}", f"SET LOCAL search_path TO {name}"]
    config = _config(output, schema=schema, dialect=dialect, preamble=preamble)
    _run(lambda: command.upgrade(config, revision, sql=True))
    return output.getvalue()


def _schema(database: Database) -> str | None:
    translated = database.engine.get_execution_options().get("schema_translate_map") or {}
    schema: str | None = translated.get(None)
    return schema


def _config(output: io.StringIO | None = None, **attributes: object) -> Config:
    config = Config(output_buffer=output, attributes={"version_table": VERSION_TABLE, **attributes})
    # Doubled, because Alembic's configuration interpolates.
    location = str(Path(__file__).parent).replace("%", "%%")
    config.set_main_option("script_location", location)
    config.set_main_option("path_separator", "newline")
    return config


def _current(connection: Connection, schema: str | None) -> str | None:
    options = {"version_table": VERSION_TABLE, "version_table_schema": schema}
    return MigrationContext.configure(connection, opts=options).get_current_revision()


def _locked(
    connection: Connection,
    schema: str | None,
    migrate: Callable[[Config, str], None],
    revision: str,
) -> None:
    if connection.dialect.name == "postgresql":
        _prepare_postgresql(connection, schema)
    # SQLite: the transaction began with BEGIN IMMEDIATE, so there is only one.
    config = _config(connection=connection, schema=schema)
    found = _current(connection, schema)
    if found is not None and found not in revisions():
        raise MigrationError(_unknown(found))
    _run(lambda: migrate(config, revision))
    if _current(connection, schema) is None:
        connection.execute(
            DropTable(Table(VERSION_TABLE, MetaData(), schema=schema), if_exists=True)
        )


def _prepare_postgresql(connection: Connection, schema: str | None) -> None:
    # Statements must see what others committed while this one waited for the lock.
    connection.execute(text("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"))
    # Waiting for another process's migration may take longer than roles are often allowed.
    connection.execute(text("SET LOCAL lock_timeout = 0"))
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
    if schema is None:
        return
    # IF NOT EXISTS would ask for the privilege even where the schema exists.
    if not inspect(connection).has_schema(schema):
        connection.execute(CreateSchema(schema))
    # Alembic's own statements don't know schema_translate_map; this holds for all of them.
    connection.execute(text(f"SET LOCAL search_path TO {_quoted(schema)}"))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _run(work: Callable[[], None]) -> None:
    try:
        work()
    except CommandError as error:
        raise MigrationError(f"revision: {error}") from error


def _unknown(revision: str) -> str:
    return (
        f"the database is at revision {revision}, which this version of surehook does not know:"
        " a newer version migrated it; install that version or a newer one"
    )
