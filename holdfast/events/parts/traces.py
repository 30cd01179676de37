"""What is seen of a job that stands still: stacks of its processes, its ranks' records of collectives. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

ProcessKind = Literal["rank", "data_loader", "checkpoint", "other"]

RecordState = Literal["scheduled", "started", "completed"]
"""Of a collective. Backends that run on the CPU never say that one has started: it stays `scheduled` until it ends."""


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One call on a stack; `line` 0: not known."""

    function: str
    file: str = ""
    line: int = 0


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One thread's calls, innermost first."""

    frames: tuple[Frame, ...]
    name: str = ""
    is_main: bool = False
    holds_gil: bool = False
    is_idle: bool | None = None


class ProcessStacks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The threads of one process. `rank`: that of the rank that it is or belongs to; None: not known.

    `unread` says why nothing could be read, and `is_tracers_fault` that this says nothing of the process: time or
    rights were lacking. `state` is the kernel's letter for the process (`T`: stopped, `D`: waits for a device or file
    system; "": not known), `waits_in` where in the kernel it waits. `cpu_share` is the CPU time that it took while it
    was looked at, in cores, and `io_bytes_per_s` what it read and wrote; None: not known.
    """

    kind: ProcessKind = "rank"
    rank: int | None = None
    node: str = ""
    pid: int = 0
    threads: tuple[ThreadStack, ...] = ()
    state: str = ""
    unread: str = ""
    command: str = ""
    waits_in: str = ""
    is_tracers_fault: bool = False
    cpu_share: float | None = None
    io_bytes_per_s: float | None = None


class ProcessGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process group. `ranks` are global, in the order of their rank in it; `name` is the same on all its ranks."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()


class CollectiveRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One collective or point-to-point operation, as one rank has it.

    `sequence` counts the operations of the group, on this rank; point-to-point ones count apart, and `peer` is the
    global rank at the other end. Times are Unix ns; 0: not known, or not yet. `is_waited_for`: a thread of the rank
    stands in it. `took_ns`: on its device, by the clock of that; 0: not known.
    """

    group: str
    sequence: int
    operation: str
    state: RecordState = "scheduled"
    is_p2p: bool = False
    peer: int | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    dtype: str = ""
    bytes: int = 0
    created_ns: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    took_ns: int = 0
    is_waited_for: bool = False
    frames: tuple[Frame, ...] = ()


class RankTrace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one rank remembers of its collectives, oldest first.

    `entered` and `completed`: for each group the sequence of the last one begun, and of the last one that ended; they
    reach further back than `records`. `unread` says why nothing could be read.
    """

    rank: int
    node: str = ""
    groups: tuple[ProcessGroup, ...] = ()
    records: tuple[CollectiveRecord, ...] = ()
    entered: dict[str, int] = {}
    completed: dict[str, int] = {}
    taken_ns: int = 0
    unread: str = ""


class SilentPeer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whom a rank's process has sent something over TCP that is not acknowledged, however often it is sent again.

    A process that does not read is another thing: its kernel acknowledges. `address` and `peer` are those of the two
    ends, `bytes` what is not acknowledged, on so many `connections`; `retries` the most of one of them.
    """

    peer: str
    address: str = ""
    rank: int | None = None
    bytes: int = 0
    retries: int = 0
    connections: int = 1


class NodeLinks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node knows of its network while its job stands still.

    `addresses`: those at which its ranks' connections end. `ports`: port of an InfiniBand or RoCE card -> counter ->
    by how much it has grown, of acknowledgements that did not come. `unread` says what could not be read, and why.
    """

    node: str
    addresses: tuple[str, ...] = ()
    silent_peers: tuple[SilentPeer, ...] = ()
    ports: dict[str, dict[str, int]] = {}
    unread: str = ""


class Blamed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank or several that one piece of analysis holds to be at fault. `evidence`: lines that a person can check."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...] = ()
    reason: str
    confidence: float
    evidence: tuple[str, ...] = ()
