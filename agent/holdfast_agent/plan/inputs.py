"""What an agent can learn. Each input has an id of its own, a UUIDv7, that its consequences are named by."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.orders.node import NodeOrder
from holdfast_agent.plan.node_state import RankStanding
from holdfast_agent.zygote.wire import Fence, LiveRank, RankExit, SignsSeen


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """Something learned."""

    id: str


class OrderSeen(Input, frozen=True, kw_only=True):
    """The node's desired state was read; `in_collective` are the ranks that wait for others just now."""

    order: NodeOrder
    in_collective: tuple[int, ...] = ()


class RankEnded(Input, frozen=True, kw_only=True):
    """The zygote reports a rank's end; the id is the report's own, the same whenever it comes again."""

    exit: RankExit
    exited_at: datetime
    standing: RankStanding


class ZygoteFound(Input, frozen=True, kw_only=True):
    """A zygote answered: what lives, what ended unnoticed, and the newest order it started ranks by."""

    live: tuple[LiveRank, ...]
    ended: tuple[RankEnded, ...]
    order: bytes
    standings: dict[int, RankStanding] = {}


class ZygoteLost(Input, frozen=True, kw_only=True):
    """The zygote ended."""

    standings: dict[int, RankStanding] = {}


class RanksRun(Input, frozen=True, kw_only=True):
    """The ranks of this fence are forked."""

    fence: Fence
    pids: dict[int, int]
    took_s: float


class StartFailed(Input, frozen=True, kw_only=True):
    """None of the ranks of this fence is forked."""

    fence: Fence
    reason: str


class StopDone(Input, frozen=True, kw_only=True):
    """The stop of this number is over."""

    number: int
    ranks: tuple[int, ...]
    killed: int
    standings: dict[int, RankStanding] = {}


class StoreLost(Input, frozen=True, kw_only=True):
    """The TCPStore of this fence is not served."""

    fence: Fence
    reason: str


class Observed(Input, frozen=True, kw_only=True):
    """The ledgers were read. `cut_off_s`: for how long there has been no connection to the bus."""

    standings: dict[int, RankStanding]
    cut_off_s: float | None = None


class CodeReady(Input, frozen=True, kw_only=True):
    """These versions of code are in place, and no others; `in_collective` as in `OrderSeen`."""

    code: frozenset[str]
    in_collective: tuple[int, ...] = ()


class CodeMissing(Input, frozen=True, kw_only=True):
    """A version that an order waits for cannot be had."""

    code: str
    reason: str


class SignsHeard(Input, frozen=True, kw_only=True):
    """The zygote reports lines that show trouble; `step` is the last that the rank has completed."""

    signs: SignsSeen
    step: int


class LeaveAsked(Input, frozen=True, kw_only=True):
    """The agent is to shut down."""
