"""A real agent, its zygote and real gloo ranks: started, killed, stopped, adopted, restarted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from holdfast.daemon.nursery import NURSERY_VARIABLE
from holdfast.events import (
    CheckpointSaved,
    FirstStep,
    MessageRejected,
    NodeDeparted,
    NodeInspected,
    ProcessExited,
    Progress,
    RanksFinished,
    RanksStarted,
    RanksStopped,
    SpoolSetAside,
    StepsMeasured,
)
from holdfast.events.parts.job import JobSpec
from tests.integration.agent_node import Node, gone, node, parent_of, until
from tests.integration.servers import stands

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
steps = int(sys.argv[1])
for step in range(steps):
    model(torch.ones(2, 8)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    print(f"rank {os.environ['RANK']} step {step}")
    if steps > 100:
        time.sleep(0.01)
dist.destroy_process_group()
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def spec(folder: Path, script: str = "train.py", *args: str, ranks: int = 4, **fields: object) -> JobSpec:
    return JobSpec(
        name="job-1",
        script=str(folder / script),
        args=args,
        nproc_per_node=ranks,
        cwd=str(folder),
        directory=str(folder),
        **fields,  # type: ignore[arg-type]
    )


async def run(it: Node, job: JobSpec, generation: int = 1) -> RanksStarted:
    port = (await it.registered()).facts.store_ports[generation % 4]
    await it.order(job, generation, port)
    return await it.heard.wait(RanksStarted, lambda e: e.generation == generation)


async def first_step(it: Node, generation: int = 1) -> FirstStep:
    return await it.heard.wait(FirstStep, lambda e: e.generation == generation)


async def test_a_job_runs_to_its_end(node_place: Path, scripts: Path, embedded_nats: str) -> None:
    async with node("n-ends", node_place, embedded_nats) as it:
        inspected = await it.heard.wait(NodeInspected)
        assert inspected.passed
        started = await run(it, spec(scripts, "train.py", "5"))
        assert [process.rank for process in started.ranks] == [0, 1, 2, 3]
        assert not started.adopted
        finished = await it.heard.wait(RanksFinished)
        assert finished.ranks == (0, 1, 2, 3)
        assert (await first_step(it)).step == 0

        def steps() -> set[tuple[int, int]]:
            return {(sample.rank, sample.step) for event in it.heard.all(StepsMeasured) for sample in event.samples}

        # They go another way than the word of the end, which may overtake them.
        await it.heard.until(lambda: len(steps()) == 20)
        # Each says how many came before it, so that whoever adds them up sees a gap.
        said = 0
        for event in sorted(it.heard.all(StepsMeasured), key=lambda event: event.before):
            assert (event.before, event.missed, event.world_size) == (said, 0, 4)
            said += len(event.samples)
        assert (it.directory / "logs/job-1/rank-2.out").read_text().splitlines()[-1] == "rank 2 step 4"
        assert not it.heard.all(ProcessExited)


async def test_a_killed_rank_is_reported_and_the_next_generation_runs(
    node_place: Path, scripts: Path, embedded_nats: str
) -> None:
    async with node("n-kill", node_place, embedded_nats) as it:
        job = spec(scripts, "train.py", "100000")
        started = await run(it, job)
        await first_step(it)
        # It prints a step only when it has done it.
        output = it.directory / "logs/job-1/rank-2.out"
        await until(lambda: output.exists() and "rank 2 step" in output.read_text())
        os.kill(started.ranks[2].pid, signal.SIGKILL)
        exited = await it.heard.wait(ProcessExited, lambda e: e.rank == 2)
        assert (exited.signal, exited.exit_code, exited.local_rank) == (signal.SIGKILL, None, 2)
        assert exited.steps_done > 0
        assert exited.step == exited.steps_done - 1
        assert "rank 2 step" in exited.log_tail
        again = await run(it, job, 2)
        stopped = await it.heard.wait(RanksStopped)
        assert (stopped.generation, stopped.ordered_generation) == (1, 2)
        assert {process.pid for process in again.ranks}.isdisjoint(process.pid for process in started.ranks)
        await first_step(it, 2)
        # Generation 1 is older than what runs: whoever says it again is not obeyed.
        await it.order(job, 1, 1)
        await it.heard.wait(Progress, lambda e: e.generation == 2 and e.step >= 0)
        await it.order(None, 3)
        ended = await it.heard.wait(RanksStopped, lambda e: e.ordered_generation == 3)
        assert ended.ranks == (0, 1, 2, 3)
        for process in again.ranks:
            await gone(process.pid)
        print(f"notice to bus: {(it.heard.heard_at(exited) - exited.exited_at).total_seconds() * 1e3:.1f} ms")
        print(f"stop: {stopped.took_s * 1e3:.1f} ms, fork: {again.took_s * 1e3:.1f} ms")


async def test_a_killed_agent_adopts_its_living_ranks(node_place: Path, scripts: Path, embedded_nats: str) -> None:
    async with node("n-adopt", node_place, embedded_nats) as it:
        # Ranks that do not need each other: one may die and the others stay.
        (scripts / "alone.py").write_text(
            "import time, holdfast.trainer\nwhile True:\n    holdfast.trainer.step(loss=1.0)\n    time.sleep(0.01)\n"
        )
        started = await run(it, spec(scripts, "alone.py"))
        await first_step(it)
        it.kill_agent()
        os.kill(started.ranks[1].pid, signal.SIGKILL)
        await gone(started.ranks[1].pid)
        it.start()
        adopted = await it.heard.wait(RanksStarted, lambda e: e.adopted)
        assert adopted.ranks == tuple(process for process in started.ranks if process.rank != 1)
        # The zygote kept what happened while no agent was there.
        exited = await it.heard.wait(ProcessExited, lambda e: e.rank == 1)
        assert exited.signal == signal.SIGKILL
        assert len(it.heard.all(ProcessExited, lambda e: e.rank == 1)) == 1


async def test_ranks_that_died_with_agent_and_zygote_are_reported_and_not_started_again(
    node_place: Path, scripts: Path, embedded_nats: str
) -> None:
    async with node("n-lost", node_place, embedded_nats) as it:
        before = await it.complete()
        started = await run(it, spec(scripts, "train.py", "100000", ranks=2))
        await first_step(it)
        it.kill_agent()
        os.kill(it.zygote, signal.SIGKILL)
        for process in started.ranks:
            await gone(process.pid)
        it.start()
        for rank in (0, 1):
            exited = await it.heard.wait(ProcessExited, lambda e, rank=rank: e.rank == rank)
            assert exited.detail == "not found when the agent came back"
            assert (exited.exit_code, exited.signal) == (None, None)
            assert exited.steps_done > 0
        await it.complete(after=before)
        assert len(it.heard.all(RanksStarted)) == 1


async def test_a_killed_zygote_takes_its_ranks_and_is_replaced(
    node_place: Path, scripts: Path, embedded_nats: str
) -> None:
    # As on a machine without a nursery: the agent starts its zygote itself.
    no_nursery = {NURSERY_VARIABLE: str(scripts / "nursery.sock")}
    async with node("n-zygote", node_place, embedded_nats, no_nursery) as it:
        before = await it.complete()
        job = spec(scripts, "train.py", "100000", ranks=2)
        started = await run(it, job)
        await first_step(it)
        os.kill(it.zygote, signal.SIGKILL)
        for rank in (0, 1):
            exited = await it.heard.wait(ProcessExited, lambda e, rank=rank: e.rank == rank)
            assert "zygote" in exited.detail
        for process in started.ranks:
            await gone(process.pid)
        # Its ports may be others.
        await it.complete(after=before)
        assert parent_of(it.zygote) == it.process.pid
        await run(it, job, 2)
        await first_step(it, 2)


async def test_an_agent_whose_spool_is_damaged_starts_with_an_empty_one_and_adopts_its_ranks(
    node_place: Path, scripts: Path, embedded_nats: str
) -> None:
    async with node("n-spool", node_place, embedded_nats) as it:
        started = await run(it, spec(scripts, "train.py", "100000", ranks=2))
        it.kill_agent()
        # From a log that is whole SQLite would mend it.
        (node_place / "agent.db-wal").unlink()
        (node_place / "agent.db").write_bytes(b"torn" * 1000)
        it.start()
        aside = await it.heard.wait(SpoolSetAside)
        assert Path(aside.path).read_bytes() == b"torn" * 1000
        adopted = await it.heard.wait(RanksStarted, lambda event: event.adopted)
        assert [rank.pid for rank in adopted.ranks] == [rank.pid for rank in started.ranks]


async def test_an_agent_that_leaves_stops_its_ranks_and_says_so(
    node_place: Path, scripts: Path, embedded_nats: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Beside it, and a moment for the bus, it stays for nobody; what it has not said by then nobody hears.
    monkeypatch.setenv("HOLDFAST_TIMEOUTS_STOP_GRACE_S", "25")
    async with node("n-leave", node_place, embedded_nats) as it:
        started = await run(it, spec(scripts, "train.py", "100000", ranks=2))
        await first_step(it)
        zygote = it.zygote
        assert await it.end_agent() == 0
        await it.heard.wait(NodeDeparted)
        assert (await it.heard.wait(RanksStopped)).ranks == (0, 1)
        for pid in (zygote, *(process.pid for process in started.ranks)):
            await gone(pid)
        assert not it.heard.all(ProcessExited)


async def test_an_orphaned_zygote_ends_its_ranks_and_itself(
    node_place: Path, scripts: Path, embedded_nats: str
) -> None:
    (scripts / "holdfast.toml").write_text(
        "[timeouts]\norphan_s = 1.0\nheartbeat_s = 0.1\nnode_lost_s = 0.5\nlease_s = 5.0"
    )
    async with node("n-orphan", node_place, embedded_nats) as it:
        before = await it.complete()
        it.environment = {"HOLDFAST_CONFIG": str(scripts / "holdfast.toml")}
        it.kill_agent()
        it.start()
        await it.complete(after=before)
        started = await run(it, spec(scripts, "train.py", "100000", ranks=2))
        zygote = it.zygote
        it.kill_agent()
        for pid in (zygote, *(process.pid for process in started.ranks)):
            await gone(pid)


async def test_an_exception_is_recorded_and_shown(node_place: Path, scripts: Path, embedded_nats: str) -> None:
    (scripts / "broken.py").write_text("def load():\n    raise ValueError('no such data')\n\nload()\n")
    async with node("n-raise", node_place, embedded_nats) as it:
        await run(it, spec(scripts, "broken.py", ranks=1))
        exited = await it.heard.wait(ProcessExited)
        assert exited.exit_code == 1
        assert exited.exception is not None
        assert (exited.exception.type, exited.exception.message) == ("ValueError", "no such data")
        assert "in load" in exited.exception.traceback
        assert exited.log_tail == exited.exception.traceback
        assert "holdfast" not in exited.log_tail
        assert exited.steps_done == 0


async def test_children_of_ranks_are_swept_also_those_in_sessions_of_their_own(
    node_place: Path, scripts: Path, embedded_nats: str
) -> None:
    (scripts / "parents.py").write_text(
        "import os, subprocess, sys, time\n"
        "import torch\n"
        "def worker():\n"
        "    time.sleep(1000)\n"
        "import multiprocessing\n"
        "child = multiprocessing.get_context('fork').Process(target=worker)\n"
        "child.start()\n"
        "daemon = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "stubborn = subprocess.Popen([sys.executable, '-c', 'import signal, time;"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(1000)'], stdout=-1)\n"
        "stubborn.stdout.readline()\n"
        "open('pids', 'w').write(f'{child.pid} {daemon.pid} {stubborn.pid}')\n"
        "import holdfast.trainer\n"
        "holdfast.trainer.step(step=41, loss=0.5)\n"
        "holdfast.trainer.checkpoint_saved(step=41, path='/x', checkpoint_bytes=9, took_s=0.1)\n"
        "time.sleep(1000)\n"
    )
    async with node("n-sweep", node_place, embedded_nats) as it:
        started = await run(it, spec(scripts, "parents.py", ranks=1))
        assert (await first_step(it)).step == 41
        saved = await it.heard.wait(CheckpointSaved)
        assert (saved.step, saved.checkpoint_bytes, saved.generation) == (41, 9, 1)
        os.kill(started.ranks[0].pid, signal.SIGSTOP)
        while not stands(started.ranks[0].pid):  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.001)
        pids = [int(pid) for pid in (scripts / "pids").read_text().split()]
        await it.order(None, 2)
        stopped = await it.heard.wait(RanksStopped)
        assert stopped.killed == 1
        for pid in pids:
            assert not Path(f"/proc/{pid}").exists()


async def test_an_executed_rank_sees_its_environment_and_arguments(
    node_place: Path, scripts: Path, embedded_nats: str
) -> None:
    (scripts / "look.py").write_text(
        "import json, os, sys\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
        "print(json.dumps([sys.argv, sys.path[0], __name__, os.getcwd(), torch.get_num_threads(), dict(os.environ)]))\n"
    )
    async with node("n-exec", node_place, embedded_nats) as it:
        job = spec(scripts, "look.py", "a", "--b", ranks=1, start="exec", env={"OMP_NUM_THREADS": "2", "X": "y"})
        await run(it, job)
        await it.heard.wait(RanksFinished)
        argv, first, name, cwd, threads, environment = json.loads((it.directory / "logs/job-1/rank-0.out").read_text())
        assert argv == [str(scripts / "look.py"), "a", "--b"]
        assert (first, name, cwd, threads) == (str(scripts), "__main__", str(scripts), 2)
        assert environment["X"] == "y"
        assert environment["TORCHELASTIC_USE_AGENT_STORE"] == "True"
        assert environment["HOLDFAST_GENERATION"] == "1"
        assert "HOLDFAST_NATS_URL" not in environment


async def test_a_module_runs_as_python_m_would(node_place: Path, scripts: Path, embedded_nats: str) -> None:
    (scripts / "tool").mkdir()
    (scripts / "tool/__init__.py").write_text("")
    (scripts / "tool/__main__.py").write_text(
        "import sys\nfrom . import part\nprint(sys.argv[1:], __spec__.name, part.X)\nsys.exit(3)\n"
    )
    (scripts / "tool/part.py").write_text("X = 7\n")
    async with node("n-module", node_place, embedded_nats) as it:
        job = JobSpec(
            name="job-1", script="tool", args=("q",), is_module=True, cwd=str(scripts), directory=str(scripts)
        )
        await run(it, job)
        exited = await it.heard.wait(ProcessExited)
        assert (exited.exit_code, exited.exception) == (3, None)
        assert exited.log_tail == "['q'] tool.__main__ 7\n"


async def test_an_unreadable_order_is_put_aside_and_the_present_one_goes_on(
    node_place: Path, scripts: Path, embedded_nats: str
) -> None:
    async with node("n-bad", node_place, embedded_nats) as it:
        job = spec(scripts, "train.py", "100000", ranks=1)
        await run(it, job)
        await it.put(b"\xff{ not json")
        rejected = await it.heard.wait(MessageRejected)
        assert rejected.body_bytes == 11
        await first_step(it)
        await run(it, job, 2)
