"""A group that is convincing enough to evict at the first hang (ByteRobust §5.1). Pure.

The paper assumes that one fault leaves most machines with the same stacks, and that the others share the parallel group
of the faulty one. A script that deadlocks by itself leaves groups too: ranks that took another branch, left a
collective out, wait for data or for a lock. So a group is convincing only if

- it is one group along some dimensions of the mesh, or the ends of a link on which no data pass, of at most half of
  the machines, and has all outliers;
- each outlier waits for other ranks, and for nothing else;
- they wait in several operations, as a chain does whose cause is among them: ranks that took another branch all wait in
  the same one. In one operation only if the collectives show that all its members have joined it alike;
- the collectives do not point to the script: none was left out, or called with other arguments or in another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.engines.hang.hang_verdict import HangVerdict
from holdfast.engines.hang.stacks.process_state import ProcessState, StateReader
from holdfast.events.parts.traces import ProcessStacks


def convincing_group(
    verdict: HangVerdict, stacks: Sequence[ProcessStacks], node_of_rank: Mapping[int, str]
) -> tuple[str, ...]:
    """Return the machines of the group, the most suspect first; empty if none is convincing."""
    nodes = _machines_of_group(verdict, node_of_rank)
    if not nodes or 2 * len(nodes) > len(set(node_of_rank.values())):
        return ()
    of_script = verdict.collectives is not None and any(
        each.kind != "joined_not_moving" for each in verdict.collectives.blamed
    )
    outliers = _outliers(verdict, stacks)
    if of_script or not _is_inside(outliers, nodes, node_of_rank):
        return ()
    all_joined = verdict.collectives is not None and bool(verdict.collectives.blamed)
    if not all_joined and len({state.place for state in outliers.values()}) < 2:
        return ()
    by_rank = {node: rank for rank, node in sorted(node_of_rank.items(), reverse=True)}
    return tuple(sorted(nodes, key=lambda node: (_innocence(node, outliers, node_of_rank), by_rank[node])))


def _machines_of_group(verdict: HangVerdict, node_of_rank: Mapping[int, str]) -> tuple[str, ...]:
    """Return the machines of the only group that is suspected; empty if there are several suspects, or one machine."""
    if verdict.scope != "group" or len(verdict.suspects) != 1:
        return ()
    (suspect,) = verdict.suspects
    shared = verdict.stacks.shared if verdict.stacks else ()
    is_group = len(shared) <= 1
    nodes = {node_of_rank[rank] for rank in suspect.ranks if rank in node_of_rank}
    return tuple(nodes) if is_group and len(nodes) > 1 else ()


def _outliers(verdict: HangVerdict, stacks: Sequence[ProcessStacks]) -> dict[int, ProcessState]:
    """Return the states of the ranks whose stacks differ from those of most."""
    reader = StateReader()
    outliers = set(verdict.stacks.outliers) if verdict.stacks else set()
    return {
        process.rank: reader.read(process)
        for process in stacks
        if process.kind == "rank" and process.rank is not None and process.rank in outliers and process.threads
    }


def _is_inside(outliers: Mapping[int, ProcessState], nodes: Sequence[str], node_of_rank: Mapping[int, str]) -> bool:
    """Return True if all outliers wait for other ranks, and are on machines of the group."""
    return all(state.activity.doing == "others" and node_of_rank.get(rank) in nodes for rank, state in outliers.items())


def _innocence(node: str, outliers: Mapping[int, ProcessState], node_of_rank: Mapping[int, str]) -> int:
    """Return 0 for a machine at the end of a chain, 1 for one that waits for a neighbour, 2 for one that looks like
    most."""
    here = [state for rank, state in outliers.items() if node_of_rank.get(rank) == node]
    if not here:
        return 2
    return int(all(state.activity.is_p2p for state in here))
