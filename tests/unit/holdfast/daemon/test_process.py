"""The start of a daemon with addresses that it must not use, and its end."""

import signal
import subprocess
import sys

import pytest

from holdfast.daemon.process import LEAVE_S, Daemon, leave_limit_s, run
from holdfast.settings.timeouts import Timeouts

DEAF = """
import asyncio
from holdfast.daemon import process

process.LEAVE_S = 0.2

async def main(daemon):
    print("at work", flush=True)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

process.run("deaf", main, description="", needs_database=False)
"""


@pytest.mark.timeout(30)
def test_a_daemon_that_cannot_end_is_ended_at_its_limit_and_says_so() -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-c", DEAF, "--nats-url", "nats://127.0.0.1"],
        env={"HOLDFAST_TIMEOUTS_STOP_GRACE_S": "0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert daemon.stdout is not None
    assert daemon.stdout.readline() == "at work\n"
    daemon.send_signal(signal.SIGTERM)
    _, errors = daemon.communicate()
    assert daemon.returncode == 1
    assert "did not stop in time" in errors


DEPARTS = """
import asyncio
import structlog
from holdfast.daemon import process

async def main(daemon):
    print("at work", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        structlog.get_logger().info("leaving")
        print("left", flush=True)

process.run("departs", main, description="", needs_database=False)
"""


@pytest.mark.timeout(30)
def test_a_daemon_whose_supervisor_is_gone_with_the_reader_of_its_log_ends_in_order() -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-u", "-c", DEPARTS, "--nats-url", "nats://127.0.0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert daemon.stdout is not None and daemon.stderr is not None
    assert daemon.stdout.readline() == "at work\n"
    daemon.stderr.close()
    daemon.send_signal(signal.SIGTERM)
    assert daemon.stdout.read() == "left\n"
    daemon.stdout.close()
    assert daemon.wait() == 0


def test_the_limit_leaves_ranks_their_grace() -> None:
    assert leave_limit_s(Timeouts(stop_grace_s=25)) == 25 + LEAVE_S


NEAR, FAR = "nats://user:word@127.0.0.1", "nats://user:word@192.0.2.1"
DATABASE, FAR_DATABASE = "postgresql://user:word@127.0.0.1/h", "postgresql://user:word@192.0.2.1/h"


@pytest.mark.parametrize(
    ("bus", "database", "authority", "said"),
    [
        (FAR, DATABASE, "", "NATS at 192.0.2.1 would be reached without TLS"),
        (NEAR, FAR_DATABASE, "", "Postgres at 192.0.2.1 would be reached with sslmode=prefer"),
        (NEAR, DATABASE, "/nowhere/ca.pem", "/nowhere/ca.pem (tls_ca) cannot be read"),
    ],
)
def test_a_daemon_does_not_start_where_a_password_could_be_read_on_the_way(
    bus: str,
    database: str,
    authority: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["daemon", "--nats-url", bus, "--database-url", database])
    monkeypatch.setenv("HOLDFAST_NETWORK_TLS_CA", authority)

    async def main(daemon: Daemon) -> None:
        raise AssertionError("it has started")

    with pytest.raises(SystemExit) as end:
        run("daemon", main, description="")
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"daemon: {said}") and ":word" not in errors and errors.count("\n") == 1
