"""Another user of the machine, without any password: files, sockets, processes, ports."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from jobs import intruder_deeds as deeds
from torch._C._distributed_c10d import TCPStore

from attempts.as_user import STRANGER_UID, as_user
from attempts.scene import SECRET, Scene
from attempts.table import STRANGER, attempt, attempts
from holdfast.cli.main import main

MONITOR_PAGES = (
    "/varz",
    "/connz?auth=true&subs=detail",
    "/subsz?subs=1",
    "/jsz?config=1&accounts=1&streams=1&consumers=1",
    "/accountz?acc=SERVICES",
    "/accstatz",
    "/stacksz",
    "/routez",
    "/leafz",
    "/gatewayz",
)


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


@attempt(STRANGER, "look at its own process, and at the names of others", "may: it is a user like any other")
def looks_at_itself(scene: Scene) -> Any:
    assert as_user(STRANGER_UID, os.getuid) == STRANGER_UID
    lines = [as_user(STRANGER_UID, _read, f"/proc/{pid}/cmdline") for pid in scene.processes()]
    assert any(b"holdfast_agent" in line for line in lines)
    return lines


@attempt(STRANGER, "read the value of `--env NAME=VALUE` in the list of processes", "`***`")
def reads_arguments(scene: Scene) -> Any:
    pid = scene.job.process.pid
    scene.cluster.until("it runs", lambda: b"--env" in _read(f"/proc/{pid}/cmdline"))
    line = as_user(STRANGER_UID, _read, f"/proc/{pid}/cmdline")
    assert b"SECRET=***" in line, line
    return line


@attempt(STRANGER, "open any file or socket of the cluster, for reading or writing", "nothing")
def opens_files(scene: Scene) -> Any:
    paths = scene.files()
    assert len(paths) > 100 and as_user(STRANGER_UID, deeds.reach, [str(scene.place / "intruder.py")])
    reached = as_user(STRANGER_UID, deeds.reach, paths)
    assert reached == []


@attempt(STRANGER, "list a directory of the cluster", "nothing")
def lists_directories(scene: Scene) -> Any:
    def listed(paths: list[str]) -> list[str]:
        found = []
        for path in paths:
            with contextlib.suppress(OSError):
                os.listdir(path)
                found.append(path)
        return found

    folders = [path for path in scene.files() if os.path.isdir(path)]
    assert listed(folders) == folders
    assert as_user(STRANGER_UID, listed, folders) == []


@attempt(STRANGER, "make a file or a link where the cluster keeps its own", "nothing")
def makes_files(scene: Scene) -> Any:
    paths = [f"{path}/planted" for path in scene.files() if os.path.isdir(path)]
    assert as_user(STRANGER_UID, deeds.make, [str(scene.place / "open" / "planted")])
    assert as_user(STRANGER_UID, deeds.make, paths) == []
    assert not [path for path in paths if os.path.lexists(path)]


@attempt(STRANGER, "read the environment, memory, descriptors of a process; signal it; trace it", "nothing")
def reaches_processes(scene: Scene) -> Any:
    pids = sorted(scene.processes())
    assert len(pids) > 15 and as_user(STRANGER_UID, lambda: deeds.processes([os.getppid()])) == []
    assert as_user(STRANGER_UID, deeds.processes, pids) == []


@attempt(STRANGER, "read all pages of the monitor of NATS", "names of users and subjects")
def reads_the_monitor(scene: Scene) -> Any:
    port = scene.info.ports.nats_monitor
    pages = [as_user(STRANGER_UID, deeds.talk, port, f"GET {page} HTTP/1.0\r\n\r\n") for page in MONITOR_PAGES]
    assert "200 OK" in pages[0] and "agent-" in "".join(pages)
    return pages


@attempts(
    STRANGER,
    "an error: the directory is closed",
    {
        f"`HOLDFAST_DIR=... holdfast {' '.join(command)}`": command
        for command in (["status"], ["down", "--force"], ["sql", "select 1"], ["nodes"], ["stop", "victim"])
    },
)
def uses_the_command(scene: Scene, argument: list[str]) -> Any:
    # Its modules may be closed to the other user: they are imported before.
    assert CliRunner().invoke(main, [argument[0], "--help"]).exit_code == 0
    done = as_user(STRANGER_UID, _holdfast, str(scene.layout.root), argument)
    assert done[0] not in (0, None) and ("not readable" in done[1] or "user" in done[1]), done
    return done[1]


def _holdfast(directory: str, arguments: list[str]) -> tuple[int, str]:
    os.chdir("/")
    done = CliRunner().invoke(main, arguments, env={"HOLDFAST_DIR": directory, "HOME": "/"})
    return done.exit_code, done.output + repr(done.exception)


@attempt(STRANGER, "plant a `.holdfast` and a `holdfast.toml` above the operator's directory", "they are not used")
def plants_a_cluster(scene: Scene) -> Any:
    def plant(folder: Path) -> None:
        (folder / ".holdfast").mkdir()
        (folder / ".holdfast" / "cluster.json").write_bytes(b'{"version": "planted"}')
        (folder / "holdfast.toml").write_text('nats_url = "nats://127.0.0.1:1"\ndatabase_url = "postgresql://x@y/z"\n')

    trap = scene.place / "open" / "trap"
    trap.mkdir()
    trap.chmod(0o777)
    as_user(STRANGER_UID, plant, trap)
    told = []
    for name, arguments in (("below", ["jobs"]), (".", ["jobs"]), (".", ["up", "--nodes", "1"])):
        (trap / name).mkdir(exist_ok=True)
        told.append(_in(trap / name, arguments))
        assert "127.0.0.1:1" not in told[-1][1] and told[-1][0] != 0, told
    assert "no cluster" in told[0][1] and "belongs to" in told[1][1] and "belongs to" in told[2][1], told
    return told


def _in(folder: Path, arguments: list[str]) -> tuple[int, str]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        done = CliRunner().invoke(main, arguments, env={"HOLDFAST_CONFIG": None})
        return done.exit_code, done.output
    finally:
        os.chdir(before)


@attempt(STRANGER, "send nonsense to every port of the cluster", "closed connections; training goes on")
def talks_nonsense(scene: Scene) -> Any:
    ports = sorted(scene.ports())
    assert {scene.info.ports.nats, scene.info.ports.postgres} < set(ports)
    answers = [as_user(STRANGER_UID, deeds.blurt, port, text) for port in ports for text in ("\0" * 999, "x" * 99_999)]
    scene.until_it_trains_on()
    return answers


@attempt(STRANGER, "hold 300 connections to NATS and Postgres without logging in", "training goes on")
def holds_connections(scene: Scene) -> Any:
    def hold(ports: list[int]) -> int:
        held = []
        for number in range(300):
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", ports[number % 2]), timeout=1))
        return len(held)

    assert as_user(STRANGER_UID, hold, [scene.info.ports.nats, scene.info.ports.postgres]) > 200
    scene.until_it_trains_on()


@attempt(STRANGER, "write keys into the TCPStore of the job", "keys that no rank reads")
def writes_into_the_store(scene: Scene) -> Any:
    def write(port: int) -> int:
        store = TCPStore("127.0.0.1", port, is_master=False)
        for key in ("init/", "default_pg/0//cpu//0", "worker_count", "holdfast"):
            store.set(key, b"forged")
        return 1

    port = int(scene.ask_rank("environment")["MASTER_PORT"])
    assert as_user(STRANGER_UID, write, port)
    scene.until_it_trains_on()


@attempts(
    STRANGER,
    "refused: it asks for a password",
    {
        f"connect to Postgres as `{role}` with {how}": (role, password)
        for role in ("postgres", "holdfast_reader", "holdfast_controller")
        for how, password in (("no password", ""), ("a guess", "postgres"))
    },
)
def logs_into_postgres(scene: Scene, argument: tuple[str, str]) -> Any:
    role, password = argument
    assert scene.sql(role, "select 1", password) == ["InvalidPasswordError"]
    assert scene.sql(role, "select 1", scene.password_of(role)) == [1]


@attempt(STRANGER, "read the job's secret anywhere in the files of the machine that are open to it", "nothing")
def searches(scene: Scene) -> Any:
    def found() -> list[str]:
        hits = []
        for folder in (str(scene.layout.root), str(scene.place / "open"), "/dev/shm", "/var/tmp", "/run"):
            for parent, _, names in os.walk(folder):
                for name in names:
                    path = os.path.join(parent, name)
                    with contextlib.suppress(OSError):
                        if os.path.isfile(path) and os.path.getsize(path) < 1 << 22 and SECRET.encode() in _read(path):
                            hits.append(path)
        return hits

    hits = as_user(STRANGER_UID, found)
    assert hits == [], hits
