"""Forks made ahead: used once, exact copies of a rank made on demand, harmless while they wait."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.events import RanksFinished, RanksStarted, RanksStopped
from holdfast.events.parts.job import JobSpec
from tests.integration.agent_node import Node, gone, node, until
from tests.integration.servers import children

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

LOOK = """
import json, linecache, os, random, signal, sys, threading
import numpy, torch, torch.distributed
generation = os.environ["HOLDFAST_GENERATION"]
rank = os.environ["RANK"]
rules = sys.modules.get("torch._dynamo.trace_rules")
seen = {
    "pid": os.getpid(),
    "environment": dict(os.environ),
    "cwd": os.getcwd(),
    "argv": sys.argv,
    "signals": {number: str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)},
    "files": sorted(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")) for fd in os.listdir("/proc/self/fd")
                    if os.path.exists(f"/proc/self/fd/{fd}") and int(fd) > 2),
    "leader": os.getsid(0) == os.getpid(),
    "name": open("/proc/self/comm").read().strip(),
    "threads": torch.get_num_threads(),
    "random": [random.random(), float(numpy.random.rand()), float(torch.rand(()))],
    "sources": [module.__file__ in linecache.cache for module in (torch.random, torch.distributed.distributed_c10d)],
    "rules": rules.get_torch_obj_rule_map.cache_info().currsize if rules else 0,
    "print": print(f"rank {rank} of generation {generation}"),
}
with open(f"seen-{generation}-{rank}.tmp", "w") as file:
    json.dump(seen, file)
os.rename(f"seen-{generation}-{rank}.tmp", f"seen-{generation}-{rank}")
if len(sys.argv) > 1:
    signal.pause()
"""

RANKS = 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "look.py").write_text(LOOK)
    return tmp_path


def spec(folder: Path, *args: str, ranks: int = RANKS, **fields: object) -> JobSpec:
    return JobSpec(
        name="job-1",
        script=str(folder / "look.py"),
        args=args,
        nproc_per_node=ranks,
        cwd=str(folder),
        directory=str(folder),
        **fields,  # type: ignore[arg-type]
    )


async def run(it: Node, job: JobSpec, generation: int) -> list[int]:
    port = (await it.registered()).facts.store_ports[generation % 4]
    await it.order(job, generation, port)
    started = await it.heard.wait(RanksStarted, lambda e: e.generation == generation)
    return [process.pid for process in started.ranks]


def waiting(it: Node) -> list[int]:
    """The forks made ahead that are there now, oldest first."""
    return [pid for pid in children(it.zygote) if name_of(pid) == "rank-to-be"]


def name_of(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        # The store of the generation before ends beside everything else.
        return None


async def full(it: Node, taken: Sequence[int], ranks: int = RANKS) -> list[int]:
    """Wait until as many wait as the job has ranks.

    Those that were `taken` may not know it yet: also the first ranks of a test may have been made ahead, in the test
    before it. Those that were counted are returned, for one loses its name for a moment as it executes an interpreter.
    """
    ahead: list[int] = []

    def is_full() -> bool:
        ahead[:] = [pid for pid in waiting(it) if pid not in taken]
        return len(ahead) == ranks

    await until(is_full)
    return ahead


async def seen(folder: Path, generation: int, ranks: int = RANKS) -> list[dict[str, Any]]:
    paths = [folder / f"seen-{generation}-{rank}" for rank in range(ranks)]
    await until(lambda: all(path.exists() for path in paths))
    return [json.loads(path.read_text()) for path in paths]


async def test_a_rank_forked_ahead_is_like_one_forked_on_demand(
    node_place: Path, folder: Path, embedded_nats: str
) -> None:
    async with node("r-same", node_place, embedded_nats) as it:
        job = spec(folder, "stay", env={"COLOUR": "blue", "LONG": "x" * 50_000})
        first = await run(it, job, 1)
        ahead = await full(it, first)
        assert set(ahead).isdisjoint(first)
        cold = await seen(folder, 1)
        second = await run(it, job, 2)
        assert second == ahead
        warm = await seen(folder, 2)
        assert [one["pid"] for one in warm] == ahead
        for before, after in zip(cold, warm, strict=True):
            of_generation = {
                name for name in before["environment"] if before["environment"][name] != after["environment"].get(name)
            }
            assert of_generation == {
                "HOLDFAST_GENERATION",
                "HOLDFAST_LEDGER",
                "MASTER_PORT",
                "TORCHELASTIC_ERROR_FILE",
                "TORCHELASTIC_RESTART_COUNT",
            }
            assert before["environment"].keys() == after["environment"].keys()
            for what in ("cwd", "argv", "signals", "files", "leader", "name", "threads"):
                assert before[what] == after[what], what
        # What `torch.manual_seed` would read, and `init_process_group` clear.
        assert all(one["sources"] == [True, True] and not one["rules"] for one in (*cold, *warm))
        drawn = [number for one in (*cold, *warm) for number in one["random"]]
        assert len(set(drawn)) == len(drawn)
        # The zygote writes it, when it comes to it.
        output = it.directory / "logs/job-1/rank-1.out"
        await until(lambda: output.exists() and "rank 1 of generation 2" in output.read_text())


async def test_each_is_used_once_and_all_are_replaced(node_place: Path, folder: Path, embedded_nats: str) -> None:
    async with node("r-once", node_place, embedded_nats) as it:
        job = spec(folder, "stay")
        used = await run(it, job, 1)
        for generation in (2, 3):
            ahead = await full(it, used)
            assert await run(it, job, generation) == ahead
            used += ahead
        # At once, with the reserve still empty.
        used += await run(it, job, 4)
        await seen(folder, 4)
        assert len(set(used)) == len(used)
        await it.order(None, 5)
        ended = await it.heard.wait(RanksStopped, lambda e: e.ordered_generation == 5)
        assert ended.ranks == (0, 1)
        for pid in used:
            await gone(pid)


async def test_one_that_died_is_passed_over(node_place: Path, folder: Path, embedded_nats: str) -> None:
    async with node("r-dead", node_place, embedded_nats) as it:
        first = await run(it, spec(folder, "stay"), 1)
        ahead = await full(it, first)
        os.kill(ahead[0], signal.SIGKILL)
        await gone(ahead[0])
        second = await run(it, spec(folder), 2)
        assert ahead[1] in second
        assert ahead[0] not in second
        await it.heard.wait(RanksFinished, lambda e: e.generation == 2)


async def test_a_large_plan_arrives_whole(node_place: Path, folder: Path, embedded_nats: str) -> None:
    async with node("r-large", node_place, embedded_nats) as it:
        first = await run(it, spec(folder, "stay"), 1)
        ahead = await full(it, first)
        job = spec(folder, env={f"LARGE_{number}": "x" * 100_000 for number in range(12)})
        assert await run(it, job, 2) == ahead
        for one in await seen(folder, 2):
            assert one["environment"].items() >= job.env.items()
        await it.heard.wait(RanksFinished, lambda e: e.generation == 2)


async def test_ranks_that_are_executed_afresh_take_none(node_place: Path, folder: Path, embedded_nats: str) -> None:
    async with node("r-exec", node_place, embedded_nats) as it:
        first = await run(it, spec(folder, "stay"), 1)
        ahead = await full(it, first)
        second = await run(it, spec(folder, "stay", start="exec"), 2)
        assert set(second).isdisjoint(ahead)
        assert waiting(it) == ahead


async def test_they_end_with_the_zygote(node_place: Path, folder: Path, embedded_nats: str) -> None:
    async with node("r-end", node_place, embedded_nats) as it:
        before = await it.complete()
        first = await run(it, spec(folder, "stay"), 1)
        ahead = await full(it, first)
        os.kill(it.zygote, signal.SIGKILL)
        for pid in ahead:
            await gone(pid)
        # A new zygote knows of no order, so it makes none ahead.
        await it.complete(after=before)
        assert waiting(it) == []


async def test_interpreters_are_made_ahead_where_forks_cannot_have_the_environment(
    node_place: Path, folder: Path, embedded_nats: str
) -> None:
    async with node("r-other", node_place, embedded_nats) as it:
        # One rank: each imports torch for itself.
        job = spec(folder, "stay", ranks=1, env={"MALLOC_ARENA_MAX": "1"})
        cold_ones = await run(it, job, 1)
        ahead = await full(it, cold_ones, 1)
        cold = await seen(folder, 1, 1)
        assert await run(it, job, 2) == ahead
        for before, after in zip(cold, await seen(folder, 2, 1), strict=True):
            for what in ("cwd", "argv", "signals", "files", "leader", "threads"):
                assert before[what] == after[what], what
            assert after["environment"]["HOLDFAST_GENERATION"] == "2"
            assert before["environment"].keys() == after["environment"].keys()
        # What was made with other variables is for no other job.
        await full(it, [*cold_ones, *ahead], 1)
        await run(it, spec(folder, "stay", ranks=1, env={"MALLOC_ARENA_MAX": "2"}), 3)
        assert {one["environment"]["MALLOC_ARENA_MAX"] for one in await seen(folder, 3, 1)} == {"2"}
