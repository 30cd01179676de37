"""Bringing a database to this version's schema: alembic's migrations, and the passwords of the services' roles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

import holdfast

_LOCK = "select pg_advisory_xact_lock(hashtextextended('holdfast.migrate', 0))"
_SET_PASSWORD = """
select format('alter role %I with login password %L', cast(:role as text), cast(:password as text))
"""

T = TypeVar("T")


class MigrationsMissing(Exception):
    """This installation lacks the migrations."""


def migrations_directory() -> Path:
    """Where the migrations lie: inside the installed package, or beside it in a checkout.

    Raises:
        MigrationsMissing: in neither place.
    """
    package = Path(holdfast.__file__).parent
    for directory in (package / "migrations", package.parent / "migrations"):
        if (directory / "env.py").is_file():
            return directory
    raise MigrationsMissing("the migrations are not in this installation of holdfast: install it again")


def migrate(admin_url: str, role_passwords: dict[str, str]) -> None:
    """Bring the database at `admin_url` (postgresql://…, a role that may create roles and schemas) up to date.

    All of it is one transaction. It may be repeated, and by several at once: they take turns. The roles get these
    passwords every time, so a new password is set by running it again. It must not be called on an event loop's thread.

    Raises:
        sqlalchemy.exc.DBAPIError, OSError: the database refuses or does not answer; nothing was changed.
    """
    asyncio.run(_run(admin_url, partial(_migrate, role_passwords=role_passwords)))


def pending(admin_url: str) -> bool:
    """Whether the database lacks migrations of this version.

    Raises:
        sqlalchemy.exc.DBAPIError, OSError: the database refuses or does not answer.
    """
    return asyncio.run(_run(admin_url, _is_behind))


async def _run(url: str, work: Callable[[Connection], T]) -> T:
    engine = create_async_engine(make_url(url).set(drivername="postgresql+asyncpg"), poolclass=NullPool)
    try:
        async with engine.begin() as connection:
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
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    for role, password in role_passwords.items():
        # A role's password cannot be a parameter of the statement that sets it.
        statement = connection.scalar(text(_SET_PASSWORD), {"role": role, "password": password})
        connection.exec_driver_sql(str(statement))


def _is_behind(connection: Connection) -> bool:
    present = MigrationContext.configure(connection, opts={"version_table_schema": "public"}).get_current_heads()
    return set(present) != set(ScriptDirectory.from_config(_config()).get_heads())
