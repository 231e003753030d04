"""Migrations lead from empty to head and back, and head is what `sender.tables` says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from delivery_service import migrations
from delivery_service.migrations import MigrationError
from delivery_service.settings import Settings
from delivery_service.store.database import Database, open_database
from sender.tables import metadata
from tests.migrations.snapshot import snapshot


def table_names(connection: Connection, schema: str | None = None) -> set[str]:
    return set(inspect(connection).get_table_names(schema=schema))


def stamp(connection: Connection, revision: str) -> None:
    connection.execute(text(f"UPDATE {migrations.VERSION_TABLE} SET version_num = '{revision}'"))


async def test_empty_to_head_and_back_to_empty(database: Database) -> None:
    assert await migrations.current(database) is None
    await migrations.upgrade(database)
    assert await migrations.current(database) == migrations.head()
    assert await database.read(table_names) == {*metadata.tables, migrations.VERSION_TABLE}
    await migrations.downgrade(database)
    assert await migrations.current(database) is None
    assert await database.read(snapshot) == []
    assert await database.read(table_names) == set()
    await migrations.upgrade(database)
    assert await migrations.current(database) == migrations.head()


async def test_each_step_goes_down_and_up_again(database: Database) -> None:
    revisions = migrations.revisions()
    assert revisions[-1] == migrations.head()
    for revision in revisions:
        await migrations.upgrade(database, revision)
        before = await database.read(snapshot)
        await migrations.downgrade(database, "-1")
        await migrations.upgrade(database, revision)
        assert await database.read(snapshot) == before
        assert await migrations.current(database) == revision


async def test_upgrade_at_head_changes_nothing(database: Database) -> None:
    await migrations.upgrade(database)
    before = await database.read(snapshot)
    await migrations.upgrade(database)
    assert await database.read(snapshot) == before


async def test_head_equals_the_tables_by_autogenerate(database: Database) -> None:
    await migrations.upgrade(database)

    def differences(connection: Connection) -> list[Any]:
        options = {
            "compare_type": True,
            # Alembic misreads an empty default on SQLite; the next test compares them all.
            "compare_server_default": connection.dialect.name != "sqlite",
            "version_table": migrations.VERSION_TABLE,
        }
        found = compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
        return list(found)

    assert await database.read(differences) == []


async def test_head_equals_the_tables_by_the_catalogue(database: Database) -> None:
    """What autogenerate does not see: storage parameters, collations, index predicates, names."""
    await database.write(metadata.create_all)
    by_tables = await database.read(snapshot)
    await database.write(metadata.drop_all)
    await migrations.upgrade(database)
    assert await database.read(snapshot) == by_tables
    assert len(by_tables) > len(metadata.tables)


async def test_every_name_is_ours(database: Database) -> None:
    await migrations.upgrade(database)

    def names(connection: Connection) -> set[str]:
        if connection.dialect.name == "sqlite":
            found = connection.scalars(
                text("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
            )
        else:
            found = connection.scalars(
                text(
                    "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
                    " UNION SELECT conname FROM pg_constraint"
                    " WHERE connamespace = 'public'::regnamespace"
                )
            )
        return set(found)

    found = await database.read(names)
    assert found
    foreign = {name for name in found if "surehook_" not in name}
    assert foreign == set()


async def test_the_platforms_tables_are_left_alone(database: Database) -> None:
    def create(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE invoices (id integer PRIMARY KEY)"))
        connection.execute(text("CREATE TABLE alembic_version (version_num varchar(32))"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('theirs')"))

    await database.write(create)
    await migrations.upgrade(database)
    await migrations.downgrade(database)
    assert await database.read(table_names) == {"invoices", "alembic_version"}

    def version(connection: Connection) -> str:
        return str(connection.scalar(text("SELECT version_num FROM alembic_version")))

    assert await database.read(version) == "theirs"


async def test_check_head_says_what_to_do(database: Database) -> None:
    with pytest.raises(MigrationError, match="no tables of Surehook yet; run `surehook migrate`"):
        await migrations.check_head(database)
    await migrations.upgrade(database)
    await migrations.check_head(database)
    await database.write(stamp, "9999")
    with pytest.raises(MigrationError, match="9999, which this version of surehook does not know"):
        await migrations.check_head(database)
    with pytest.raises(MigrationError, match="9999, which this version of surehook does not know"):
        await migrations.upgrade(database)


async def test_check_head_of_an_older_database(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrations.upgrade(database)
    monkeypatch.setattr(migrations, "head", lambda: "0099")
    with pytest.raises(MigrationError, match="needs 0099; run `surehook migrate`"):
        await migrations.check_head(database)


async def test_an_unknown_revision_is_named_and_nothing_is_done(database: Database) -> None:
    with pytest.raises(MigrationError, match="nonsense"):
        await migrations.upgrade(database, "nonsense")
    assert await database.read(table_names) == set()


async def test_f31_a_migration_that_fails_half_way_leaves_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE surehook_workers (id integer)"))

    # The last table is in the way: everything before it must be undone.
    await database.write(fail)
    with pytest.raises(Exception, match="already exists"):
        await migrations.upgrade(database)
    assert await database.read(table_names) == {"surehook_workers"}
    assert await migrations.current(database) is None


async def test_concurrent_upgrades_in_one_process(settings: Settings) -> None:
    databases = [open_database(settings) for _ in range(4)]
    try:
        await asyncio.gather(*(migrations.upgrade(database) for database in databases))
        assert await migrations.current(databases[0]) == migrations.head()
    finally:
        for database in databases:
            await database.close()


@pytest.mark.parametrize("schema", ["surehook", 'odd "name"'])
async def test_tables_in_a_schema_of_their_own(postgresql_url: str, schema: str) -> None:
    settings = Settings(database_url=postgresql_url.replace("+asyncpg", ""), database_schema=schema)
    database = open_database(settings)
    try:
        await migrations.upgrade(database)
        assert await migrations.current(database) == migrations.head()
        await migrations.check_head(database)
        everything = {*metadata.tables, migrations.VERSION_TABLE}
        assert await database.read(table_names, schema) == everything
        assert await database.read(table_names, "public") == set()
        await migrations.downgrade(database)
        assert await database.read(table_names, schema) == set()
    finally:
        await database.close()


async def test_a_schema_that_exists_needs_no_privilege_to_create_one(postgresql_url: str) -> None:
    url = postgresql_url.replace("+asyncpg", "")
    owner = open_database(Settings(database_url=url))
    role = "surehook_limited"

    def prepare(connection: Connection) -> None:
        connection.execute(text(f"DROP ROLE IF EXISTS {role}"))
        connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        connection.execute(text(f"CREATE SCHEMA hooks AUTHORIZATION {role}"))

    def clean(connection: Connection) -> None:
        connection.execute(text(f"DROP OWNED BY {role} CASCADE"))
        connection.execute(text(f"DROP ROLE {role}"))

    await owner.write(prepare)
    limited = open_database(
        Settings(database_url=url.replace("postgres@", f"{role}@"), database_schema="hooks")
    )
    try:
        await migrations.upgrade(limited)
        await migrations.check_head(limited)
    finally:
        await limited.close()
        await owner.write(clean)
        await owner.close()


async def test_the_printed_sql_makes_the_same_database(
    database: Database, settings: Settings
) -> None:
    sql = migrations.as_sql(settings.async_database_url.get_backend_name())
    await migrations.upgrade(database)
    expected = await database.read(snapshot)
    await migrations.downgrade(database)

    if settings.is_sqlite:
        import sqlite3

        path = settings.async_database_url.database
        assert path is not None
        with sqlite3.connect(path) as connection:
            connection.executescript(sql)
        connection.close()
    else:
        import psycopg

        with psycopg.connect(settings.database_url) as postgres:
            postgres.execute(sql)  # type: ignore[call-overload]
    assert await database.read(snapshot) == expected
    await migrations.check_head(database)


def test_the_printed_sql_names_the_schema() -> None:
    sql = migrations.as_sql("postgresql", "hooks")
    assert 'SET LOCAL search_path TO "hooks"' in sql
    assert f"hooks.{migrations.VERSION_TABLE}" in sql


def test_migrations_are_inside_the_package() -> None:
    folder = Path(migrations.__file__).parent
    assert (folder / "env.py").is_file()
    assert len(list((folder / "versions").glob("0*.py"))) == len(migrations.revisions())
