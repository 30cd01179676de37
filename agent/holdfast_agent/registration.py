"""Events about the node itself: its registration, code in place, refused orders, a damaged spool."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast.bus import KeyUpdate, Message
from holdfast.daemon.dead_letters import UnhandledMessage, rejection
from holdfast.events import CodeInPlace, Event, NodeInspected, NodeRegistered, SpoolSetAside
from holdfast.events.parts.job import CheckResult, NodeFacts
from holdfast.fresh_ids import uuid7
from holdfast_agent.files.code_store import FetchedCode
from holdfast_agent.files.spool import SetAside
from holdfast_agent.plan.node_state import AgentState


def registration(
    state: AgentState, facts: NodeFacts, checks: tuple[CheckResult, ...], now: datetime
) -> tuple[Event, Event]:
    """Return the events that register the node and report its self-check."""
    common: dict[str, Any] = _common(state.node, now) | {"instance": state.instance, "facts": facts}
    epoch = state.durable.order.epoch if state.durable.order else 0
    return NodeRegistered(id=uuid7(), epoch=epoch, **common), NodeInspected(id=uuid7(), checks=checks, **common)


def code_in_place(node: str, brought: FetchedCode, now: datetime) -> Event:
    """Return the event that a version of the code is on this node."""
    need = brought.need
    return CodeInPlace(
        id=uuid7(),
        **_common(node, now),
        job=need.job,
        cause=need.cause,
        version=need.version,
        files=brought.files,
        fetched_bytes=brought.fetched_bytes,
        took_s=brought.took_s,
    )


def spool_set_aside(node: str, aside: SetAside, now: datetime) -> Event:
    return SpoolSetAside(id=uuid7(), **_common(node, now), path=str(aside.path), detail=aside.reason)


def refused_order(
    node: str, subject: str, update: KeyUpdate, error: str, now: datetime, message_bytes_max: int
) -> list[Message]:
    """Return the dead letter for an order that is forged or unreadable, and the event that reports it."""
    unhandled = UnhandledMessage(
        consumer="agent",
        node=node,
        subject=subject,
        body=update.body or b"",
        error=error,
        message_id=str(update.revision),
    )
    return list(rejection(unhandled, now, message_bytes_max))


def _common(node: str, now: datetime) -> dict[str, Any]:
    return {"at": now, "source": f"agent/{node}", "node": node}
