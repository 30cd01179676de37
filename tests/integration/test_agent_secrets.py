"""What the memory of a rank, a fork of the node's zygote, has of the jobs that ran on the node before."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest

from holdfast.events import RanksFinished, RanksStarted, RanksStopped
from holdfast.events.parts.job import JobSpec
from holdfast_agent.companions.environment import store_prefix
from tests.integration.agent_node import Node, node, until
from tests.integration.servers import children

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

STAY = """
import os, signal
open(f"up-{os.environ['HOLDFAST_GENERATION']}-{os.environ['RANK']}", "w").close()
signal.pause()
"""

# The wanted come in two pieces each, and are put together nowhere: it would find them in its own hands.
SCAN = """
import json, os, sys
wanted = [(name, first.encode(), second.encode()) for name, first, second in json.load(open("wanted.json"))]
found = set()
def holds(data, first, second):
    at = -1
    while (at := data.find(first, at + 1)) >= 0:
        if data[at + len(first) : at + len(first) + len(second)] == second:
            return True
    return False
scanned = 0
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in list(maps):
        place, rights, _, _, inode, *path = line.split()
        if "r" not in rights or ("w" not in rights and path and path[0].startswith("/")) or "[v" in line:
            continue
        begin, end = (int(part, 16) for part in place.split("-"))
        for at in range(begin, end, 1 << 22):
            memory.seek(at)
            try:
                data = memory.read(min(1 << 22, end - at))
            except OSError:
                break
            scanned += len(data)
            found |= {name for name, first, second in wanted if holds(data, first, second)}
open_files = [os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")
              if os.path.lexists(f"/proc/self/fd/{number}") and int(number) > 2]
with open(f"found-{os.environ['RANK']}", "w") as file:
    json.dump({"found": sorted(found), "scanned": scanned, "files": open_files, "pid": os.getpid()}, file)
"""


def spec(folder: Path, name: str, script: str, ranks: int) -> JobSpec:
    return JobSpec(
        name=name,
        script=str(folder / script),
        args=("--key", secrets.token_hex(16)),
        env={"SECRET": secrets.token_hex(16)},
        token=secrets.token_hex(16),
        nproc_per_node=ranks,
        cwd=str(folder),
        directory=str(folder),
    )


def secrets_of(job: JobSpec, *generations: int) -> dict[str, str]:
    prefixes = {f"prefix {number}": store_prefix(job, number) for number in generations}
    return {"value": job.env["SECRET"], "argument": job.args[1], "token": job.token} | prefixes


async def run(it: Node, job: JobSpec, generation: int) -> list[int]:
    port = (await it.registered()).facts.store_ports[generation % 4]
    await it.order(job, generation, port)
    started = await it.heard.wait(RanksStarted, lambda e: e.generation == generation)
    return [process.pid for process in started.ranks]


def name_of(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        # The store of the generation before ends beside everything else.
        return None


async def reserve(it: Node, count: int, taken: list[int]) -> list[int]:
    ahead: list[int] = []

    def is_full() -> bool:
        ahead[:] = [pid for pid in children(it.zygote) if pid not in taken and name_of(pid) == "rank-to-be"]
        return len(ahead) == count

    await until(is_full)
    return ahead


async def test_a_rank_finds_no_secret_of_an_earlier_job_in_its_memory(
    node_place: Path, tmp_path: Path, embedded_nats: str
) -> None:
    (tmp_path / "stay.py").write_text(STAY)
    (tmp_path / "scan.py").write_text(SCAN)
    before, after = spec(tmp_path, "before", "stay.py", 1), spec(tmp_path, "after", "scan.py", 2)
    async with node("secrets", node_place, embedded_nats) as it:
        registered = await it.complete()
        taken = await run(it, before, 1)
        # A fork made ahead, and then an agent that learns from the zygote what runs.
        taken += await reserve(it, 1, taken)
        assert await run(it, before, 2) == taken[1:]
        await until((tmp_path / "up-2-0").exists)
        it.kill_agent()
        it.start()
        await it.complete(after=registered)
        ahead = await reserve(it, 1, taken)
        await it.order(None, 3)
        await it.heard.wait(RanksStopped, lambda e: e.ordered_generation == 3)
        wanted = {
            f"{job.name}: {name}": value
            for job, generations in ((before, (1, 2)), (after, (4,)))
            for name, value in secrets_of(job, *generations).items()
        }
        pieces = [(name, value[:10], value[10:]) for name, value in wanted.items()]
        (tmp_path / "wanted.json").write_text(json.dumps(pieces))
        warm, cold = await run(it, after, 4)
        assert [warm] == ahead
        await it.heard.wait(RanksFinished, lambda e: e.generation == 4)
        for rank, pid in enumerate((warm, cold)):
            seen = json.loads((tmp_path / f"found-{rank}").read_text())
            assert seen["pid"] == pid
            assert seen["scanned"] > 50 << 20
            own = {"after: argument", "after: prefix 4", "after: value"}
            assert own <= set(seen["found"]), "the scan finds what is there"
            assert set(seen["found"]) - own == set(), "what else it finds"
            assert all("/after/1-4/rank-" in path for path in seen["files"]), "its ledger, and no file of plans"
