"""Messages between an agent and its zygote over `zygote.sock`, framed by `holdfast.node.frames`.

The agent sends commands, the zygote reports; it keeps a rank's exit until an agent, perhaps a later one, confirms it.
No command has a secret of a job in it: those lie in a file beside it (`plan_file.py`).
"""

from __future__ import annotations

import msgspec

from holdfast.events.parts.ranks import RankException
from holdfast.node.users.job_user import JobUser

MESSAGE_BYTES_MAX = 16 * 1024 * 1024

Fence = tuple[int, int]
"""The (epoch, generation) of the order that ranks were started by."""

Part = tuple[int, int]
"""Offset and length of a part of the file of plans."""


class _ZygoteMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Attach(_ZygoteMessage, frozen=True, kw_only=True, tag="attach"):
    """The first command of an agent; it disconnects the agent before it. `orphan_s`: lifetime without an agent."""

    orphan_s: float


class Cover(msgspec.Struct, frozen=True, kw_only=True):
    """Files below `root` that the rank sees as they are in the code version below `place`."""

    root: str
    place: str
    files: tuple[str, ...]


ERROR_COPY = "error"
"""Key among the copies of a rank's output: the exception that ended it, as torchrun writes it."""


class RankPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of one rank. `log_stem` is the path of its log files without `.out` and `.err`."""

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
    user: JobUser | None = None
    """The user that it runs as; None: the zygote's."""
    is_program: bool = False
    """The script is a program, and is run without Python."""
    shown: int = 0
    """Streams (`holdfast.events.parts.launch`) whose lines are sent to the command that follows the job."""
    copies: dict[str, str] = {}
    """Files that the job's user asked for, by stream (`out`, `err`), and for the exception (`ERROR_COPY`)."""
    python: str = ""
    """The interpreter that is started; "": the zygote's."""
    library: str = ""
    """Directory with the packages of Holdfast for that interpreter."""
    cover: Cover | None = None
    """Files of the code version that are mounted over those of the source tree."""
    notes: tuple[str, ...] = ()
    """Lines for its log."""
    cpus: tuple[int, ...] = ()
    """Processors that it is bound to; empty: it is not."""
    warm: str = ""
    """With `start` exec: the kind of interpreter made ahead that can become it, "" if none can."""
    context: str = ""
    """The kind of process with a context on its device that can become it, "" if none is wanted."""


class StartRanks(msgspec.Struct, frozen=True, kw_only=True):
    """Start these ranks; `order` is for an agent that lost its state. It is sent as `StartPlanned` and a file."""

    fence: Fence
    order: bytes
    ranks: tuple[RankPlan, ...]


class RankSlot(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a rank's plan that the zygote itself needs. `plan` is the place of the whole RankPlan in the file."""

    rank: int
    local_rank: int
    start: str
    log_stem: str
    error_file: str
    plan: Part
    user: JobUser | None = None
    """The user with whose rights `copies` are written."""
    shown: int = 0
    copies: dict[str, str] = {}
    warm: str = ""
    """Kind of interpreter made ahead, as in `RankPlan`."""
    context: str = ""
    """Kind of process with a context made ahead, as in `RankPlan`."""

    @property
    def kind(self) -> str:
        """The kind of process made ahead that can become it; "": none."""
        return self.start if self.start == "fork" else self.warm


class StartPlanned(_ZygoteMessage, frozen=True, kw_only=True, tag="start_planned"):
    """Start these ranks. The file of their plans comes beside it; the zygote keeps it for the agent of later."""

    fence: Fence
    ranks: tuple[RankSlot, ...]
    order: Part


class StopRanks(_ZygoteMessage, frozen=True, kw_only=True, tag="stop_ranks"):
    """End all ranks and their descendants: SIGKILL `grace_s` after SIGTERM, to ranks in `at_once` immediately."""

    number: int
    grace_s: float
    at_once: tuple[int, ...] = ()


class StartStore(_ZygoteMessage, frozen=True, kw_only=True, tag="start_store"):
    """Serve a new TCPStore on one of the node's ports, next to the stores on other ports."""

    fence: Fence
    port: int


class StopStore(_ZygoteMessage, frozen=True, kw_only=True, tag="stop_store"):
    """End all stores but this one."""

    keep: Fence | None = None


class StartWarmUp(_ZygoteMessage, frozen=True, kw_only=True, tag="start_warm_up"):
    """Test the node beside the ranks that start, in place of an earlier warm-up. `plan`: a WarmUpPlan as JSON."""

    fence: Fence
    plan: bytes
    limit_s: float


class MakeContext(_ZygoteMessage, frozen=True, kw_only=True, tag="make_context"):
    """Keep a process with a context on this device, from which the rank of the next generation is made."""

    fence: Fence
    rank: int
    kind: str
    device: str
    floor_bytes: int
    """Free memory of the device below which it is ended."""


class AckExit(_ZygoteMessage, frozen=True, kw_only=True, tag="ack_exit"):
    """A rank's exit was made durable; the zygote may forget it."""

    exit_id: str


class FollowLines(_ZygoteMessage, frozen=True, kw_only=True, tag="follow_lines"):
    """Send the output lines of these ranks only."""

    ranks: tuple[int, ...]


class End(_ZygoteMessage, frozen=True, kw_only=True, tag="end"):
    """End all ranks at once, then the zygote."""


Command = (
    Attach | StartPlanned | StopRanks | StartStore | StopStore | StartWarmUp | MakeContext | AckExit | FollowLines | End
)


class LiveRank(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    pid: int
    fence: Fence


class RankExit(_ZygoteMessage, frozen=True, kw_only=True, tag="rank_exit"):
    """A rank exited by itself. `exit_id` is a UUIDv7; `exited_ns` is Unix time."""

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
    """The answer to `Attach`, once torch is loaded: the zygote's whole state."""

    pid: int
    store_ports: tuple[int, ...]
    python: str
    torch: str
    preload_s: float
    ranks: tuple[LiveRank, ...]
    exits: tuple[RankExit, ...]
    order_in_file: Part | None = None
    """The order of the ranks, in the file that comes beside this message."""
    order: bytes = b""
    """The order, once the agent has read it from the file."""


class RanksForked(_ZygoteMessage, frozen=True, kw_only=True, tag="ranks_forked"):
    """The answer to `StartPlanned`."""

    fence: Fence
    pids: dict[int, int]
    took_s: float
    with_context: int = 0
    """Ranks whose context had been made ahead."""


class StartRefused(_ZygoteMessage, frozen=True, kw_only=True, tag="start_refused"):
    """The answer to `StartPlanned` when no rank was started."""

    fence: Fence
    reason: str


class RanksEnded(_ZygoteMessage, frozen=True, kw_only=True, tag="ranks_ended"):
    """The answer to `StopRanks` once no rank or descendant is left. `killed` counts those that needed SIGKILL."""

    number: int
    ranks: tuple[int, ...]
    killed: int
    took_s: float


class StoreFailed(_ZygoteMessage, frozen=True, kw_only=True, tag="store_failed"):
    """The store of this fence is not served, or ended unexpectedly."""

    fence: Fence
    reason: str


class WarmUpResults(_ZygoteMessage, frozen=True, kw_only=True, tag="warm_up_results"):
    """Results of a warm-up: the fields of a DiagnosticResult each, as JSON."""

    fence: Fence
    results: tuple[bytes, ...]


class ContextReady(_ZygoteMessage, frozen=True, kw_only=True, tag="context_ready"):
    """A process with a context waits to become the rank of the next generation."""

    fence: Fence
    rank: int
    took_s: float
    free_bytes: int
    host_bytes: int


class ContextGone(_ZygoteMessage, frozen=True, kw_only=True, tag="context_gone"):
    """No process with a context waits for the next generation of this rank any more."""

    fence: Fence
    rank: int
    reason: str


class Lines(_ZygoteMessage, frozen=True, kw_only=True, tag="lines"):
    """Output of a followed rank. `dropped` earlier lines were not sent because the agent was slow."""

    fence: Fence
    rank: int
    stream: str
    lines: tuple[str, ...]
    dropped: int = 0
    is_open: bool = False
    """The last line goes on in the next report."""


class LogAlert(_ZygoteMessage, frozen=True, kw_only=True, tag="signs_seen"):
    """Log lines that match a failure signature: the first ones, and the count since the last such report."""

    fence: Fence
    rank: int
    stream: str
    signature: str
    symptom: str
    lines: tuple[str, ...]
    count: int


Report = (
    Welcome
    | RanksForked
    | StartRefused
    | RankExit
    | RanksEnded
    | StoreFailed
    | WarmUpResults
    | ContextReady
    | ContextGone
    | Lines
    | LogAlert
)

commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
