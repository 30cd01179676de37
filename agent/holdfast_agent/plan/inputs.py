"""Inputs of the agent's decisions. Each has a UUIDv7 from which the ids of the emitted events derive."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.engines.checks.warm_up import WarmUpResult
from holdfast.orders.node import NodeOrder
from holdfast_agent.plan.node_state import RankStatus
from holdfast_agent.zygote.wire import Fence, LiveRank, LogAlert, RankExit


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """An observation to decide on."""

    id: str


class OrderSeen(Input, frozen=True, kw_only=True):
    order: NodeOrder
    signed_at: datetime
    in_collective: tuple[int, ...] = ()
    """Ranks that wait inside a collective now."""


class RankEnded(Input, frozen=True, kw_only=True):
    """The zygote reported a rank's exit. `id` is the report's id, equal for every repetition of the report."""

    exit: RankExit
    exited_at: datetime
    status: RankStatus


class ZygoteFound(Input, frozen=True, kw_only=True):
    live: tuple[LiveRank, ...]
    ended: tuple[RankEnded, ...]
    """Exits that no agent has acknowledged."""
    order: bytes
    """The newest order by which the zygote started ranks."""
    statuses: dict[int, RankStatus] = {}


class ZygoteLost(Input, frozen=True, kw_only=True):
    statuses: dict[int, RankStatus] = {}


class RanksRun(Input, frozen=True, kw_only=True):
    fence: Fence
    pids: dict[int, int]
    took_s: float
    user: str = ""
    root_because: str = ""
    with_context: int = 0


class StartFailed(Input, frozen=True, kw_only=True):
    """No rank of this fence was forked."""

    fence: Fence
    reason: str


class StopDone(Input, frozen=True, kw_only=True):
    """The stop with this number is complete."""

    number: int
    ranks: tuple[int, ...]
    killed: int
    statuses: dict[int, RankStatus] = {}


class StoreLost(Input, frozen=True, kw_only=True):
    """The TCPStore of this fence is not served."""

    fence: Fence
    reason: str


class Observed(Input, frozen=True, kw_only=True):
    """The ledgers were read."""

    statuses: dict[int, RankStatus]
    cut_off_s: float | None = None
    """Time without a connection to the bus; None while connected."""
    stopped: frozenset[int] = frozenset()
    """Ranks whose process a signal has stopped, or one that they have started."""


class CodeReady(Input, frozen=True, kw_only=True):
    """The set of code versions in place changed."""

    code: frozenset[str]
    in_collective: tuple[int, ...] = ()
    """Ranks that wait inside a collective now."""


class CodeMissing(Input, frozen=True, kw_only=True):
    """A code version that an order waits for cannot be fetched."""

    code: str
    reason: str


class WarmUpReported(Input, frozen=True, kw_only=True):
    """The warm-up of this fence reported results."""

    fence: Fence
    results: tuple[WarmUpResult, ...]


class LogAlertSeen(Input, frozen=True, kw_only=True):
    """The zygote reported log lines that match a failure signature."""

    alert: LogAlert
    step: int
    """Last step that the rank completed."""


class ShutdownRequested(Input, frozen=True, kw_only=True):
    """The agent is to shut down."""
