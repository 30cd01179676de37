"""Output of the benchmarks: progress while they run, a table, and one line of JSON at the end."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence


def tell(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(name), *(len(row[column]) for row in cells)) for column, name in enumerate(head)]
    for line in ([*head], ["-" * width for width in widths], *cells):
        print("  ".join(_padded(text, width) for text, width in zip(line, widths, strict=True)).rstrip())


def final_line(figures: dict[str, object]) -> None:
    """The figures, for programs; the last line of the output."""
    print(json.dumps(figures, default=str), flush=True)


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The nearest-rank percentile."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * int(percent * 10) // 1000) - 1)]


def rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"
    return str(value)


def _padded(text: str, width: int) -> str:
    return text.rjust(width) if text[:1].isdigit() or text[:1] == "-" else text.ljust(width)
