"""Numbers and names in text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def in_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges: `0-3, 7, 9-10`."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def ranks_in_words(numbers: Sequence[int]) -> str:
    """Return ranks as text: `rank 5`, `ranks 0-3, 7`."""
    return f"rank{'s' if len(set(numbers)) > 1 else ''} {in_ranges(numbers)}"


def machines_in_words(nodes: Sequence[str]) -> str:
    """Return machines as text: `machine node-3`, `machines 12-15`; at most 16 names, and the number of the others."""
    if len(nodes) > 1 and all(node.isdecimal() for node in nodes):
        return f"machines {in_ranges(map(int, nodes))}"
    shown = ", ".join(nodes[:16]) + (f" and {len(nodes) - 16} more" if len(nodes) > 16 else "")
    return f"machine{'s' if len(nodes) > 1 else ''} {shown}"
