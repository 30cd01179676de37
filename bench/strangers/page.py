"""The table, on the screen and in docs/compatibility.md."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from report import table
from strangers.cases import CASES
from strangers.slowing import Slowed
from strangers.verdicts import Plain, Row, Told

BEGIN, END = "<!-- made by bench/compat.py: begin -->", "<!-- made by bench/compat.py: end -->"
ORDER = tuple(case.name for case in CASES)
LINE_CHARS_MAX = 120
HEAD = ("script", "losses", "fault", "back s", "went on", "lost", "reported", "by", "incident", "right")


def rows_of(row: Row) -> list[tuple[object, ...]]:
    """Return a script's lines of the table."""
    name = row.case.name
    if row.missing:
        return [(name, f"not run: {row.missing}", *("",) * (len(HEAD) - 2))]
    losses = _losses(row.plain)
    lines = [(name, losses, fault, *_told(told, row.case.steps_per_line)) for fault, told in (row.told or {}).items()]
    if row.slowed is not None:
        lines.append((name, losses, "slow node", *_slowed(row.slowed)))
    return lines or [(name, losses, *("",) * (len(HEAD) - 2))]


def _losses(plain: Plain | None) -> str:
    if plain is None:
        return ""
    if plain.failure:
        return "failed"
    return f"{plain.same} of {plain.wanted} same"


def _told(told: Told, steps_per_line: float) -> tuple[object, ...]:
    went_on = ", ".join(f"{one.last} to {one.first}" for one in told.restarts) or "no restart"
    incident = f"{told.symptom or 'none'}, rank {told.rank}" if told.rank is not None else told.symptom or "none"
    lost = f"{told.lost:g}" + ("" if steps_per_line == 1 else f" ({told.lost / steps_per_line:g} lines)")
    right = "yes" if told.is_right else "NO"
    wrong = [
        *([] if told.is_complete else ["did not end"]),
        *([] if told.names_it else ["incident"]),
        *(["steps"] if told.verdict == "WRONG" else []),
        *(["losses"] if told.is_same is False else []),
    ]
    return (
        *(None if told.back_s is None else round(told.back_s, 2), went_on, lost),
        *("unknown" if told.told_lost is None else told.told_lost, told.source, incident),
        right + (f": {', '.join(wrong)}" if wrong else ""),
    )


def _slowed(slowed: Slowed) -> tuple[object, ...]:
    if slowed.failure:
        return ("", "", "", "", "", "", f"NO: {slowed.failure}")
    went_on = f"{slowed.restart.last} to {slowed.restart.first}" if slowed.restart else "no restart"
    named = f"{', '.join(slowed.named) or 'none'} named after {slowed.named_s or 0:.0f} s"
    return (
        *(None if slowed.back_s is None else round(slowed.back_s, 2), went_on),
        *(slowed.restart.lost if slowed.restart else "", "unknown" if slowed.told_lost is None else slowed.told_lost),
        *("", f"{named}, evicted {', '.join(slowed.evicted) or 'none'}", "yes" if slowed.is_right else "NO"),
    )


def show(rows: Sequence[Row]) -> None:
    """Print the table."""
    table(HEAD, [line for row in rows for line in rows_of(row)])


def write_page(path: Path, rows: Sequence[Row], machine: str, packages: dict[str, str], at: datetime) -> None:
    """Put the lines of these scripts in their place in the page; those of other scripts stay."""
    text = path.read_text()
    before, _, rest = text.partition(BEGIN)
    table_before, _, after = rest.partition(END)
    lines = {name: kept for name in ORDER if (kept := _lines_of(name, table_before))}
    for row in rows:
        lines[row.case.name] = [_markdown(["" if cell is None else cell for cell in line]) for line in rows_of(row)]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))
    about = textwrap.wrap(f"{at:%Y-%m-%d}: {machine}{'; ' if versions else ''}{versions}.", LINE_CHARS_MAX)
    whole = [*about, "", _markdown(HEAD), _markdown(["---"] * len(HEAD))]
    whole += [line for name in ORDER for line in lines.get(name, [])]
    path.write_text("\n".join([before.rstrip("\n"), "", BEGIN, "", *whole, "", END]) + after)


def _lines_of(name: str, text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"| {name} |")]


def _markdown(cells: Sequence[object]) -> str:
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"
