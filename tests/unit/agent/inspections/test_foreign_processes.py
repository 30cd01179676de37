"""Processes that take the processors from a node's ranks: whose they are, and when that is trouble."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.settings.inspections import InspectionPolicy
from holdfast_agent.inspections.sources.foreign_processes import ForeignProcesses
from tests.scenes.inspected_machine import machine_at, write


def process(pid: int, cpu_s: float, *arguments: str, parent: int = 1, group: str = "/") -> dict[str, object]:
    ticks = int(cpu_s * os.sysconf("SC_CLK_TCK"))
    return {
        f"proc/{pid}/stat": f"{pid} (a (b) c) R {parent} 0 0 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 77 0 0",
        f"proc/{pid}/cmdline": "\0".join(arguments),
        f"proc/{pid}/cgroup": f"2:cpu:{group}",
    }


def rank_that_waited(ran_s: float, waited_s: float) -> dict[str, object]:
    return {"proc/30/schedstat": f"{int(ran_s * 1e9)} {int(waited_s * 1e9)} 100"}


AGENT_AND_ZYGOTE: dict[str, object] = {
    "proc/self/cgroup": "2:cpu:/node",
    **process(20, 1, "python", "-m", "holdfast_agent", group="/node"),
    **process(21, 1, "python", "-P", "-m", "holdfast_agent.zygote", group="/node"),
}


@pytest.mark.parametrize(
    ("others", "troubles"),
    [
        (lambda cpu_s: process(40, cpu_s, "backup", group="/node"), [("cpu", "strangers")]),
        # Of another control group, of the ranks' own children, or of another node that shares the processors.
        (lambda cpu_s: process(40, cpu_s, "backup", group="/other"), []),
        (lambda cpu_s: process(40, cpu_s, "loader", parent=30, group="/node"), []),
        (
            lambda cpu_s: (
                process(40, cpu_s, "backup", group="/node")
                | process(22, 1, "python", "-m", "holdfast_agent", group="/node")
            ),
            [],
        ),
    ],
)
def test_strangers_that_take_the_processors_from_ranks_are_trouble(
    tmp_path: Path, others: Callable[[float], dict[str, object]], troubles: list[tuple[str, str]]
) -> None:
    strangers = ForeignProcesses(machine_at(tmp_path, AGENT_AND_ZYGOTE), InspectionPolicy(), lambda: [30])

    def look(rank_s: float, waited_s: float, others_s: float) -> list[tuple[str, str]]:
        rank = process(30, rank_s, "python", "train.py", parent=21, group="/node")
        write(tmp_path, rank | rank_that_waited(rank_s, waited_s) | others(others_s))
        trouble = strangers.look()
        return [(trouble.device, trouble.kind)] if trouble else []

    assert look(10, 10, 0) == []
    assert look(11, 30, 10) == [], "nothing to compare with yet"
    assert look(12, 50, 20) == troubles
    # They are there still, and nobody waits for them.
    assert look(22, 50, 40) == []


def test_ranks_that_wait_for_each_other_are_no_trouble(tmp_path: Path) -> None:
    strangers = ForeignProcesses(machine_at(tmp_path, AGENT_AND_ZYGOTE), InspectionPolicy(), lambda: [30])
    for look in range(4):
        rank = process(30, 10.0 * look, "python", "train.py", parent=21, group="/node")
        stray = process(40, 1.0 * look, "backup", group="/node")
        write(tmp_path, rank | stray | rank_that_waited(1.0 * look, 100.0 * look))
        assert strangers.look() is None
