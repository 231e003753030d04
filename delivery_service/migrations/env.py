"""Run by Alembic for each of its commands. `delivery_service.migrations` sets it up."""

from __future__ import annotations

from alembic import context

from sender.tables import metadata

config = context.config
schema = config.attributes["schema"]
options = {
    "target_metadata": metadata,
    "version_table": config.attributes["version_table"],
    "version_table_schema": schema,
}

if context.is_offline_mode():
    context.configure(
        dialect_name=config.attributes["dialect"],
        transactional_ddl=True,
        literal_binds=True,
        **options,
    )
    with context.begin_transaction():
        for statement in config.attributes["preamble"]:
            context.execute(statement)
        context.run_migrations()
else:
    # The caller's transaction, and lock, surround everything.
    context.configure(connection=config.attributes["connection"], **options)
    context.run_migrations()
