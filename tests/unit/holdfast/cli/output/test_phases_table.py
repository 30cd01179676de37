"""The table of an incident's phases."""

from __future__ import annotations

import re
from typing import Any

from holdfast.cli.output.phases import phases_table


def phase(generation: int, name: str, seconds: float) -> dict[str, Any]:
    return {"generation": generation, "phase": name, "seconds": seconds}


def generation(number: int, lost_steps: int | None, **fields: Any) -> dict[str, Any]:
    begun = {"fault_at": "then", "is_start_known": True, "outcome": "training", "nodes": ["a"]}
    return {"generation": number, "lost_steps": lost_steps} | begun | fields


def rows_of(table: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in table.splitlines()]


def test_phases_are_columns_and_attempts_are_rows() -> None:
    phases = [
        phase(2, "detect", 1.0),
        phase(2, "decide", 2.0),
        phase(2, "wait for nodes", 160.0),
        phase(2, "decide", 0.5),
        phase(2, "first step", 8.0),
        phase(2, "training between attempts", 100.0),
        phase(3, "first step", 9.0),
    ]
    rows = rows_of(phases_table(phases, [generation(2, 23), generation(3, None, is_start_known=False)]))
    times = ["DETECT", "DECIDE", "WAIT FOR NODES", "FIRST STEP", "TRAINING BETWEEN ATTEMPTS", "TOTAL"]
    assert ["GENERATION", *times, "LOST STEPS", "OUTCOME", "NODES"] in rows
    assert ["2", "1.000", "2.500", "160.000", "8.000", "100.000", "271.500", "23", "training", "a"] in rows
    (second,) = (row for row in rows if row[0] == "3")
    assert second[-4:] == ["9.000", "unknown", "training", "a"]
    (everything,) = (row for row in rows if row[0] == "all")
    assert "280.500" in everything


def test_an_attempt_that_has_not_begun_has_lost_nothing_yet() -> None:
    table = phases_table([phase(2, "detect", 1.0)], [generation(2, None, is_start_known=None)])
    assert "unknown" not in table and "all" not in table


def test_what_a_planned_restart_lost_is_shown_though_it_had_no_fault() -> None:
    lost = phases_table([phase(2, "stop", 1.0)], [generation(2, 30, fault_at=None)])
    (row,) = (row for row in rows_of(lost) if row[0] == "2")
    assert row[-3:] == ["30", "training", "a"]
    none = phases_table([phase(1, "stop", 1.0)], [generation(1, None, fault_at=None)])
    (row,) = (row for row in rows_of(none) if row[0] == "1")
    assert row[-3:] == ["-", "training", "a"]
