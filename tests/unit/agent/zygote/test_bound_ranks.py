"""Ranks run on the processors near their GPUs, if the job asks for it; their logs say why not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast.events.parts.job import JobSpec
from holdfast.events.parts.launch import Launch
from holdfast.node.forks import fork_child
from holdfast.node.machine import Machine
from holdfast.orders.node import NodeOrder, Placement
from holdfast_agent.companions.code_place import CodePlace
from holdfast_agent.companions.start_command import start_command
from holdfast_agent.files.directories import Directories
from holdfast_agent.zygote import fork_rank
from holdfast_agent.zygote.plan_file import write
from holdfast_agent.zygote.wire import StartRanks
from tests.scenes.gpu_machines import SHAPES, gpu_machine

SHOW = ("-S", "-c", "import os; print(*sorted(os.sched_getaffinity(0)))")


def command(machine: Machine, root: Path, env: dict[str, str], launch: Launch) -> StartRanks:
    job = JobSpec(
        name="j", script=sys.executable, args=SHOW, nproc_per_node=2, cwd="/", directory="/d", launch=launch, env=env
    )
    placement = Placement(job=job, node_rank=0, master_addr="a", master_port=1)
    order = NodeOrder(node="n", epoch=1, generation=1, job="j", placement=placement)
    return start_command(order, Directories(root / "agent"), CodePlace(), None, machine)


def test_the_plan_has_the_processors_or_the_reason(tmp_path: Path) -> None:
    machine = gpu_machine(tmp_path, SHAPES["two sockets, eight GPUs"])
    near = sorted(os.sched_getaffinity(0) & {*range(8), *range(16, 24)})
    by_node = Launch(numa_binding="node")
    first, second = command(machine, tmp_path, {"CUDA_VISIBLE_DEVICES": "2"}, by_node).ranks
    assert list(first.cpus) == near and not first.notes
    assert not second.cpus and second.notes == (
        "--numa-binding: not bound: it sees 1 GPUs, so none is that of local rank 1",
    )
    virtual = command(
        machine, tmp_path, {"CUDA_VISIBLE_DEVICES": "2,3"}, Launch(numa_binding="node", virtual_local_rank=True)
    )
    assert [list(it.cpus) for it in virtual.ranks] == [near, near]
    assert not any(it.cpus or it.notes for it in command(machine, tmp_path, {}, Launch()).ranks)
    (missing, _) = command(Machine(sys=tmp_path / "none", proc=tmp_path / "none"), tmp_path, {}, by_node).ranks
    assert not missing.cpus and "it sees 0 GPUs" in missing.notes[-1]


def test_a_rank_runs_where_its_plan_says(tmp_path: Path) -> None:
    machine = gpu_machine(tmp_path, SHAPES["no NUMA"])
    start = command(machine, tmp_path, {}, Launch(numa_binding="exclusive", no_python=True))
    expected = next(it for it in start.ranks if it.cpus)
    slots, plans = write(start)
    slot = next(it for it in slots.ranks if it.rank == expected.rank)
    reading, writing = os.pipe()
    child = fork_child(lambda parent: fork_rank.become_rank(slot, plans, parent, writing, writing))
    os.close(writing)
    os.close(plans)
    with open(reading) as output:
        shown = output.read()
    os.waitpid(child, 0)
    assert shown.split() == [str(cpu) for cpu in expected.cpus]
