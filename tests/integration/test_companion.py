"""What is started beside the agent stays when the agent goes, however it goes."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_agent.companions import companion

pytestmark = pytest.mark.integration


@pytest.fixture
def _children_are_watched_by_pidfd() -> Iterator[None]:
    """As they always are from Python 3.12 on."""
    if sys.version_info >= (3, 12):
        yield
        return
    policy = asyncio.get_event_loop_policy()
    before = policy.get_child_watcher()
    policy.set_child_watcher(asyncio.PidfdChildWatcher())
    yield
    policy.set_child_watcher(before)


@pytest.mark.usefixtures("_children_are_watched_by_pidfd")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_it_outlives_the_loop_that_started_it(tmp_path: Path) -> None:
    async def begin() -> int:
        vault = await companion.start("holdfast_vault", tmp_path / "log", "--state-dir", str(tmp_path))
        return vault.pid

    pid = asyncio.run(begin())
    gc.collect()
    os.kill(pid, signal.SIGTERM)
    # Its own end, not the one by a signal.
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


async def test_its_end_is_seen(tmp_path: Path) -> None:
    vault = await companion.start("holdfast_vault", tmp_path / "log", "--state-dir", str(tmp_path))
    watching = asyncio.create_task(companion.ended(vault))
    vault.kill()
    assert await watching == -signal.SIGKILL
