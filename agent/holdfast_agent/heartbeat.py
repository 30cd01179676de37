"""What a node says once a second over plain NATS (`heartbeat_s`): that it lives, and what it obeys."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from holdfast_agent.plan.node_state import AgentState, RankStanding


def heartbeat(state: AgentState, standings: Iterable[RankStanding], now: datetime) -> bytes:
    """The body as JSON; `step` is the one that all ranks have completed, -1 without any."""
    order = state.standing.order
    return msgspec.json.encode(
        {
            "node": state.node,
            "instance": state.instance,
            "at": now,
            "epoch": order.epoch if order else 0,
            "generation": order.generation if order else 0,
            "step": min((standing.step for standing in standings), default=-1),
        }
    )
