"""The agent asks for contexts once ranks train, says why not, and asks no more once they may have done harm."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from holdfast.events import ContextAhead
from holdfast.events.parts.job import JobSpec
from holdfast.events.parts.ranks import RankException
from holdfast.orders.node import NodeOrder, Placement
from holdfast_agent.companions.code_place import CodePlace
from holdfast_agent.companions.contexts import Contexts
from holdfast_agent.companions.start_command import start_command
from holdfast_agent.files.directories import Directories
from holdfast_agent.plan.devices.contexts import DeviceUsed
from holdfast_agent.plan.node_state import Crew
from holdfast_agent.zygote.wire import ContextGone, ContextReady, MakeContext, RankExit, StartRanks

GIB = 1 << 30
PLENTY = DeviceUsed(device="cuda:0", free_bytes=8 * GIB)


class Scene:
    def __init__(self, root: Path, room_bytes: int = 4 * GIB) -> None:
        self.root = root
        self.sent: list[MakeContext] = []
        self.published: list[ContextAhead] = []
        self.crew: Crew | None = None
        self.host_bytes = 8 * GIB
        now = datetime(2026, 1, 1, tzinfo=UTC)
        self.contexts = Contexts(
            "n",
            room_bytes,
            lambda: self.crew,
            self.sent.append,
            lambda *it: self.published.extend(it),
            lambda: now,
            lambda: self.host_bytes,
        )

    def start(self, generation: int, job: str = "j", **fields: object) -> StartRanks:
        spec = JobSpec(name=job, script=sys.executable, nproc_per_node=2, cwd="/", directory="/d")
        placement = Placement(job=spec, node_rank=0, master_addr="a", master_port=1, **fields)  # type: ignore[arg-type]
        order = NodeOrder(node="n", epoch=1, generation=generation, job=job, placement=placement)
        self.crew = Crew(order=order)
        directories = Directories(self.root)
        directories.prepare()
        return self.contexts.begin(order, start_command(order, directories, CodePlace(), None))

    def used(self, rank: int, used: DeviceUsed = PLENTY) -> None:
        self.contexts.device_used(rank, used)


def kinds(command: StartRanks) -> list[str]:
    return [plan.context for plan in command.ranks]


def test_a_job_without_an_accelerator_is_started_as_before(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert kinds(scene.start(1)) == kinds(scene.start(2)) == ["", ""]
    assert not scene.sent and not scene.published


def test_ranks_that_train_are_asked_for_and_the_next_generation_takes_them(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert kinds(scene.start(1)) == ["", ""]
    scene.used(0)
    scene.used(1)
    assert [(it.rank, it.device, it.floor_bytes) for it in scene.sent] == [
        (0, "cuda:0", 2 * GIB),
        (1, "cuda:0", 2 * GIB),
    ]
    scene.contexts.take(ContextReady(fence=(1, 1), rank=1, took_s=2.0, free_bytes=7 * GIB, host_bytes=300 << 20))
    assert [(it.rank, it.is_ready, it.free_before_bytes) for it in scene.published] == [(1, True, 8 * GIB)]
    # Checks are no generation of the job's ranks.
    assert kinds(scene.start(2, purpose="checks")) == ["", ""]
    assert kinds(scene.start(3)) == [it.kind for it in scene.sent]
    assert kinds(scene.start(4, job="other")) == ["", ""]
    scene.contexts.take(ContextGone(fence=(1, 1), rank=0, reason="ranks start that cannot use it"))
    assert (scene.published[-1].job, scene.published[-1].is_ready) == ("j", False)


def test_why_there_is_none_is_published_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for generation in (1, 2):
        scene.start(generation)
        scene.used(0, DeviceUsed(device="cuda:0", free_bytes=GIB))
    assert not scene.sent
    [none] = scene.published
    assert "1024 MiB of cuda:0 are free" in none.reason
    scene.start(3)
    scene.host_bytes = 2 * GIB - 1
    scene.used(0)
    assert not scene.sent and "of the host are free" in scene.published[-1].reason
    off = Scene(tmp_path, room_bytes=0)
    off.start(1)
    off.used(0)
    assert not off.sent and not off.published


def test_after_a_lack_of_memory_there_are_none_for_this_job(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.start(1)
    scene.used(0)
    error = RankException(type="torch.OutOfMemoryError", message="", traceback="")
    scene.contexts.rank_ended(
        RankExit(
            exit_id="1",
            fence=(1, 1),
            rank=0,
            local_rank=0,
            pid=9,
            exit_code=1,
            signal=None,
            exited_ns=0,
            log_tail="",
            exception=error,
        )
    )
    assert kinds(scene.start(2)) == ["", ""]
    scene.used(0)
    assert len(scene.sent) == 1
    assert "ran out of memory" in scene.published[-1].reason
    scene.start(3, job="other")
    scene.used(0)
    assert len(scene.sent) == 2
