"""A real agent removes the files of earlier jobs, and never those of ranks that live."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from holdfast.event_parts import JobSpec
from holdfast.events import FirstStep, ProcessExited, RanksStarted
from tests.integration.agent_node import WAIT_S, Node, node

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

STEPS = """
import time
from holdfast.trainer import report, step
for number in range(100_000):
    step(step=number)
    report("note", number=number)
    print(number, flush=True)
    time.sleep(0.02)
"""


async def begin(it: Node, folder: Path, name: str, generation: int) -> RanksStarted:
    job = JobSpec(name=name, script=str(folder / "steps.py"), cwd=str(folder), directory=str(folder))
    port = (await it.registered()).facts.store_ports[generation % 4]
    await it.order(job, generation, port)
    started = await it.heard.wait(RanksStarted, lambda e: e.generation == generation and not e.adopted)
    await it.heard.wait(FirstStep, lambda e: e.generation == generation)
    return started


def jobs_with_logs(it: Node) -> set[str]:
    return {path.name for path in (it.directory / "logs").iterdir()}


async def test_files_go_with_the_jobs_but_not_from_under_ranks(
    node_place: Path, tmp_path: Path, embedded_nats: str
) -> None:
    (tmp_path / "steps.py").write_text(STEPS)
    async with node("n-forgets", node_place, embedded_nats) as it:
        it.kill_agent()
        it.environment["HOLDFAST_RETENTION_JOBS_ON_NODE_MAX"] = "1"
        it.start()
        await it.registered(1)
        await begin(it, tmp_path, "a", 1)
        await begin(it, tmp_path, "b", 2)
        living = await begin(it, tmp_path, "c", 3)
        async with asyncio.timeout(WAIT_S):
            while jobs_with_logs(it) != {"b", "c"} or (it.directory / "forgotten").exists():  # noqa: ASYNC110 - files set no events
                await asyncio.sleep(0.05)
        assert {path.stem for path in (it.directory / "reports").iterdir()} == {"b", "c"}

        # Restarted over ranks that live, it forgets nothing of theirs; nor does a restart of the job.
        it.kill_agent()
        it.start()
        await it.heard.wait(RanksStarted, lambda e: e.adopted)
        os.kill(living.ranks[0].pid, signal.SIGKILL)
        await it.heard.wait(ProcessExited, lambda e: e.generation == 3)
        await begin(it, tmp_path, "c", 4)
        assert jobs_with_logs(it) == {"b", "c"}
        output = (it.directory / "logs/c/rank-0.out").read_text().splitlines()
        assert output[0] == "0"
        assert output.count("0") == 2

        # A forgotten name begins like a new one.
        await begin(it, tmp_path, "a", 5)
        output = (it.directory / "logs/a/rank-0.out").read_text().splitlines()
        assert output.count("0") == 1
