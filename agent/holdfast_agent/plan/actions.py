"""What the agent's decisions come to: things for the shell to do, in order, once the new state is durable."""

from __future__ import annotations

import msgspec

from holdfast.events import Event
from holdfast.orders.node import NodeOrder
from holdfast_agent.plan.node_state import AgentState


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do."""


class Say(Action, frozen=True, kw_only=True):
    """Publish an event."""

    event: Event


class Fork(Action, frozen=True, kw_only=True):
    """Start the ranks of this order."""

    order: NodeOrder


class Stop(Action, frozen=True, kw_only=True):
    """End all ranks; those in `at_once` without a grace."""

    number: int
    at_once: tuple[int, ...]


class FetchCode(Action, frozen=True, kw_only=True):
    """Have the code that this order names in place."""

    order: NodeOrder


class OpenStore(Action, frozen=True, kw_only=True):
    """Serve the TCPStore of this order."""

    order: NodeOrder


class CloseStores(Action, frozen=True, kw_only=True):
    """End the stores of all other orders than this; of all, if there is none."""

    keep: NodeOrder | None


class Acknowledge(Action, frozen=True, kw_only=True):
    """Tell the zygote that this end is known."""

    exit_id: str


class EndZygote(Action, frozen=True, kw_only=True):
    """End the zygote."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision comes to."""

    state: AgentState
    actions: tuple[Action, ...] = ()
    reason: str = ""
