"""Contexts of ranks that the zygote makes ahead: asked for once ranks train, and what became of them.

The decisions are in `plan/devices/contexts.py`. What it knows is of one job, and lost with the agent: then none are
asked for before the next start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec
import structlog

from holdfast.clock import Now
from holdfast.events import ContextAhead
from holdfast.fresh_ids import uuid7
from holdfast.node.proc.machine_memory import available_bytes
from holdfast.orders.node import NodeOrder
from holdfast_agent.plan.devices.contexts import DeviceUsed, context_kind, why_never_again, why_none
from holdfast_agent.plan.node_state import Crew
from holdfast_agent.zygote.wire import ContextGone, ContextReady, MakeContext, RankExit, StartRanks

FLOOR_PART = 2
"""A context is ended once less than this part of the room that it was made with is free."""

log = structlog.get_logger(__name__)


class PublishEvent(Protocol):
    def __call__(self, *events: ContextAhead) -> None: ...


class _Asked(NamedTuple):
    order: NodeOrder
    used: DeviceUsed


class Contexts:
    """The contexts of the job whose ranks started last."""

    def __init__(
        self,
        node: str,
        room_bytes: int,
        crew: Callable[[], Crew | None],
        send: Callable[[MakeContext], None],
        publish: PublishEvent,
        now: Now,
        host_bytes: Callable[[], int] = available_bytes,
    ) -> None:
        self._node = node
        self._room_bytes = room_bytes
        self._crew = crew
        self._send = send
        self._publish = publish
        self._now = now
        self._host_bytes = host_bytes
        self._order: NodeOrder | None = None
        self._command: StartRanks | None = None
        self._asked: dict[int, _Asked] = {}
        self._reported: dict[int, str] = {}
        self._barred = ""
        self._has_asked = False
        self._decided: set[int] = set()
        self._had_contexts = False

    def begin(self, order: NodeOrder, command: StartRanks) -> StartRanks:
        """Return the command that starts these ranks, from contexts if the job may have some."""
        if order.placement is None or order.placement.purpose != "train":
            self._command = None
            return command
        if self._order is None or self._order.job != order.job:
            self._reported, self._barred, self._has_asked = {}, "", False
        self._order, self._command, self._had_contexts, self._decided = order, command, False, set()
        if not self._has_asked or self._barred:
            return command
        ranks = tuple(msgspec.structs.replace(plan, context=context_kind(plan)) for plan in command.ranks)
        return msgspec.structs.replace(command, ranks=ranks)

    def device_used(self, rank: int, used: DeviceUsed) -> None:
        """Decide whether the rank gets a context ahead; `used` is the device on which it trains."""
        order, command = self._order, self._command
        if order is None or command is None or not self._room_bytes or rank in self._decided:
            return
        plan = next((plan for plan in command.ranks if plan.rank == rank), None)
        if plan is None:
            return
        # Once in a generation, however often the rank reports.
        self._decided.add(rank)
        kind = context_kind(plan)
        reason = self._barred or why_none(used, kind, self._room_bytes, self._host_bytes() // len(command.ranks))
        if reason:
            if self._reported.get(rank) != reason:
                self._reported[rank] = reason
                self._publish(self._event(order, rank, used.device, is_ready=False, reason=reason))
            return
        self._has_asked = True
        self._asked[rank] = _Asked(order, used)
        floor_bytes = self._room_bytes // FLOOR_PART
        self._send(MakeContext(fence=order.fence, rank=rank, kind=kind, device=used.device, floor_bytes=floor_bytes))

    def forked(self, with_context: int) -> None:
        """Note how many ranks began with a context."""
        self._had_contexts = with_context > 0

    def rank_ended(self, ended: RankExit) -> None:
        crew = self._crew()
        if self._order is None or self._order.fence != ended.fence or not self._has_asked:
            return
        has_stepped = crew is not None and crew.stepped
        reason = why_never_again(ended, has_stepped=has_stepped, had_contexts=self._had_contexts)
        if reason and not self._barred:
            log.warning("a job gets no contexts ahead any more", job=self._order.job, reason=reason)
            self._barred = reason

    def take(self, report: ContextReady | ContextGone) -> None:
        """Publish what became of a context."""
        asked = self._asked.get(report.rank)
        if asked is None or asked.order.fence != report.fence:
            return
        order, used = asked
        if isinstance(report, ContextGone):
            self._publish(self._event(order, report.rank, used.device, is_ready=False, reason=report.reason))
            return
        self._publish(
            self._event(
                order,
                report.rank,
                used.device,
                is_ready=True,
                took_s=report.took_s,
                free_before_bytes=used.free_bytes or 0,
                free_bytes=report.free_bytes,
                host_bytes=report.host_bytes,
            )
        )

    def _event(self, order: NodeOrder, rank: int, device: str, **fields: Any) -> ContextAhead:
        return ContextAhead(
            id=uuid7(),
            at=self._now(),
            source=f"agent/{self._node}",
            node=self._node,
            job=order.job,
            generation=order.generation,
            cause=order.cause,
            rank=rank,
            device=device,
            **fields,
        )
