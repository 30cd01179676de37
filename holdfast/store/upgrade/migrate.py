"""Upgrade of a database to this version's schema: migrations of tables, the views, and the passwords of roles.

Tables change by alembic's migrations. Views are one script, `views.sql`: it is run as a whole when its
digest differs from the one in `public.holdfast_views`, which is that of the script that the database ran last.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from holdfast.store.connecting import connect
from holdfast.store.migrations_place import migrations_directory
from holdfast.store.passwords import give_passwords
from holdfast.store.upgrade.blockers import PATIENCE_S, unblocked

_LOCK = "select pg_advisory_xact_lock(hashtextextended('holdfast.migrate', 0))"

T = TypeVar("T")


class UnknownRevision(Exception):
    """The database is at a revision that this version of Holdfast cannot upgrade; the message names the way out."""


def migrate(admin_url: str, role_passwords: dict[str, str]) -> None:
    """Bring the database at `admin_url` (postgresql://…, a role that may create roles and schemas) up to date.

    All of it is one transaction. Several processes may run it at once: they take turns. A database that is up to date
    is left alone, except that the roles get these passwords, and their settings, every time. Sessions of these roles
    that hold it up are ended. Not to be called on an event loop's thread.

    Raises:
        UnknownRevision: it was written by a newer version, or by one before 0.1.0; nothing was changed.
        HeldUp: another role's session holds it up; nothing was changed.
        sqlalchemy.exc.DBAPIError, asyncpg.PostgresError, OSError: it refuses or does not answer; nothing was changed.
    """
    work = partial(_migrate, role_passwords=role_passwords)
    try:
        asyncio.run(_run(admin_url, work, PATIENCE_S))
    except (DBAPIError, asyncpg.DeadlockDetectedError) as error:
        if not _is_deadlock(error):
            raise
        # With a session that is ended before the server looks for deadlocks now.
        asyncio.run(_run(admin_url, work, 0.0))


def pending(admin_url: str) -> bool:
    """Return True if the database lacks migrations or views of this version.

    Raises sqlalchemy.exc.DBAPIError or OSError if the database refuses or does not answer.
    """
    return asyncio.run(_run(admin_url, _is_behind))


def _is_deadlock(error: Exception) -> bool:
    raised = error.orig if isinstance(error, DBAPIError) else error
    return getattr(raised, "sqlstate", None) == asyncpg.DeadlockDetectedError.sqlstate


async def _run(url: str, work: Callable[[Connection], T], patience_s: float | None = None) -> T:
    """Run `work` in a transaction; with `patience_s`, end what holds it up."""
    # asyncpg itself reads the address: SQLAlchemy does not know its parameters for TLS.
    connected = partial(connect, url)
    engine = create_async_engine("postgresql+asyncpg://", async_creator=connected, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            if patience_s is None:
                return await connection.run_sync(work)
            pid: int = await connection.scalar(text("select pg_backend_pid()"))
            async with unblocked(url, pid, patience_s):
                return await connection.run_sync(work)
    finally:
        await engine.dispose()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_directory()))
    config.set_main_option("path_separator", "os")
    return config


def _migrate(connection: Connection, role_passwords: dict[str, str]) -> None:
    connection.execute(text(_LOCK))
    config = _config()
    _require_known(connection, ScriptDirectory.from_config(config))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    _replace_views(connection)
    _driver(connection).run_async(partial(give_passwords, passwords=role_passwords))


def _driver(connection: Connection) -> Any:
    """Return the connection of the driver below, which is in the same transaction."""
    return connection.connection.dbapi_connection


def _require_known(connection: Connection, scripts: ScriptDirectory) -> None:
    unknown = _revisions(connection) - {script.revision for script in scripts.walk_revisions()}
    if unknown:
        raise UnknownRevision(
            f"the database is at revision {', '.join(sorted(unknown))}, which this version of Holdfast cannot upgrade: "
            "it was written by a newer version, or by one before 0.1.0. Use that version, or an empty database"
        )


def _replace_views(connection: Connection) -> None:
    script = _views()
    if _digest_in_place(connection) == _digest(script):
        return
    # Only the driver itself takes several statements at once.
    _driver(connection).run_async(lambda asyncpg_connection: asyncpg_connection.execute(script))
    connection.exec_driver_sql("delete from public.holdfast_views")
    connection.execute(text("insert into public.holdfast_views (sha256) values (:it)"), {"it": _digest(script)})


def _is_behind(connection: Connection) -> bool:
    heads = set(ScriptDirectory.from_config(_config()).get_heads())
    return _revisions(connection) != heads or _digest_in_place(connection) != _digest(_views())


def _revisions(connection: Connection) -> set[str]:
    context = MigrationContext.configure(connection, opts={"version_table_schema": "public"})
    return set(context.get_current_heads())


def _views() -> str:
    return (migrations_directory() / "views.sql").read_text()


def _digest(script: str) -> str:
    return hashlib.sha256(script.encode()).hexdigest()


def _digest_in_place(connection: Connection) -> str | None:
    """Return the digest of the views script that was run last; None: none was."""
    digest: str | None = connection.scalar(text("select sha256 from public.holdfast_views"))
    return digest
