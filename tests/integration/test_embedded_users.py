"""The embedded cluster as root, as root without user namespaces, and as an ordinary user."""

import asyncio
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from embedded_running import Cluster, cluster

from holdfast.embedded.servers.identity import Identity, choose_identity
from holdfast.embedded.servers.postgres import programs

pytestmark = pytest.mark.integration

NOBODY = 65_534
NAMELESS = 54_321
"""A user without an entry in passwd, as containers have them; PostgreSQL asks for its name."""
STARTS_ITSELF = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose another user")


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can reach, which pytest's own is not."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@as_root
def test_root_sees_itself_as_nobody_in_a_user_namespace(tmp_path: Path) -> None:
    if choose_identity(programs() / "postgres", tmp_path) is not Identity.USER_NAMESPACE:
        pytest.skip("this machine allows root no user namespace")
    with cluster(tmp_path, "--nodes", "1") as running:
        postmaster = running.pid("postgres")
        assert Path(f"/proc/{postmaster}/uid_map").read_text().split() == [str(NOBODY), "0", "1"]
        assert (tmp_path / "postgres" / "data").stat().st_uid == 0
        survives_a_kill(running)


@as_root
def test_root_without_user_namespaces_gives_way_to_nobody(open_directory: Path, tmp_path: Path) -> None:
    # A chroot, into which the whole root is bound: there the kernel refuses user namespaces.
    inner = shlex.quote(str(tmp_path))
    prefix = ("unshare", "--mount", "sh", "-c", f'mount --rbind / {inner} && exec chroot {inner} "$@"', "sh")
    state = open_directory / "state"
    usable(*prefix, *_postgres_as(NOBODY))
    with cluster(state, "--nodes", "1", prefix=prefix) as running:
        assert Path(f"/proc/{running.pid('postgres')}").stat().st_uid == NOBODY
        assert (state / "postgres" / "data").stat().st_uid == NOBODY
        assert (state / "secrets.json").stat().st_mode & 0o777 == 0o600
        survives_a_kill(running)
    with cluster(state, prefix=prefix) as again:
        survives_a_kill(again)


def test_an_ordinary_user_needs_no_rights_and_no_name(open_directory: Path) -> None:
    prefix: tuple[str, ...] = ()
    user = os.geteuid()
    if user == 0:
        # The right to read everything, which Python gets below where it needs it, is none that PostgreSQL asks for.
        usable(*_postgres_as(NOBODY))
        user = NAMELESS if _reaches_postgres(NAMELESS) else NOBODY
        os.chown(open_directory, user, user)
        prefix = (
            "env",
            f"HOME={open_directory}",
            "setpriv",
            f"--reuid={user}",
            f"--regid={user}",
            "--clear-groups",
            "--no-new-privs",
        )
        if subprocess.run([*prefix, sys.executable, "-c", STARTS_ITSELF], capture_output=True, check=False).returncode:
            # The interpreter lies where only root reads: the one right to read it, and no other, comes along.
            prefix += ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
        usable(*prefix, sys.executable, "-c", STARTS_ITSELF)
    with cluster(open_directory / "state", "--nodes", "1", prefix=prefix) as running:
        assert Path(f"/proc/{running.pid('postgres')}").stat().st_uid == user
        survives_a_kill(running)
        assert running.end() == 0


def _reaches_postgres(user: int) -> bool:
    """Whether the program is open to all: the right to read everything does not come along into a user namespace."""
    return subprocess.run(_postgres_as(user), capture_output=True, check=False).returncode == 0


def _postgres_as(user: int) -> tuple[str, ...]:
    # setpriv itself still has root's rights when it looks for the program; the shell has them no more.
    return (
        *("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"),
        *("sh", "-c", 'exec "$0" --version', str(programs() / "postgres")),
    )


def usable(*command: str) -> None:
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this machine does not let us try: {tried.stderr.strip()}")


def survives_a_kill(running: Cluster) -> None:
    postmaster = running.pid("postgres")
    os.kill(postmaster, signal.SIGKILL)
    running.mended("postgres", postmaster)
    assert asyncio.run(ask_database(running.info.database_urls["admin"])) == 1


async def ask_database(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        answer: int = await connection.fetchval("select 1")
        return answer
    finally:
        await connection.close()
