"""What ranks leave behind ends with the zygote, however it was started; nothing else does."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.events import RanksStarted
from holdfast.events.parts.job import JobSpec
from holdfast.node import process_mark
from tests.integration.agent_node import Node, gone, node, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TRAIN = """
import os, subprocess, sys, time

# A child in a session of its own, whose parent is gone, and which has no environment.
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir(os.environ["NOTES"])
        note = "echo $$ > hidden.part && mv hidden.part hidden"
        os.execve("/bin/sh", ["sh", "-c", f"PATH=/usr/bin:/bin; {note}; exec sleep 1000"], {})
    os._exit(0)
plain = subprocess.Popen(["sleep", "1000"])
path = os.path.join(os.environ["NOTES"], "plain")
open(path + ".part", "w").write(str(plain.pid))
os.rename(path + ".part", path)
time.sleep(1000)
"""


def spec(folder: Path) -> JobSpec:
    (folder / "train.py").write_text(TRAIN)
    return JobSpec(
        name="job-1",
        script=str(folder / "train.py"),
        nproc_per_node=1,
        cwd=str(folder),
        directory=str(folder),
        env={"NOTES": str(folder)},
    )


async def children(folder: Path) -> list[int]:
    """The processes that the rank has left behind, which run now."""
    await until(lambda: all((folder / name).exists() for name in ("hidden", "plain")))
    pids = [int((folder / name).read_text()) for name in ("hidden", "plain")]
    for name in ("hidden", "plain"):
        (folder / name).unlink()
    for pid in pids:
        os.kill(pid, 0)
    return pids


@pytest.fixture
def strangers(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that no agent may touch: one without a mark, one of another node."""
    other = tmp_path / "another-node"
    other.mkdir()
    started = [
        subprocess.Popen(["sleep", "1000"]),
        subprocess.Popen(["sleep", "1000"], preexec_fn=lambda: process_mark.put_on_self(process_mark.mark_of(other))),
    ]
    yield started
    for process in started:
        process.kill()
        process.wait()


async def test_children_of_ranks_end_with_a_killed_zygote(
    node_place: Path, tmp_path: Path, embedded_nats: str, strangers: list[subprocess.Popen[bytes]]
) -> None:
    async with node("n-left", node_place, embedded_nats) as it:
        await run(it, spec(tmp_path))
        left = await children(tmp_path)
        os.kill(it.zygote, signal.SIGKILL)
        for pid in left:
            await gone(pid)
        assert [stranger.poll() for stranger in strangers] == [None, None]


async def test_an_agent_that_comes_back_ends_what_a_killed_zygote_left(
    node_place: Path, tmp_path: Path, embedded_nats: str, strangers: list[subprocess.Popen[bytes]]
) -> None:
    async with node("n-left-alone", node_place, embedded_nats) as it:
        await run(it, spec(tmp_path))
        left = await children(tmp_path)
        it.kill_agent()
        zygote = it.zygote
        os.kill(zygote, signal.SIGKILL)
        await gone(zygote)
        for pid in left:
            os.kill(pid, 0)
        it.start()
        for pid in left:
            await gone(pid)
        assert [stranger.poll() for stranger in strangers] == [None, None]


async def run(it: Node, job: JobSpec) -> None:
    await it.order(job, 1, (await it.registered()).facts.store_ports[0])
    await it.heard.wait(RanksStarted)
