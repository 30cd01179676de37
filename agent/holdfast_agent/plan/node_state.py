"""What an agent knows of its node: the order it obeys and the crew of ranks that the order called for.

    no crew ──order with ranks──▶ forking ──forked──▶ running ──every rank ended with 0──▶ finished
       ▲                             │                   │                                   │
       └──────── stopped ◀─ stopping ┴──── next order ───┴───────────────────────────────────┘

`Standing` is what survives a kill of the agent; it is durable before anything is done that follows from it.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.orders.node import NodeOrder
from holdfast_agent.zygote.wire import Fence

NO_FENCE: Fence = (-1, -1)


class Crew(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ranks that an order called for. `ended` holds exit codes, None where there is none."""

    order: NodeOrder
    forked: bool = False
    pids: dict[int, int] = {}
    ended: dict[int, int | None] = {}
    stepped: bool = False

    @property
    def ranks(self) -> range:
        """All ranks it was to have."""
        return self.order.placement.ranks if self.order.placement else range(0)

    @property
    def trains(self) -> bool:
        """Whether steps are expected of it."""
        return self.order.placement is None or self.order.placement.purpose == "train"

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that neither run nor are known to have ended."""
        return tuple(rank for rank in self.ranks if rank not in self.pids and rank not in self.ended)


class Standing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The durable part. `settled` is the fence of the newest order that is wholly obeyed."""

    order: NodeOrder | None = None
    crew: Crew | None = None
    settled: Fence = NO_FENCE
    rejected_revision: int = 0


class RankStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A rank by its ledger; `first_step_at` once it completed a step in this generation.

    `changed_at` is when it noted anything last, `stepped_at` when it completed a step, or began. `collectives` counts
    those entered, `in_flight` the threads inside one, of which the newest is `collective`.
    """

    step: int = -1
    steps_done: int = 0
    is_numbered: bool = True
    phase: str = "init"
    phase_since: datetime | None = None
    first_step_at: datetime | None = None
    changed_at: datetime | None = None
    stepped_at: datetime | None = None
    collectives: int = 0
    in_flight: int = 0
    collective: str = ""
    has_ended: bool = False

    @property
    def in_collective(self) -> bool:
        """A thread of it is inside a collective."""
        return self.in_flight > 0


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a decision of the agent rests on. `stop` is the number of the stop under way,
    `store` the fence of the order whose TCPStore was opened last, `condemned` why ranks are ended without an order.
    `code` are the versions in place, as `job/version`, `fetching` the one that an order waits for."""

    node: str
    instance: str
    standing: Standing = Standing()
    zygote_ready: bool = False
    stops: int = 0
    stop: int | None = None
    stop_began: datetime | None = None
    store: Fence = NO_FENCE
    condemned: str = ""
    code: frozenset[str] = frozenset()
    fetching: str | None = None
    leaving: bool = False
    departed: bool = False
    progress: tuple[int, ...] = ()
    progress_at: datetime | None = None
    progress_said_at: datetime | None = None
