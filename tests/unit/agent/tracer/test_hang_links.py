"""Who is at fault by what nodes know of their network, and what the agent makes of the kernel's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.engines.hang.hang_verdict import judge_hang
from holdfast.engines.hang.silent_links import silent_links
from holdfast.events.parts.traces import (
    CollectiveRecord,
    Frame,
    NodeLinks,
    ProcessGroup,
    ProcessStacks,
    RankTrace,
    SilentPeer,
    ThreadStack,
)
from holdfast.node.machine import Machine
from holdfast_agent.tracer.links import Ports, connections

WORLD = ProcessGroup(name="0", description="default_pg", ranks=tuple(range(8)))

WAITS = ThreadStack(frames=(Frame(function="all_reduce", file="torch/distributed/distributed_c10d.py"),), is_main=True)


def node(number: int, *peers: tuple[str, int], ports: int = 0) -> NodeLinks:
    return NodeLinks(
        node=str(number),
        addresses=(f"10.0.0.{number}", "172.17.0.1"),
        silent_peers=tuple(SilentPeer(rank=2 * number, peer=peer, bytes=9, retries=retries) for peer, retries in peers),
        ports={"mlx5_0:1": {"local_ack_timeout_err": ports}} if ports else {},
    )


def waiting(*, late: int | None = None) -> list[RankTrace]:
    return [
        RankTrace(
            rank=rank,
            groups=(WORLD,),
            records=(
                CollectiveRecord(
                    group="0",
                    sequence=4 if rank == late else 5,
                    operation="all_reduce",
                    state="completed" if rank == late else "scheduled",
                ),
            ),
        )
        for rank in range(8)
    ]


def test_the_two_ends_of_a_link_are_named() -> None:
    links = [node(0), node(1, ("10.0.0.3", 5)), node(2), node(3, ("10.0.0.1", 4))]
    verdict = judge_hang((), waiting(), ranks_per_node=2, links=links)
    assert (verdict.nodes, verdict.ranks, verdict.scope) == (("1", "3"), (2, 3, 6, 7), "group")
    assert verdict.confidence == 0.85 and "no data passes between machines 1 and 3" in verdict.summary
    assert any("9 bytes of rank 2 not acknowledged, sent again 5 times" in line for line in verdict.evidence)


def test_the_machine_that_bad_links_have_in_common_is_named_alone() -> None:
    links = [node(0, ("10.0.0.2", 5)), node(1, ("10.0.0.2", 6)), node(2, ("10.0.0.3", 4)), node(3)]
    verdict = judge_hang((), waiting(), ranks_per_node=2, links=links)
    assert (verdict.nodes, verdict.scope, verdict.confidence) == (("2",), "machine", 0.9)


def test_packets_lost_once_and_hosts_outside_of_the_job_blame_nobody() -> None:
    links = [node(0, ("10.0.0.2", 2)), node(1, ("203.0.113.9", 8)), node(2, ("172.17.0.1", 7))]
    found, notes = silent_links(links)
    assert found == []
    assert len(notes) == 2 and all("no node of the job has that address" in note for note in notes)
    assert len(judge_hang((), waiting(), ranks_per_node=2, links=links).nodes) == 4


def test_behind_a_cut_link_a_rank_looks_late_and_its_stack_does_not() -> None:
    links = [node(0, ("10.0.0.1", 5)), node(1), node(2), node(3)]
    verdict = judge_hang((), waiting(late=6), ranks_per_node=2, links=links)
    assert verdict.nodes == ("0", "1")
    stopped = ProcessStacks(rank=6, state="T")
    others = [ProcessStacks(rank=rank, threads=(WAITS,)) for rank in range(8) if rank != 6]
    verdict = judge_hang([*others, stopped], waiting(late=6), ranks_per_node=2, links=links)
    assert verdict.nodes == ("3",)
    assert "no data passes between machines 0 and 1" in verdict.notes


def test_ports_that_wait_for_acknowledgements_narrow_a_group_down() -> None:
    links = [node(0), node(1, ports=3), node(2), node(3, ports=1)]
    verdict = judge_hang((), waiting(), ranks_per_node=2, links=links)
    assert (verdict.nodes, verdict.ranks, verdict.confidence) == (("1", "3"), (2, 3, 6, 7), 0.75)
    assert "1: mlx5_0:1 local_ack_timeout_err +3" in verdict.evidence
    everywhere = [node(number, ports=1) for number in range(4)]
    assert len(judge_hang((), waiting(), ranks_per_node=2, links=everywhere).nodes) == 4


def test_counters_count_from_the_oldest_sample(tmp_path: Path) -> None:
    counters = tmp_path / "class/infiniband/mlx5_0/ports/1/hw_counters"
    counters.mkdir(parents=True)
    (counters / "local_ack_timeout_err").write_text("7\n")
    (counters / "out_of_sequence").write_text("1\n")
    ports = Ports(Machine(sys=tmp_path))
    assert ports.grown() == {}, "no sample yet"
    ports.look()
    assert ports.grown() == {}
    (counters / "local_ack_timeout_err").write_text("9\n")
    (counters / "out_of_sequence").write_text("100\n")
    assert ports.grown() == {"mlx5_0:1": {"local_ack_timeout_err": 2}}
    for _ in range(4):
        ports.look()
    assert ports.grown() == {}, "that is long ago"
    (counters / "local_ack_timeout_err").write_text("0\n")
    assert ports.grown() == {}, "the card was reset"


@pytest.mark.parametrize(
    ("row", "peer", "state", "timer", "retries"),
    [
        (
            "0: 011F4D0A:8C1E 021F4D0A:0FA0 01 0000C350:00000000 01:0000012C 00000004     0        0 991 2",
            "10.77.31.2",
            1,
            1,
            4,
        ),
        (
            "0: 011F4D0A:8C1E 021F4D0A:0FA0 02 00000001:00000000 01:0000012C 00000002     0        0 991 2",
            "10.77.31.2",
            2,
            1,
            2,
        ),
        (
            "3: 0000000000000000FFFF0000011F4D0A:8C1E 0000000000000000FFFF0000021F4D0A:0FA0 01 00000000:00000000"
            " 00:00000000 00000000     0        0 991 1",
            "10.77.31.2",
            1,
            0,
            0,
        ),
    ],
)
def test_rows_of_the_kernel(row: str, peer: str, state: int, timer: int, retries: int) -> None:
    (found,) = connections(f"  sl  local_address ...\n   {row}\n   broken\n")
    assert (found.address, found.peer, found.inode) == ("10.77.31.1", peer, 991)
    assert (found.state, found.timer, found.retries) == (state, timer, retries)
