"""Backups of the database: written by pg_dump, and put in the place of the present database by pg_restore.

A backup is restored into a second database first. The swap is one transaction of two renames, so that services see
the database before or the database after, and never half of one. The database before stays under another name.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import asyncpg

from holdfast.store.connecting import connect
from holdfast.store.upgrade import migrate

_OWNER = "select quote_ident(pg_get_userbyid(datdba)) from pg_database where datname = $1"
_RIGHTS = """
select case grantee when 0 then 'public' else quote_ident(pg_get_userbyid(grantee)) end as grantee,
       privilege_type, is_grantable
from pg_database, aclexplode(coalesce(datacl, acldefault('d', datdba))) where datname = $1
"""
_LEFT = "select datname from pg_database where starts_with(datname, $1)"
_STAMP = re.compile("[0-9]{8}T[0-9]{12}")
"""As `restore` writes it."""
_END_AGAIN_S = 0.05
_TERMINATE = "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1 and pid <> pg_backend_pid()"


class DumpFailed(Exception):
    """A backup could not be written or restored; the message names the cause. The present database is unchanged."""


def write(programs: Path, admin_url: str, target: Path) -> int:
    """Write a backup of the database to `target`, a new file that only this user can read; return its bytes.

    `programs` is the directory of pg_dump and pg_restore. Raises DumpFailed or OSError; then there is no file.
    """
    part = target.with_name(f"{target.name}.part")
    # Where others may write, as in /tmp, one of them may have made it, to read what is written there.
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            _run([programs / "pg_dump", "--format=custom", _without_password(admin_url)], admin_url, stdout=file)
            file.flush()
            os.fsync(file.fileno())
        size_bytes = part.stat().st_size
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    return size_bytes


def require_complete(programs: Path, source: Path) -> None:
    """Raise DumpFailed unless `source` is a whole backup, which is read to its end."""
    if not source.is_file():
        raise DumpFailed("it is no regular file, and a backup is read more than once: write it to a file first")
    _run([programs / "pg_restore", "--file=/dev/null", source], "")


def restore(programs: Path, admin_url: str, source: Path, now: datetime) -> str:
    """Put the backup in the place of the database at `admin_url`; return the new name of the database before.

    The backup is brought to this version's schema first. Not to be called on an event loop's thread. Raises DumpFailed,
    migrate.UnknownRevision, sqlalchemy.exc.DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError or OSError, and
    nothing has changed then.
    """
    name = urlsplit(admin_url).path.removeprefix("/")
    stamp = now.strftime("%Y%m%dT%H%M%S%f")
    fresh, before = f"{_restored(name)}{stamp}", f"{name}_before_{stamp}"
    fresh_url = _with_database(admin_url, fresh)
    asyncio.run(_create(admin_url, name, fresh))
    try:
        # Two jobs make indexes in parallel.
        to_fresh = f"--dbname={_without_password(fresh_url)}"
        _run([programs / "pg_restore", "--exit-on-error", "--jobs=2", to_fresh, source], admin_url)
        migrate.migrate(fresh_url, {})
        asyncio.run(_swap(admin_url, name, fresh, before))
    except BaseException as error:
        # What went wrong first is what matters: a server that is gone keeps the new database.
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            if isinstance(error, Exception) and not asyncio.run(_exists(admin_url, fresh)):
                return before  # It has its new name: only the answer to the commit was lost.
            asyncio.run(_execute(admin_url, f"drop database if exists {_quoted(fresh)} with (force)"))
        raise
    return before


def _restored(name: str) -> str:
    """Return the beginning of the names of databases that are restored, before they take the place of this one."""
    return f"{name}_restored_"


async def _create(admin_url: str, name: str, fresh: str) -> None:
    """Create an empty database with the owner and the rights of the present one, which no backup contains."""
    connection = await connect(_beside(admin_url))
    try:
        owner = await connection.fetchval(_OWNER, name)
        if owner is None:
            raise DumpFailed(
                f"the server has no database {name}. On a new server, with the services stopped, create it and run "
                "`holdfast migrate`, which makes the roles of the services with their passwords; then restore"
            )
        for (left,) in await connection.fetch(_LEFT, _restored(name)):
            if not _STAMP.fullmatch(left.removeprefix(_restored(name))):
                continue  # somebody's own
            # A restore that was killed left it; one that runs has sessions there most of the time.
            with suppress(asyncpg.ObjectInUseError):
                await connection.execute(f"drop database if exists {_quoted(left)}")
        await connection.execute(f"create database {_quoted(fresh)} template template0 owner {owner}")
        await connection.execute(f"revoke all on database {_quoted(fresh)} from public")
        for grantee, right, is_grantable in await connection.fetch(_RIGHTS, name):
            option = " with grant option" if is_grantable else ""
            await connection.execute(f"grant {right} on database {_quoted(fresh)} to {grantee}{option}")
    finally:
        await connection.close()


async def _swap(admin_url: str, name: str, fresh: str, before: str) -> None:
    """Exchange the databases in one transaction: what is killed amid it, or loses its server, has changed nothing."""
    # If this machine is gone, its locks are, too.
    connection = await connect(_beside(admin_url), server_settings={"idle_in_transaction_session_timeout": "10s"})
    try:
        others = await connect(_beside(admin_url))
        try:
            async with connection.transaction():
                await _rename(connection, others, name, before)
                await _rename(connection, others, fresh, name)
        finally:
            await others.close()
    finally:
        await connection.close()


async def _rename(connection: asyncpg.Connection[Any], others: asyncpg.Connection[Any], old: str, new: str) -> None:
    """Rename a database. The server lets no new session begin meanwhile, and waits for the present ones, which
    `others` ends."""
    renaming = asyncio.create_task(connection.execute(f"alter database {_quoted(old)} rename to {_quoted(new)}"))
    try:
        while not renaming.done():
            await others.fetch(_TERMINATE, old)
            await asyncio.wait([renaming], timeout=_END_AGAIN_S)
        await renaming
    finally:
        renaming.cancel()
        await asyncio.wait([renaming])


async def _exists(admin_url: str, name: str) -> bool:
    connection = await connect(_beside(admin_url))
    try:
        return bool(await connection.fetchval("select true from pg_database where datname = $1", name))
    finally:
        await connection.close()


async def _execute(admin_url: str, *statements: str) -> None:
    connection = await connect(_beside(admin_url))
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


def _run(command: list[str | Path], url: str, stdout: object = subprocess.DEVNULL) -> None:
    password = urlsplit(url).password
    # These would lead the programs to another server than the one that the address names.
    environment = {key: value for key, value in os.environ.items() if key not in ("PGHOSTADDR", "PGSERVICE")}
    # A server that asks for the password itself may be another user's.
    environment["PGREQUIREAUTH"] = "scram-sha-256"
    if password:
        environment["PGPASSWORD"] = unquote(password)
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,  # type: ignore[call-overload]
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise DumpFailed(lines[0] if lines else f"{Path(command[0]).name} ended with {done.returncode}")


def _without_password(url: str) -> str:
    """Return the URL for an argument, which every user of the machine can read."""
    parts = urlsplit(url)
    user, _, address = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}@{address}" if user else address))


def _beside(url: str) -> str:
    """Return the address of another database of the server: none can be renamed by its own sessions."""
    return _with_database(url, "template1" if urlsplit(url).path == "/postgres" else "postgres")


def _with_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def _quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'
