"""How long a process waited for processors that others used, from recorded files of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.node.machine import Machine
from holdfast.node.proc.processor_waits import ProcessorWaits, own_waits, waits_of

PID = 7


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(proc=tmp_path / "proc", sys=tmp_path / "sys")
    _write(made.proc / "7/task/7/schedstat", "1000 400 9")
    return made


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content + "\n")


def test_the_longest_wait_of_a_thread_counts_since_the_reading_before() -> None:
    before = ProcessorWaits({7: 400, 8: 100}, 0)
    assert ProcessorWaits({7: 450, 8: 900, 9: 5000}, 0).since(before) == 800
    assert ProcessorWaits({}, 0).since(before) == 0


@pytest.mark.parametrize(
    ("groups", "stats"),
    [
        ("4:cpu,cpuacct:/pod/node\n0::/pod/node", {"cpu/pod/node": "nr_periods 3\nthrottled_time 250"}),
        ("0::/pod/node", {"pod/node": "nr_periods 3\nthrottled_usec 0", "pod": "throttled_usec 1"}),
        ("0::/pod/node", {"unified/pod/node": "throttled_usec 1"}),
        # A container's own group is all that it sees; of version 1 it may know the path that the machine knows.
        ("0::/", {".": "usage_usec 7\nthrottled_usec 1"}),
        ("4:cpu,cpuacct:/docker/4f2a", {"cpu": "nr_periods 3\nthrottled_time 250"}),
    ],
)
def test_nothing_is_a_wait_for_others_while_its_own_groups_are_throttled(
    machine: Machine, groups: str, stats: dict[str, str]
) -> None:
    _write(machine.proc / "7/cgroup", groups)
    for group in stats:
        _write(machine.sys / "fs/cgroup" / group / "cpu.stat", "usage_usec 7")
    before = waits_of(PID, machine)
    assert before == ProcessorWaits({7: 400}, 0)
    for group, stat in stats.items():
        _write(machine.sys / "fs/cgroup" / group / "cpu.stat", stat)
    _write(machine.proc / "7/task/7/schedstat", "1000 1650 9")
    now = waits_of(PID, machine)
    assert (now.since(before), now.total_s) == (0, None)
    _write(machine.proc / "7/task/7/schedstat", "1000 1700 9")
    assert waits_of(PID, machine).since(now) == 50


@pytest.mark.parametrize(
    ("groups", "waited"),
    [
        ("4:cpu,cpuacct:/pod/node\n0::/", (0, None)),
        ("0::/pod/node", (0, None)),
        # The controller of processors is in the other hierarchy.
        ("1:cpu:/\n0::/pod/node", (1250, 1650e-9)),
        ("0::/", (1250, 1650e-9)),
    ],
)
def test_nothing_is_a_wait_for_others_where_the_limits_of_its_group_cannot_be_read(
    machine: Machine, groups: str, waited: tuple[int, float | None]
) -> None:
    _write(machine.proc / "7/cgroup", groups)
    before = waits_of(PID, machine)
    _write(machine.proc / "7/task/7/schedstat", "1000 1650 9")
    now = waits_of(PID, machine)
    assert (now.since(before), now.total_s) == waited


def test_what_the_kernel_does_not_count_is_no_wait(tmp_path: Path) -> None:
    nothing = waits_of(PID, Machine(proc=tmp_path, sys=tmp_path))
    assert (nothing.total_s, nothing.since(nothing)) == (None, 0)


def test_a_process_reads_its_own() -> None:
    before = own_waits(of_all=True)
    assert own_waits(of_all=False).since(before) >= 0
    assert len(own_waits(of_all=False).of_threads_ns) <= 1
