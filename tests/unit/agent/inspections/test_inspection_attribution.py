"""Whose a line of the kernel's log is, where nodes share a machine."""

from pathlib import Path

import pytest

from holdfast.engines.hardware.kernel_lines import read_line
from holdfast.settings.inspections import InspectionPolicy
from holdfast_agent.inspections.attribution import Attribution, NodeHardware, belongs
from holdfast_agent.inspections.node_hardware import Gpus, HardwareFinder
from tests.scenes.inspected_machine import machine_at

XID = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
IN_CGROUP = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/pods/a,"
    "task_memcg=/pods/a/ranks,task=python,pid=4711,uid=0"
)
ANYWHERE = (
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/pods/a,"
    "task=python,pid=4711,uid=0"
)


def owner(line: str, **has: object) -> Attribution | None:
    trouble = read_line(line)
    assert trouble is not None
    return belongs(trouble, NodeHardware(**has))  # type: ignore[arg-type]


def test_a_gpu_belongs_to_the_node_that_was_given_it() -> None:
    mine, other = frozenset({"0000:3b:00"}), frozenset({"0000:86:00"})
    assert owner(XID, gpus=mine, gpus_are_own=True) == Attribution("node")
    assert owner(XID, gpus=other, gpus_are_own=True) is None


def test_where_nobody_has_divided_the_gpus_they_are_the_machines() -> None:
    assert owner(XID, gpus=frozenset({"0000:3b:00", "0000:86:00"})) == Attribution("host")


def test_a_gpu_that_the_machine_is_not_known_to_have_is_no_more_than_a_hint() -> None:
    assert owner(XID, gpus=frozenset({"0000:86:00"})) == Attribution("host", is_certain=False)
    assert owner(XID) == Attribution("host", is_certain=False)


@pytest.mark.parametrize(
    ("line", "has", "found"),
    [
        (
            "mlx5_core 0000:1a:00.0 eth1: Link down",
            {"interfaces": {"eth1"}, "nics": {"0000:1a:00"}},
            Attribution("node"),
        ),
        # Another namespace has an eth1 as well: the address decides.
        ("mlx5_core 0000:5e:00.0 eth1: Link down", {"interfaces": {"eth1"}, "nics": {"0000:1a:00"}}, None),
        # The other port of the same card is another namespace's.
        ("mlx5_core 0000:1a:00.1 eth2: Link down", {"interfaces": {"eth1"}, "nics": {"0000:1a:00"}}, None),
        (
            "mlx5_core 0000:1a:00.0: assert_exit_ptr 0x1",
            {"interfaces": {"eth1"}, "nics": {"0000:1a:00"}},
            Attribution("node"),
        ),
        ("NETDEV WATCHDOG: eth1 (ena): transmit queue 0 timed out", {"interfaces": {"eth1"}}, Attribution("node")),
        ("NETDEV WATCHDOG: eth9 (ena): transmit queue 0 timed out", {"interfaces": {"eth1"}}, None),
    ],
)
def test_a_network_card_belongs_to_the_node_in_whose_namespace_it_is(
    line: str, has: dict[str, set[str]], found: Attribution | None
) -> None:
    assert owner(line, **{name: frozenset(values) for name, values in has.items()}) == found


def test_an_oom_kill_belongs_to_the_node_whose_process_it_was() -> None:
    assert owner(IN_CGROUP, pids=frozenset({4711})) == Attribution("node")
    assert owner(IN_CGROUP, pids=frozenset({12})) is None
    # Its cgroup may be that of several agents: where pids can be seen they decide.
    assert owner(IN_CGROUP, pids=frozenset({12}), cgroup="/pods/a") is None


def test_a_rank_that_lived_only_between_two_readings_is_still_the_nodes(tmp_path: Path) -> None:
    gpus = Gpus(of_machine=frozenset(), own=frozenset(), are_divided=False)
    finder = HardwareFinder(machine_at(tmp_path), InspectionPolicy(), gpus, lambda: (), lambda: ())
    finder.note_started((4711,))
    finder.note_processes()
    finder.note_processes()
    assert 4711 in finder.find().pids


def test_in_a_container_the_cgroup_tells_since_pids_are_others_there() -> None:
    assert owner(IN_CGROUP, sees_pids=False, cgroup="/pods/a") == Attribution("node")
    assert owner(IN_CGROUP, sees_pids=False, cgroup="/pods/b") is None
    assert owner(IN_CGROUP, sees_pids=False, cgroup="/pods/a/r") is None
    assert owner(IN_CGROUP, sees_pids=False, cgroup="") is None


def test_a_machine_short_of_memory_concerns_all_nodes_on_it() -> None:
    assert owner(ANYWHERE, pids=frozenset({4711})) == Attribution("node")
    assert owner(ANYWHERE, pids=frozenset({12})) == Attribution("host", is_certain=False)


@pytest.mark.parametrize("line", ["Kernel panic - not syncing: Fatal", "BUG: soft lockup - CPU#3 stuck for 22s!"])
def test_what_names_no_device_concerns_the_machine(line: str) -> None:
    assert owner(line, gpus=frozenset({"0000:3b:00"}), gpus_are_own=True) == Attribution("host")


def test_a_disk_is_certain_if_something_of_the_node_lies_on_it() -> None:
    disks = frozenset({"nvme0n1p1", "nvme0n1"})
    assert owner("EXT4-fs error (device nvme0n1p1): x", disks=disks) == Attribution("host")
    assert owner("nvme nvme0: Removing after probe failure", disks=disks) == Attribution("host")
    assert owner("EXT4-fs error (device sdb1): x", disks=disks) == Attribution("host", is_certain=False)
