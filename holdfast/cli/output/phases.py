"""The table of an incident's phases: where its time went, by generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.cli.output.step_words import steps_lost
from holdfast.cli.output.tables import render, seconds

PHASES = ("detect", "decide", "test", "pause", "wait for nodes", "stop", "start", "first step")
TRAINING = "training between attempts"


def phases_table(phases: Sequence[dict[str, Any]], generations: Sequence[dict[str, Any]]) -> str:
    """Return a row for each generation, and one for all if there are several; phases that never were are left out."""
    took: dict[tuple[int | None, str], float] = {}
    for row in phases:
        key = row["generation"], row["phase"]
        took[key] = took.get(key, 0.0) + row["seconds"]
    shown = [name for name in (*PHASES, TRAINING) if any(phase == name for _, phase in took)]
    about = {row["generation"]: row for row in generations}
    numbers = list(dict.fromkeys([*about, *(number for number, _ in took)]))
    rows = [
        (number, *_times(took, [number], shown), *_about(about.get(number)))
        for number in sorted(numbers, key=lambda number: number or 0)
    ]
    if len(rows) > 1:
        rows.append(("all", *_times(took, numbers, shown), None, None, None))
    headers = ["GENERATION", *(name.upper() for name in shown), "TOTAL", "LOST STEPS", "OUTCOME", "NODES"]
    return render(headers, rows)


def _times(took: dict[tuple[int | None, str], float], numbers: Sequence[int | None], shown: Sequence[str]) -> list[str]:
    times = [[took[number, name] for number in numbers if (number, name) in took] for name in shown]
    return [seconds(sum(parts) if parts else None) for parts in (*times, [part for parts in times for part in parts])]


def _about(row: dict[str, Any] | None) -> tuple[object, ...]:
    if row is None:
        return None, None, None
    # A planned restart, as of a slow job, has no fault, and loses steps all the same.
    has_lost = row["lost_steps"] is not None or (row["fault_at"] is not None and row["is_start_known"] is not None)
    return steps_lost(row["lost_steps"]) if has_lost else None, row["outcome"], row["nodes"]
