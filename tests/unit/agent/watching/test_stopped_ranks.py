"""Ranks that a signal has stopped, and those of which it has stopped a process that they started."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast_agent.plan.node_state import RankStatus
from holdfast_agent.tracer.process_tree import Process, children_by_age
from holdfast_agent.watching.stopped_ranks import StoppedRanks

START = datetime(2026, 1, 1, tzinfo=UTC)
FENCE = (1, 1)
RANK, OTHER, CHILD, CHILD_OF_OTHER = 100, 200, 101, 201


class Node:
    """Two ranks with a child each."""

    def __init__(self) -> None:
        self.stopped: set[int] = set()
        self.listed = 0
        self.ranks = StoppedRanks(lambda pid: pid in self.stopped, self._processes)

    def _processes(self, _: object) -> list[Process]:
        self.listed += 1
        pids = {RANK: 0, CHILD: 0, OTHER: 1, CHILD_OF_OTHER: 1}
        return [Process(pid=pid, rank=rank, kind="other") for pid, rank in pids.items()]

    def at(self, second: float, still_s: float = 60.0) -> frozenset[int]:
        now = START + timedelta(seconds=second)
        status = RankStatus(changed_at=now - timedelta(seconds=still_s))
        return self.ranks.look(FENCE, {0: RANK, 1: OTHER}, {0: status, 1: status}, now)


def test_a_rank_is_stopped_if_its_process_is() -> None:
    node = Node()
    node.stopped = {OTHER}
    assert node.at(0, still_s=0.1) == {1}
    node.stopped = set()
    assert node.at(0.5) == {1} and node.at(1) == frozenset(), "it is looked at once a second"


def test_a_rank_whose_child_is_stopped_is_found_by_the_second_look() -> None:
    node = Node()
    node.stopped = {CHILD_OF_OTHER}
    found = [node.at(second) for second in range(6)]
    assert found == [frozenset()] * 3 + [{1}] * 3
    node.stopped = set()
    assert node.at(6) == frozenset()


def test_a_child_that_is_stopped_for_a_moment_is_none() -> None:
    node = Node()
    for second in range(12):
        node.stopped = {(CHILD, CHILD_OF_OTHER)[second % 2]} if second % 3 == 0 else set()
        assert node.at(second) == frozenset()


def test_processes_are_not_listed_while_ranks_note_what_they_do() -> None:
    node = Node()
    node.stopped = {CHILD}
    assert not any(node.at(second, still_s=1.0) for second in range(20)) and node.listed == 0


def test_children_are_counted_from_the_oldest_without_helpers_of_python() -> None:
    def child(pid: int, started: int, parent: int = 1) -> Process:
        return Process(pid=pid, rank=0, kind="other", parent=parent, started=started)

    rank = Process(pid=1, rank=0, kind="rank")
    children = [child(7, 30), child(8, 20), child(9, 10), child(5, 40, parent=8)]
    assert children_by_age([rank, *children], helpers={9}) == {8: 0, 7: 1, 5: 0}
