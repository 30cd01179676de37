"""Entry point of alembic. `holdfast.store.upgrade.migrate` provides the connection and its transaction."""

from alembic import context

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit(
        "migrations run through `holdfast migrate --database-url URL --passwords DIR`, not by alembic alone"
    )

context.configure(connection=connection, version_table_schema="public", transactional_ddl=True)
context.run_migrations()
