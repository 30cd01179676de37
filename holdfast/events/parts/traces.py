"""Traces of a job without progress: stacks of its processes, its ranks' records of collectives."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.events.parts.scalars import Integer

ProcessKind = Literal["rank", "data_loader", "checkpoint", "other"]

RecordState = Literal["scheduled", "started", "completed"]
"""State of a collective. Backends on the CPU never report a start: it stays `scheduled` until it ends."""


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One call on a stack."""

    function: str
    file: str = ""
    line: Integer = 0
    """0: not known."""


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One thread's calls, innermost first."""

    frames: tuple[Frame, ...]
    name: str = ""
    is_main: bool = False
    holds_gil: bool = False
    is_idle: bool | None = None


class ProcessStacks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The threads of one process."""

    kind: ProcessKind = "rank"
    rank: Integer | None = None
    """The rank that it is or belongs to; None: not known."""
    node: str = ""
    pid: Integer = 0
    threads: tuple[ThreadStack, ...] = ()
    state: str = ""
    """The kernel's letter (`T`: stopped, `D`: waits for a device or file system); "": not known."""
    unread: str = ""
    """Reason why the stacks could not be read."""
    command: str = ""
    waits_in: str = ""
    """Function of the kernel in which it waits."""
    is_tracers_fault: bool = False
    """Time or rights were lacking: `unread` shows nothing about the process."""
    cpu_share: float | None = None
    """CPU time that it used during the trace, in cores; None: not known."""
    waited_s: float | None = None
    """Seconds for which its main thread has waited for a processor that others used, since a moment before the trace
    that differs between processes; None: not known."""
    io_bytes_per_s: float | None = None
    """Bytes that it read and wrote; None: not known."""
    wakes_per_s: float | None = None
    """Number of times per second that its main thread waited and went on; None: not known."""
    child: Integer | None = None
    """Its place among the children of its parent, by age from 0; None: a rank itself, or not known."""


class ProcessGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process group."""

    name: str
    """Name of the group, equal on all its ranks."""
    description: str = ""
    ranks: tuple[Integer, ...] = ()
    """Global ranks, in the order of their rank in the group."""


class CollectiveRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One collective or point-to-point operation in the records of one rank.

    Times are Unix ns; 0: not known or not yet.
    """

    group: str
    sequence: Integer
    """Number of the operation in its group, on this rank; point-to-point operations count apart."""
    operation: str
    state: RecordState = "scheduled"
    is_p2p: bool = False
    peer: Integer | None = None
    """Global rank at the other end of a point-to-point operation."""
    input_sizes: tuple[tuple[Integer, ...], ...] = ()
    output_sizes: tuple[tuple[Integer, ...], ...] = ()
    dtype: str = ""
    bytes: Integer = 0
    created_ns: Integer = 0
    started_ns: Integer = 0
    ended_ns: Integer = 0
    took_ns: Integer = 0
    """Duration on the device, by its clock; 0: not known."""
    is_waited_for: bool = False
    """A thread of the rank is in it."""
    frames: tuple[Frame, ...] = ()


class RankTrace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Recent collectives of one rank, oldest first."""

    rank: Integer
    node: str = ""
    groups: tuple[ProcessGroup, ...] = ()
    records: tuple[CollectiveRecord, ...] = ()
    entered: dict[str, Integer] = {}
    """Group -> sequence of the last collective begun; reaches further back than `records`."""
    completed: dict[str, Integer] = {}
    """Group -> sequence of the last collective that ended."""
    taken_ns: Integer = 0
    unread: str = ""
    """Reason why there are no records."""


class SilentPeer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A peer that does not acknowledge what a rank's process sent over TCP, in spite of retransmissions.

    A process that does not read differs: its kernel acknowledges.
    """

    peer: str
    """Address of the other end."""
    address: str = ""
    """Address of this end."""
    rank: Integer | None = None
    bytes: Integer = 0
    """Bytes not acknowledged."""
    retries: Integer = 0
    """Most retransmissions on one connection."""
    connections: Integer = 1


class NodeLinks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The network of a node while its job makes no progress."""

    node: str
    addresses: tuple[str, ...] = ()
    """Addresses at which connections of its ranks end."""
    silent_peers: tuple[SilentPeer, ...] = ()
    ports: dict[str, dict[str, Integer]] = {}
    """Port of an InfiniBand or RoCE card -> counter of missing acknowledgements -> its growth."""
    unread: str = ""
    """Unreadable parts, and why."""


class Blamed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ranks that one piece of analysis considers at fault."""

    ranks: tuple[Integer, ...]
    nodes: tuple[str, ...] = ()
    reason: str
    confidence: float
    evidence: tuple[str, ...] = ()
    """Lines that a person can check."""
