"""The end of a daemon."""

import signal
import subprocess
import sys

import pytest

from holdfast.daemon.process import LEAVE_S, leave_limit_s
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


def test_the_limit_leaves_ranks_their_grace() -> None:
    assert leave_limit_s(Timeouts(stop_grace_s=25)) == 25 + LEAVE_S
