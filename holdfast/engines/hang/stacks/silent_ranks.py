"""Ranks without a stack: which of them a dead machine or process explains. Pure.

Reading a stack sometimes fails on a healthy rank as well. Evidence of a fault: the whole machine is silent, the process
is gone, or only this rank is missing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping

import msgspec

from holdfast.engines.hang.group_cover import natural_order
from holdfast.topology import Mesh

_GONE = re.compile(
    r"no such process|no longer|not running|not found|exited|is gone|dead|defunct|zombie|unreachable|lost",
    re.IGNORECASE,
)

_SILENT_MOST = 1 / 8
"""Maximum share of silent ranks; above it, reading itself failed. A single machine may be silent as a whole."""

_READ_LEAST = 2
"""One stack shows nothing about those that are missing: only the rank that was asked may have been read."""


class SilentMachine(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of one machine ("": unknown) whose missing stacks are evidence."""

    ranks: tuple[int, ...]
    node: str
    confidence: float
    evidence: tuple[str, ...]


def silent_machines(
    unread: Mapping[int, str], read: set[int], mesh: Mesh | None, node_of: Callable[[int], str]
) -> list[SilentMachine]:
    """`unread`: rank -> why it could not be read; `read`: ranks that were read. The mesh's other ranks are missing."""
    missing = set(range(mesh.world_size)) - read - set(unread) if mesh else set()
    quiet = missing | set(unread)
    speaking_nodes = {node_of(rank) for rank in read}
    by_node: defaultdict[str, list[int]] = defaultdict(list)
    for rank in sorted(quiet):
        by_node[node_of(rank)].append(rank)
    whole = {node: ranks for node, ranks in by_node.items() if node and node not in speaking_nodes and len(ranks) > 1}
    counted = [rank for ranks in whole.values() for rank in ranks]
    if not counted:
        counted = sorted(rank for rank, why in unread.items() if _GONE.search(why))
    if not counted and len(missing) == 1:
        counted = sorted(missing)
    nodes = sorted({node_of(rank) for rank in counted}, key=natural_order)
    is_few = len(counted) <= _SILENT_MOST * (len(read) + len(quiet)) or (len(nodes) == 1 and nodes[0] != "")
    if not is_few or len(counted) > len(read) or len(read) < _READ_LEAST:
        return []
    return [
        SilentMachine(
            ranks=tuple(rank for rank in counted if node_of(rank) == node),
            node=node,
            confidence=0.6 if node in whole or any(rank in unread for rank in counted) else 0.5,
            evidence=tuple(f"rank {rank}: {unread[rank]}" for rank in by_node[node][:8] if unread.get(rank)),
        )
        for node in nodes
    ]
