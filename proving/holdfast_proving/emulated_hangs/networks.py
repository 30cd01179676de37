"""Evidence of the network on the nodes of a job that hangs: connections without an answer, or counters of RDMA ports.

Half of the jobs speak TCP, half RDMA. A rank whose kernel has started sends the first part of its data to the next of
the ring at once, whether that has started or not. Over RDMA a rank that has started also writes to the one before
it that it may send. What is sent to a machine that is dead, or over a link that is cut, is sent again and again.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Set

from holdfast.events.parts.traces import NodeLinks, SilentPeer
from holdfast_proving.emulated_hangs.running import Run

_TIMED_OUT = 0.9
"""An acknowledgement is given up after some four seconds, and who looks may come before that at one end or both."""


def links_of(run: Run, dead: Set[int], lost: float, chance: random.Random) -> list[NodeLinks]:
    """One report of each machine that answers. `dead`: ranks of a dead machine; `lost`: the share of reports."""
    layout = run.layout
    machines = layout.ranks // layout.ranks_per_node
    gone = {layout.node(rank) for rank in dead}
    cut = set() if run.faults.cut is None else set(run.faults.cut[:2])
    bad = {(a, b): rank for a, b, rank in _sent(run) if b in gone or {a, b} == cut}
    answered = {(a, b) for a, b, _ in _awaited(run) if b in gone or {a, b} == cut}
    peers: defaultdict[int, list[SilentPeer]] = defaultdict(list)
    moved: set[int] = set()
    if chance.random() < 0.5:
        for (a, b), rank in sorted(bad.items()):
            peers[a].append(_peer(a, _address(b), rank, chance.randint(4, 6)))
        _disturb_connections(peers, machines, layout.ranks_per_node, chance)
    else:
        is_soon = chance.random() >= _TIMED_OUT
        moved.update(a for a in sorted({a for a, _ in bad.keys() | answered}) if not is_soon or chance.random() < 0.5)
        if chance.random() < 0.1:
            moved.update(chance.sample(range(machines), chance.randint(1, 2)))
    return [
        NodeLinks(
            node=str(node),
            addresses=(_address(node),),
            silent_peers=tuple(peers[node]),
            ports={"mlx5_0:1": {"local_ack_timeout_err": chance.randint(1, 8)}} if node in moved else {},
        )
        for node in range(machines)
        if node not in gone and chance.random() >= lost
    ]


def _disturb_connections(
    peers: defaultdict[int, list[SilentPeer]], machines: int, ranks_per_node: int, chance: random.Random
) -> None:
    """What has nothing to do with it: an answer that is a little late, a host outside that is not there."""
    if chance.random() < 0.1:
        a, b = chance.sample(range(machines), 2)
        peers[a].append(_peer(a, _address(b), a * ranks_per_node, chance.randint(1, 2)))
    if chance.random() < 0.1:
        a = chance.randrange(machines)
        peers[a].append(_peer(a, "203.0.113.7", a * ranks_per_node, chance.randint(3, 9)))


def _peer(node: int, address: str, rank: int, retries: int) -> SilentPeer:
    return SilentPeer(rank=rank, address=_address(node), peer=address, bytes=65536, retries=retries)


def _address(node: int) -> str:
    return f"10.0.{node >> 8}.{node & 255}"


def _sent(run: Run) -> Iterator[tuple[int, int, int]]:
    """From which machine to which data is under way, and the rank that sends it."""
    node = run.layout.node
    for key, meeting in run.meetings.items():
        if meeting.ended:
            continue
        if len(key) == 4:
            if key[2] in meeting.ranks and node(key[2]) != node(key[3]):
                yield node(key[2]), node(key[3]), key[2]
            continue
        members = run.layout.members[key[0]]
        joined = set(meeting.ranks)
        for one, other in zip(members, members[1:] + members[:1], strict=True):
            if one in joined and node(one) != node(other):
                yield node(one), node(other), one


def _awaited(run: Run) -> Iterator[tuple[int, int, int]]:
    """Over RDMA: from which machine to which somebody has written that it may send, and the rank that did."""
    node = run.layout.node
    for key, meeting in run.meetings.items():
        if meeting.ended:
            continue
        if len(key) == 4:
            if key[3] in meeting.ranks and node(key[2]) != node(key[3]):
                yield node(key[3]), node(key[2]), key[3]
            continue
        members = run.layout.members[key[0]]
        joined = set(meeting.ranks)
        for one, other in zip(members, members[1:] + members[:1], strict=True):
            if other in joined and node(one) != node(other):
                yield node(other), node(one), other
