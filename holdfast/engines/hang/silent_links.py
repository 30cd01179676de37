"""Machines between which no data passes, as each node sees its network. Pure.

While a job hangs its connections are idle: the kernel at the other end, not the process, has acknowledged all data.
Data that stays unacknowledged after many retries names the two ends of a link; a machine that several such links share
is the cause. Counters of RDMA ports name one end only: which of the ranks that wait could not pass data on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holdfast.engines.wording import machines_in_words, ranks_in_words
from holdfast.events.parts.traces import Blamed, NodeLinks, SilentPeer

RETRIES_LEAST: Final = 3
"""Retries from which a link is silent: healthy networks lose a packet, but not three times in a row (1.4 s)."""

_ENDS: Final = 2
_PAIR_SURE: Final = 0.85
_HUB_SURE: Final = 0.9
_PORTS_SURE: Final = 0.75
_EVIDENCE_MOST: Final = 8


class SilentLink(msgspec.Struct, frozen=True, kw_only=True):
    """One machine that several silent links share, or the two ends of one link."""

    nodes: tuple[str, ...]
    confidence: float
    reason: str
    evidence: tuple[str, ...]


def silent_links(links: Sequence[NodeLinks]) -> tuple[list[SilentLink], list[str]]:
    """Return the fewest machines that explain all silent links, and notes on unusable reports."""
    owners = _owners(links)
    pairs: defaultdict[frozenset[str], list[str]] = defaultdict(list)
    notes: list[str] = []
    for each in links:
        for peer in each.silent_peers:
            if peer.retries < RETRIES_LEAST:
                continue
            other = owners.get(peer.peer, "")
            line = _line(each.node, other, peer)
            if other and other != each.node:
                pairs[frozenset((each.node, other))].append(line)
            elif not other:
                notes.append(f"{line}; no node of the job has that address")
    return _fewest(pairs), notes[:_EVIDENCE_MOST]


def _owners(links: Sequence[NodeLinks]) -> dict[str, str]:
    """Map addresses to nodes. An address of several nodes, such as that of a container bridge, maps to ""."""
    owners: dict[str, str] = {}
    for each in links:
        for address in each.addresses:
            owners[address] = each.node if owners.get(address, each.node) == each.node else ""
    return owners


def _fewest(pairs: dict[frozenset[str], list[str]]) -> list[SilentLink]:
    found: list[SilentLink] = []
    left = dict(pairs)
    while left:
        partners: defaultdict[str, set[str]] = defaultdict(set)
        for pair in left:
            for node in pair:
                partners[node] |= pair - {node}
        hub = min(partners, key=lambda node: (-len(partners[node]), node))
        taken = [pair for pair in left if hub in pair]
        lines = [line for pair in taken for line in left.pop(pair)]
        others = tuple(sorted(partners[hub]))
        is_hub = len(others) > 1
        ends = sorted((hub, *others))
        nodes = (hub,) if is_hub else tuple(ends)
        what = (
            f"no data passes between machine {hub} and {machines_in_words(others)}"
            if is_hub
            else f"no data passes between machines {' and '.join(ends)}"
        )
        evidence = tuple(lines[:_EVIDENCE_MOST])
        found.append(
            SilentLink(nodes=nodes, confidence=_HUB_SURE if is_hub else _PAIR_SURE, reason=what, evidence=evidence)
        )
    return found


def _line(node: str, other: str, peer: SilentPeer) -> str:
    whose = f" of rank {peer.rank}" if peer.rank is not None else ""
    to = f"{other} ({peer.peer})" if other else peer.peer
    return f"{node} to {to}: {peer.bytes} bytes{whose} not acknowledged, sent again {peer.retries} times"


def narrowed_by_ports(
    suspect: Blamed,
    members: Sequence[int],
    links: Sequence[NodeLinks],
    nodes_of: Callable[[Sequence[int]], tuple[str, ...]],
) -> Blamed | None:
    """Return `members` of a collective whose machines' ports wait for acknowledgements; None if that blames no rank.

    Behind a cut link a rank can look late although the others have its part, so the named ranks need not be suspects;
    but one of the suspects must be among them, since counters grow for other reasons too. A link has two ends: if only
    one shows, the other is unknown.
    """
    moved = {each.node: _moved(each) for each in links if each.ports}
    nodes = nodes_of(members)
    kept = [node for node in nodes if moved.get(node)]
    if len(kept) < _ENDS or not set(kept) & set(nodes_of(suspect.ranks)) or len(kept) == len(nodes):
        return None
    ranks = tuple(rank for rank in members if set(nodes_of((rank,))) & set(kept))
    lines = tuple(f"{node}: {moved[node]}" for node in kept[:_EVIDENCE_MOST])
    return Blamed(
        ranks=ranks,
        nodes=tuple(kept),
        reason=f"{suspect.reason}; in its group {ranks_in_words(ranks)} could not pass data on",
        confidence=_PORTS_SURE,
        evidence=(*suspect.evidence, *lines),
    )


def _moved(links: NodeLinks) -> str:
    return ", ".join(
        f"{port} {name} +{grown}"
        for port, counters in sorted(links.ports.items())
        for name, grown in sorted(counters.items())
        if grown > 0
    )
