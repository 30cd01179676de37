"""`holdfast credentials` against a supervisor that a test plays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import msgspec
import pytest
from click.testing import CliRunner, Result

from holdfast.cli.main import main
from holdfast.embedded.control import AnyRequest, Renew, Reply, UserStatus

SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
USERS = [
    UserStatus(name="controller", kind="service", since=SINCE, revoked=None, connections=1),
    UserStatus(name="node-1", kind="node", since=None, revoked=SINCE, connections=0),
]


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    # A socket's address is short, a test's directory may not be.
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("control.sock")
        listening.listen()
        yield listening


def answered(supervisor: socket.socket, reply: Reply, *arguments: str) -> tuple[AnyRequest, Result]:
    asked: list[AnyRequest] = []

    def answer() -> None:
        connection, _ = supervisor.accept()
        with connection, connection.makefile("rwb") as stream:
            asked.append(msgspec.json.decode(stream.readline(), type=AnyRequest))
            stream.write(msgspec.json.encode(reply) + b"\n")

    answering = Thread(target=answer)
    answering.start()
    result = CliRunner().invoke(main, ["credentials", *arguments, "--dir", "."])
    answering.join()
    return asked[0], result


def test_users_are_a_table_or_json(supervisor: socket.socket) -> None:
    _, table = answered(supervisor, Reply(users=USERS))
    lines = [line.split() for line in table.output.splitlines()]
    assert lines[0] == ["USER", "KIND", "SINCE", "CONNECTIONS", "STATE"]
    assert (lines[1][0], lines[1][-2:]) == ("controller", ["1", "admitted"])
    assert (lines[2][0], lines[2][-3:]) == ("node-1", ["revoked", "2026-01-02", "03:04:05"])
    _, data = answered(supervisor, Reply(users=USERS), "--json")
    assert msgspec.json.decode(data.output, type=list[UserStatus]) == USERS


def test_a_process_that_does_not_come_back_is_named(supervisor: socket.socket) -> None:
    asked, result = answered(supervisor, Reply(users=USERS, late=["controller"]), "renew", "controller", "node-1")
    assert isinstance(asked, Renew) and (asked.users, "(pid " in asked.by) == (["controller", "node-1"], True)
    assert result.exit_code == 1
    assert "controller: not using the new password or key yet. See `holdfast logs controller`" in result.output
    asked, result = answered(supervisor, Reply(users=USERS), "renew", "--all")
    assert isinstance(asked, Renew) and (asked.users, result.exit_code) == ([], 0)


def test_ctrl_c_ends_the_wait_and_not_the_change(supervisor: socket.socket) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "credentials", "renew", "--all", "--dir", "."],
        stderr=subprocess.PIPE,
        text=True,
    )
    connection, _ = supervisor.accept()
    with connection, connection.makefile("rb") as stream:
        stream.readline()
        os.kill(command.pid, signal.SIGINT)
        _, errors = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "the supervisor goes on renewing; `holdfast credentials` shows the result" in errors
    assert "Traceback" not in errors
