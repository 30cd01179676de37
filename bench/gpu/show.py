"""Tables and the last line of the benchmarks of this folder."""

from __future__ import annotations

from typing import Any

import machine
from device import NOT_ASKED, Part, Parts, in_words
from report import final_line, rounded, table


def show(bench: str, described: dict[str, Any], parts: list[Part], results: Parts) -> None:
    """Print a table for each part, what was left out and why, and one line of JSON."""
    print(f"\n{in_words(described)}")
    for part in parts:
        rows = results.found.get(part.name)
        if rows:
            keys = tuple(dict.fromkeys(key for row in rows for key in row))
            print(f"\n{part.heading}")
            table(keys, [tuple(row.get(key) for key in keys) for row in rows])
        elif results.left_out.get(part.name, NOT_ASKED) != NOT_ASKED:
            print(f"\n{part.heading}\nleft out: {results.left_out[part.name]}")
    print()
    found = {name: [_rounded(row) for row in rows] for name, rows in results.found.items()}
    figures = {"bench": bench, "machine": described, "load": machine.load(), "results": found}
    final_line({**figures, "left_out": results.left_out})


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: rounded(value, 6) if isinstance(value, float) else value for key, value in row.items()}
