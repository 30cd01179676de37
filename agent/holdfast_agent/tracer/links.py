"""The node's view of its network: unanswered connections of its ranks, and counters of RDMA ports.

For each TCP connection the kernel gives the unacknowledged bytes, the running timer and the retransmissions
(/proc/PID/net/tcp). A zero-window probe timer means a peer that does not read, which is not a network fault.
"""

from __future__ import annotations

import ipaddress
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from holdfast.events.parts.traces import NodeLinks, SilentPeer
from holdfast.node.machine import Machine, entries, number

TIMEOUTS = ("local_ack_timeout_err", "roce_adp_retrans_to")
"""Counters of timed-out acknowledgements. Late or reordered packets are normal in busy networks."""

PEERS_REPORTED_MAX = 128
SAMPLE_EVERY_S = 5.0
SAMPLES = 4
"""Cards wait about four seconds for an acknowledgement: the last fifteen seconds cover two timeouts."""

_ESTABLISHED, _SYN_SENT = 1, 2
_SENDS_AGAIN = 1


class Connection(msgspec.Struct, frozen=True):
    """A row of /proc/net/tcp. `timer` 1: retransmission pending."""

    address: str
    peer: str
    state: int
    unacknowledged: int
    timer: int
    retries: int
    inode: int


def connections(table: str) -> Iterator[Connection]:
    """Return the readable rows of /proc/net/tcp or tcp6."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        try:
            yield Connection(
                address=_address(fields[1]),
                peer=_address(fields[2]),
                state=int(fields[3], 16),
                unacknowledged=int(fields[4].partition(":")[0], 16),
                timer=int(fields[5].partition(":")[0], 16),
                retries=int(fields[6], 16),
                inode=int(fields[9]),
            )
        except (IndexError, ValueError):
            continue


def links_of(node: str, ranks: Mapping[int, int], ports: Mapping[str, Mapping[str, int]], proc: Path) -> NodeLinks:
    """Return the network state of these ranks (rank -> pid) and of the node's cards."""
    addresses: dict[str, None] = {}
    peers: dict[tuple[int, str, str], SilentPeer] = {}
    tables: dict[str, dict[int, Connection]] = {}
    unread: list[str] = []
    for rank, pid in sorted(ranks.items()):
        try:
            own, table = _sockets(proc / str(pid)), _table(proc / str(pid), tables)
        except OSError as error:
            unread.append(f"the connections of rank {rank}, pid {pid}: {error.strerror}")
            continue
        for inode in own & table.keys():
            connection = table[inode]
            if _is_local(connection.address):
                continue
            addresses[connection.address] = None
            if _is_silent(connection):
                _add(peers, rank, connection)
    worst = sorted(peers.values(), key=lambda peer: (-peer.retries, peer.peer, peer.rank or 0))
    return NodeLinks(
        node=node,
        addresses=tuple(addresses),
        silent_peers=tuple(worst[:PEERS_REPORTED_MAX]),
        ports={port: dict(counters) for port, counters in ports.items()},
        unread="; ".join(unread[:4]),
    )


class Ports:
    """Growth of the counters of RDMA ports over the last samples. `clock` returns monotonic seconds."""

    def __init__(self, machine: Machine, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = machine.sys / "class/infiniband"
        self._clock = clock
        self._samples: deque[tuple[float, dict[str, dict[str, int]]]] = deque(maxlen=SAMPLES)

    def look(self) -> None:
        self._samples.append((self._clock(), self._read()))

    def grown(self) -> dict[str, dict[str, int]]:
        """Return the growth of each counter since the oldest sample, without those that did not grow."""
        if not self._samples:
            return {}
        before = self._samples[0][1]
        found = {
            port: {
                name: value - before[port][name]
                for name, value in counters.items()
                if value > before.get(port, {}).get(name, value)
            }
            for port, counters in self._read().items()
        }
        return {port: counters for port, counters in found.items() if counters}

    def _read(self) -> dict[str, dict[str, int]]:
        return {
            f"{card.name}:{place.name}": {
                name: value for name in TIMEOUTS if (value := number(place / "hw_counters" / name)) is not None
            }
            for card in entries(self._folder)
            for place in entries(card / "ports")
        }


def _is_silent(connection: Connection) -> bool:
    return (
        connection.state in (_ESTABLISHED, _SYN_SENT)
        and connection.timer == _SENDS_AGAIN
        and connection.retries > 0
        and connection.unacknowledged > 0
    )


def _add(peers: dict[tuple[int, str, str], SilentPeer], rank: int, connection: Connection) -> None:
    key = (rank, connection.address, connection.peer)
    known = peers.get(key) or SilentPeer(rank=rank, address=connection.address, peer=connection.peer, connections=0)
    peers[key] = msgspec.structs.replace(
        known,
        bytes=known.bytes + connection.unacknowledged,
        retries=max(known.retries, connection.retries),
        connections=known.connections + 1,
    )


def _sockets(process: Path) -> set[int]:
    """Return the socket inodes of a process."""
    found: set[int] = set()
    for name in os.listdir(process / "fd"):
        try:
            target = os.readlink(process / "fd" / name)
        except OSError:
            # Closed meanwhile.
            continue
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def _table(process: Path, tables: dict[str, dict[int, Connection]]) -> dict[int, Connection]:
    """Return the connections in a process's network namespace by inode; each namespace is read once."""
    namespace = os.readlink(process / "ns/net")
    if namespace not in tables:
        found: dict[int, Connection] = {}
        for name in ("tcp", "tcp6"):
            path = process / "net" / name
            if path.exists():
                found.update((connection.inode, connection) for connection in connections(path.read_text()))
        tables[namespace] = found
    return tables[namespace]


def _address(field: str) -> str:
    """Decode `0100007F:60D2` to an address without port: words of four bytes in native order."""
    raw = bytes.fromhex(field.partition(":")[0])
    if sys.byteorder == "little":
        raw = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    address = ipaddress.ip_address(raw)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _is_local(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return parsed.is_loopback or parsed.is_unspecified
