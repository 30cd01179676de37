"""Messages between an agent and its zygote over `zygote.sock`, framed by `holdfast.node.frames`.

The agent commands, the zygote reports. What it reports of a rank's end is kept until the agent acknowledges it, so that
an agent that was dead learns it too.
"""

from __future__ import annotations

import msgspec

from holdfast.events.parts.ranks import RankException

MESSAGE_BYTES_MAX = 16 * 1024 * 1024

Fence = tuple[int, int]
"""The (epoch, generation) of the order that ranks were started by."""


class _ZygoteMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


# --- what an agent says ------------------------------------------------------------------------


class Attach(_ZygoteMessage, frozen=True, kw_only=True, tag="attach"):
    """First word of an agent; whoever was attached before is cut off. `orphan_s`: how long to live without an agent."""

    orphan_s: float
    takes_log_alerts: bool = msgspec.field(default=False, name="hears_signs")


class RankPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How to start one rank. `log_stem` is the path of its log files without `.out` and `.err`."""

    rank: int
    local_rank: int
    environment: dict[str, str]
    cwd: str
    script: str
    args: tuple[str, ...]
    is_module: bool
    start: str
    log_stem: str
    error_file: str


class StartRanks(_ZygoteMessage, frozen=True, kw_only=True, tag="start_ranks"):
    """Start these ranks; `order` is kept as it is for an agent that forgot what it ordered."""

    fence: Fence
    order: bytes
    ranks: tuple[RankPlan, ...]


class StopRanks(_ZygoteMessage, frozen=True, kw_only=True, tag="stop_ranks"):
    """End all ranks and whatever they left behind.

    `grace_s` lies between SIGTERM and SIGKILL; the ranks in `at_once` get none.
    """

    number: int
    grace_s: float
    at_once: tuple[int, ...] = ()


class StartStore(_ZygoteMessage, frozen=True, kw_only=True, tag="start_store"):
    """Serve a fresh TCPStore on one of the node's ports, besides those on other ports."""

    fence: Fence
    port: int


class StopStore(_ZygoteMessage, frozen=True, kw_only=True, tag="stop_store"):
    """End all stores but this one."""

    keep: Fence | None = None


class AckExit(_ZygoteMessage, frozen=True, kw_only=True, tag="ack_exit"):
    """This end of a rank has been made durable; forget it."""

    exit_id: str


class FollowLines(_ZygoteMessage, frozen=True, kw_only=True, tag="follow_lines"):
    """Send what these ranks print, line by line, from now on, and of no others."""

    ranks: tuple[int, ...]


class End(_ZygoteMessage, frozen=True, kw_only=True, tag="end"):
    """End all ranks at once, then yourself."""


Command = Attach | StartRanks | StopRanks | StartStore | StopStore | AckExit | FollowLines | End


# --- what a zygote says ------------------------------------------------------------------------


class LiveRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that runs now."""

    rank: int
    pid: int
    fence: Fence


class RankExit(_ZygoteMessage, frozen=True, kw_only=True, tag="rank_exit"):
    """A rank ended by itself. `exit_id` is a UUIDv7; `exited_ns` is Unix time."""

    exit_id: str
    fence: Fence
    rank: int
    local_rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    exited_ns: int
    log_tail: str
    exception: RankException | None = None


class Welcome(_ZygoteMessage, frozen=True, kw_only=True, tag="welcome"):
    """The answer to `Attach`: everything there is. Comes once torch is loaded."""

    pid: int
    store_ports: tuple[int, ...]
    python: str
    torch: str
    preload_s: float
    ranks: tuple[LiveRank, ...]
    exits: tuple[RankExit, ...]
    order: bytes


class RanksForked(_ZygoteMessage, frozen=True, kw_only=True, tag="ranks_forked"):
    """Answer to `StartRanks`."""

    fence: Fence
    pids: dict[int, int]
    took_s: float


class StartRefused(_ZygoteMessage, frozen=True, kw_only=True, tag="start_refused"):
    """Answer to `StartRanks` when none was started."""

    fence: Fence
    reason: str


class RanksEnded(_ZygoteMessage, frozen=True, kw_only=True, tag="ranks_ended"):
    """Answer to `StopRanks`: none is left, nor any process they started. `killed` counts those that needed SIGKILL."""

    number: int
    ranks: tuple[int, ...]
    killed: int
    took_s: float


class StoreFailed(_ZygoteMessage, frozen=True, kw_only=True, tag="store_failed"):
    """The store of this fence is not served, or ended unasked."""

    fence: Fence
    reason: str


class Lines(_ZygoteMessage, frozen=True, kw_only=True, tag="lines"):
    """What a followed rank printed; `dropped` lines before these were not sent because the agent was slow."""

    fence: Fence
    rank: int
    stream: str
    lines: tuple[str, ...]
    dropped: int = 0


class LogAlert(_ZygoteMessage, frozen=True, kw_only=True, tag="signs_seen"):
    """A rank printed lines that show trouble: the first of them, and how many since the last such report."""

    fence: Fence
    rank: int
    stream: str
    signature: str
    symptom: str
    lines: tuple[str, ...]
    count: int


Report = Welcome | RanksForked | StartRefused | RankExit | RanksEnded | StoreFailed | Lines | LogAlert

commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
