"""A real agent removes the files of earlier jobs, and never those of ranks that live."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast.events import FirstStep, ProcessExited, RanksStarted
from holdfast.events.parts.job import JobSpec
from tests.integration.agent_node import Node, node, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

# Each line in one piece: what is killed in the middle of one would leave a beginning for the next generation's.
STEPS = """
import sys, time
from holdfast.trainer import report, step
for number in range(100_000):
    step(step=number)
    report("note", number=number)
    sys.stdout.write(f"{number}\\n")
    time.sleep(0.02)
"""


async def begin(it: Node, folder: Path, name: str, generation: int) -> RanksStarted:
    """Run a job; returns when its rank has done a step, reported and printed it."""
    job = JobSpec(name=name, script=str(folder / "steps.py"), cwd=str(folder), directory=str(folder))
    before = printed(it, name).count("0")
    port = (await it.registered()).facts.store_ports[generation % 4]
    await it.order(job, generation, port)
    started = await it.heard.wait(RanksStarted, lambda e: e.generation == generation and not e.adopted)
    await it.heard.wait(FirstStep, lambda e: e.generation == generation)
    await until(lambda: printed(it, name).count("0") != before)
    return started


def printed(it: Node, name: str) -> list[str]:
    try:
        return (it.directory / "logs" / name / "rank-0.out").read_text().splitlines()
    except FileNotFoundError:
        return []


def jobs_with_logs(it: Node) -> set[str]:
    return {path.name for path in (it.directory / "logs").iterdir()}


async def test_files_go_with_the_jobs_but_not_from_under_ranks(
    node_place: Path, tmp_path: Path, embedded_nats: str
) -> None:
    (tmp_path / "steps.py").write_text(STEPS)
    async with node("n-forgets", node_place, embedded_nats) as it:
        before = await it.complete()
        it.kill_agent()
        it.environment["HOLDFAST_RETENTION_JOBS_ON_NODE_MAX"] = "1"
        it.start()
        await it.complete(after=before)
        await begin(it, tmp_path, "a", 1)
        await begin(it, tmp_path, "b", 2)
        living = await begin(it, tmp_path, "c", 3)
        await until(lambda: jobs_with_logs(it) == {"b", "c"} and not (it.directory / "forgotten").exists())
        assert {path.stem for path in (it.directory / "reports").iterdir()} == {"b", "c"}

        # Restarted over ranks that live, it forgets nothing of theirs; nor does a restart of the job.
        it.kill_agent()
        it.start()
        await it.heard.wait(RanksStarted, lambda e: e.adopted)
        os.kill(living.ranks[0].pid, signal.SIGKILL)
        await it.heard.wait(ProcessExited, lambda e: e.generation == 3)
        await begin(it, tmp_path, "c", 4)
        assert jobs_with_logs(it) == {"b", "c"}
        output = printed(it, "c")
        assert output[0] == "0"
        assert output.count("0") == 2

        # A forgotten name begins like a new one.
        await begin(it, tmp_path, "a", 5)
        assert printed(it, "a").count("0") == 1
