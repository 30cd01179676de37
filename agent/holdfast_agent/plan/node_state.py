"""The agent's state: the order that the node obeys and the crew of ranks that the order asked for.

    no crew ──order with ranks──▶ forking ──forked──▶ running ──every rank exited with 0──▶ finished
       ▲                             │                   │                                   │
       └──────── stopped ◀─ stopping ┴──── next order ───┴───────────────────────────────────┘

A crew is forking until `forked`, then running; it is finished once all its ranks have `ended` with 0, and stopping
while `AgentState.stop` has a number. `Durable` survives a kill of the agent: it is committed before any action that
follows from it. A fence is the epoch and the generation of an order: orders of a lower one are never obeyed.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.events.parts.step_source import StepSource
from holdfast.orders.node import NodeOrder
from holdfast_agent.zygote.wire import Fence

NO_FENCE: Fence = (-1, -1)


class Crew(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ranks that an order asked for."""

    order: NodeOrder
    forked: bool = False
    pids: dict[int, int] = {}
    """Running ranks only."""
    ended: dict[int, int | None] = {}
    """Exit codes by rank; None for a rank that left no exit code."""
    stepped: bool = False
    """True once every rank completed a step."""
    numbered: bool = False
    """True once the output of a rank has shown the numbers of steps."""
    user: str = ""
    """User of the ranks; "": the agent's."""
    root_because: str = ""
    """Reason why they run as root, though the job should have its own user."""

    @property
    def ranks(self) -> range:
        return self.order.placement.ranks if self.order.placement else range(0)

    @property
    def trains(self) -> bool:
        """True if steps are expected: neither checks nor a replay."""
        return self.order.placement is None or self.order.placement.purpose == "train"

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that neither run nor are known to have ended."""
        return tuple(rank for rank in self.ranks if rank not in self.pids and rank not in self.ended)


class Durable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of the state that is written to disk."""

    order: NodeOrder | None = None
    signed_at: datetime | None = None
    """Time at which `order` was signed, by the controller's clock."""
    began_at: datetime | None = None
    """Time from which on the node remembers its orders; None only before the agent has started."""
    crew: Crew | None = None
    settled: Fence = NO_FENCE
    """Fence of the newest order that is completely obeyed."""
    rejected: dict[str, int] = {}
    """Revision of the newest rejected value of each key."""


class RankStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a rank as its ledger shows it."""

    step: int = -1
    steps_done: int = 0
    is_numbered: bool = True
    first: int | None = None
    """Number of its first step in this generation; None before it is known where that comes from."""
    step_source: StepSource = ""
    step_source_name: str = ""
    is_start_known: bool = True
    """False if nothing shows at which step of the job its first one is."""
    phase: str = "init"
    phase_since: datetime | None = None
    first_step_at: datetime | None = None
    """None until the rank completes a step in this generation."""
    changed_at: datetime | None = None
    """Time of the last write to the ledger."""
    stepped_at: datetime | None = None
    """Time of the last completed step, or of the start."""
    collectives: int = 0
    """Number of collectives entered."""
    in_flight: int = 0
    """Number of threads inside a collective; `collective` is the newest of these."""
    collective: str = ""
    has_ended: bool = False

    @property
    def in_collective(self) -> bool:
        """True if a thread of the rank is inside a collective."""
        return self.in_flight > 0


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a decision of the agent depends on."""

    node: str
    instance: str
    durable: Durable = Durable()
    zygote_ready: bool = False
    warming: Fence = NO_FENCE
    """Fence of the order whose warm-up was begun last."""
    stops: int = 0
    """Number of stops so far."""
    stop: int | None = None
    """Number of the stop in progress."""
    stop_began: datetime | None = None
    store: Fence = NO_FENCE
    """Fence of the order whose TCPStore was opened last."""
    condemned: str = ""
    """Reason for ending ranks without an order."""
    code: frozenset[str] = frozenset()
    """Code versions in place, as `job/version`."""
    fetching: str | None = None
    """Code version that an order waits for."""
    leaving: bool = False
    """True from the request to leave the cluster on."""
    departed: bool = False
    """True once its ranks have ended and the departure is published."""
    progress: tuple[int, ...] = ()
    """Steps done, by rank in the order of the crew, when something last changed."""
    progress_at: datetime | None = None
    progress_emitted_at: datetime | None = None

    @property
    def crew(self) -> Crew | None:
        return self.durable.crew
