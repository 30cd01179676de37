"""Actions that the shell executes in order, once the new state is durable."""

from __future__ import annotations

import msgspec

from holdfast.events import Event
from holdfast.orders.node import NodeOrder
from holdfast_agent.plan.node_state import AgentState


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """An effect for the shell to carry out."""


class Emit(Action, frozen=True, kw_only=True):
    event: Event


class Fork(Action, frozen=True, kw_only=True):
    order: NodeOrder


class Stop(Action, frozen=True, kw_only=True):
    number: int
    at_once: tuple[int, ...]
    """Ranks that get SIGKILL without a grace period."""
    is_urgent: bool = False
    """The ranks broke down, and the job waits for its restart: the grace period is short."""


class StartWarmUp(Action, frozen=True, kw_only=True):
    """Test the node beside the start of this order's ranks."""

    order: NodeOrder


class FetchCode(Action, frozen=True, kw_only=True):
    order: NodeOrder


class OpenStore(Action, frozen=True, kw_only=True):
    """Serve the TCPStore of this order."""

    order: NodeOrder


class CloseStores(Action, frozen=True, kw_only=True):
    """Close the TCPStores of all orders but `keep`."""

    keep: NodeOrder | None


class Acknowledge(Action, frozen=True, kw_only=True):
    """Confirm a rank's exit to the zygote, which then forgets it."""

    exit_id: str


class EndZygote(Action, frozen=True, kw_only=True):
    """End the zygote."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    state: AgentState
    actions: tuple[Action, ...] = ()
    reason: str = ""
