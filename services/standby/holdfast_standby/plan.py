"""The standby service's decisions: how nodes move through the inventory and who gets which.

ByteRobust §6.2: nodes that replace others are checked and warm before they are handed over. Everything here
is pure. Silence is a sign of loss only while others are heard on the same bus: a deaf service learns nothing.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import zip_longest

import msgspec

from holdfast.events import (
    AnyEvent,
    Event,
    Eviction,
    EvictionRevoked,
    NodeDeparted,
    NodeInspected,
    NodeLost,
    NodeRegistered,
    NodeReleaseRequested,
    NodesReleased,
    NodesRequested,
)
from holdfast.events.parts.job import NodeFacts
from holdfast.requests import ReleaseNode
from holdfast.settings.pool import PoolPolicy
from holdfast.settings.retention import RetentionPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast.subjects import STREAMS
from holdfast_standby import claims
from holdfast_standby.draft import Draft, Outcome
from holdfast_standby.state import WATCHED, Heard, Inventory, Node, NodeState

EPOCH_BELIEVED_MAX = 1 << 40
"""No node was ever handed over this often: what is above it was made up, and would leave no room above itself."""

CLAIMS_REMEMBERED = timedelta(seconds=max(stream.keep_s for stream in STREAMS))
"""What is older than this the bus no longer has, so it cannot arrive late."""

HANDLED: tuple[type[Event], ...] = (
    NodeRegistered,
    NodeInspected,
    NodeDeparted,
    NodesRequested,
    NodesReleased,
    Eviction,
    EvictionRevoked,
)


class Keeper:
    """The decisions under one set of limits; holds no state of its own."""

    def __init__(self, timeouts: Timeouts, pool: PoolPolicy, retention: RetentionPolicy | None = None) -> None:
        self.timeouts = timeouts
        self.pool = pool
        self.retention = retention or RetentionPolicy()

    def event(self, inventory: Inventory, event: AnyEvent, now: datetime) -> Outcome:
        """What follows from an event."""
        draft = Draft(inventory, event.id, now)
        match event:
            case NodeRegistered():
                self._registered(draft, event, event.facts)
            case NodeInspected():
                self._inspected(draft, event)
            case NodeDeparted():
                node = draft.nodes.get(event.node or "")
                if node and node.instance == event.instance and node.state in WATCHED:
                    draft.move(node, NodeState.LOST, "its agent was shut down", job=None)
            case NodesRequested():
                claims.requested(draft, event)
            case NodesReleased():
                self._released(draft, event)
            case Eviction():
                self._evicted(draft, event)
            case EvictionRevoked():
                node = draft.nodes.get(event.node or "")
                if node and node.blocked_until and node.epoch == event.epoch:
                    draft.nodes[node.id] = msgspec.structs.replace(node, blocked_until=draft.now, reason=event.reason)
            case _:
                pass
        claims.grant(draft, self.pool.size)
        return draft.outcome()

    def release(self, inventory: Inventory, request: ReleaseNode, heard: Heard, now: datetime) -> Outcome:
        """A person takes a node off the blocklist."""
        node = inventory.nodes.get(request.node)
        if node is None:
            return Outcome(inventory=inventory, refusal=f"there is no node {request.node}; `holdfast nodes` lists them")
        if node.blocked_until is None:
            return Outcome(inventory=inventory, refusal=f"node {node.id} is not on the blocklist; it is {node.state}")
        draft = Draft(inventory, request.id, now)
        reason = f"released by {request.asked_by}"
        draft.say(NodeReleaseRequested, node=node.id, reason=reason)
        self._unblock(draft, node, heard, reason)
        claims.grant(draft, self.pool.size)
        return msgspec.structs.replace(draft.outcome(), note=_now_that_released(draft.nodes[node.id]))

    def time(self, inventory: Inventory, heard: Heard, now: datetime) -> Outcome:
        """What follows from the time and from who was heard."""
        draft = Draft(inventory, None, now)
        for node in sorted(inventory.nodes.values(), key=lambda node: node.id):
            if node.blocked_until and node.blocked_until <= now:
                self._unblock(draft, node, heard, "its time on the blocklist is over")
            elif node.state in WATCHED and (silent_s := self._silent_s(node, heard, now)) is not None:
                last = max(heard.last.get(node.id, node.since), node.since)
                draft.say(
                    NodeLost,
                    node=node.id,
                    job=node.job,
                    epoch=node.epoch,
                    last_heard_at=last,
                    silent_s=silent_s,
                )
                draft.move(node, NodeState.LOST, f"nothing was heard of it for {silent_s:.1f} s", job=None)
            elif node.state is NodeState.LOST and self._is_heard(node, heard, now):
                self._welcome(draft, node, "it is heard again")
            elif self._is_outdated(node, heard, now):
                draft.forget(node, f"it was lost for {(now - node.since).total_seconds() / 86400:.3g} days")
        for claim in inventory.claims.values():
            if claim.over_at and now - claim.over_at >= CLAIMS_REMEMBERED:
                del draft.claims[claim.job]
        claims.grant(draft, self.pool.size)
        return draft.outcome()

    # --- liveness -------------------------------------------------------------------------------

    def _silent_s(self, node: Node, heard: Heard, now: datetime) -> float | None:
        """For how long nothing was heard of a node, if that is too long and others are heard; else None."""
        limit = timedelta(seconds=self.timeouts.node_lost_s)
        if heard.listening_since is None or now - heard.listening_since <= limit:
            return None
        last = max(heard.last.get(node.id, heard.listening_since), heard.listening_since, node.since)
        if now - last <= limit:
            return None
        # Absence is no sign by itself: if nobody at all is heard, it is this service that is deaf.
        if not any(now - at <= limit for at in heard.last.values()):
            return None
        return (now - last).total_seconds()

    def _is_heard(self, node: Node, heard: Heard, now: datetime) -> bool:
        last = heard.last.get(node.id)
        limit = timedelta(seconds=self.timeouts.node_lost_s)
        # A heartbeat from before the loss was noticed, or sent on the way out, is no sign of life.
        return last is not None and now - last <= limit and last > node.since + timedelta(seconds=1)

    def _is_outdated(self, node: Node, heard: Heard, now: datetime) -> bool:
        """Whether a lost node is to be forgotten, which the blocklist is not.

        What a stranger sends counts for nothing, so a node that lives must not become one while this service is deaf.
        """
        return (
            node.state is NodeState.LOST
            and node.blocked_until is None
            and now - node.since >= timedelta(days=self.retention.lost_nodes_days)
            and heard.listening_since is not None
            and now - heard.listening_since > timedelta(seconds=self.timeouts.node_lost_s)
        )

    # --- nodes ----------------------------------------------------------------------------------

    def _registered(self, draft: Draft, event: NodeRegistered | NodeInspected, facts: NodeFacts) -> None:
        assert event.node is not None
        node = draft.nodes.get(event.node)
        if node is not None and event.instance < node.instance:
            return  # a late message of an earlier life
        if node is None:
            fresh = Node(
                id=event.node,
                state=NodeState.REGISTERED,
                since=draft.now,
                instance=event.instance,
                facts=facts,
                epoch=_remembered_epoch(event),
                reason="its agent has started",
            )
            draft.put(fresh, old_state="")
            return
        back = node.instance != event.instance
        node = msgspec.structs.replace(
            node, instance=event.instance, facts=facts, epoch=max(node.epoch, _remembered_epoch(event))
        )
        draft.nodes[node.id] = node
        if node.state is NodeState.LOST:
            self._welcome(draft, node, "its agent has started again" if back else "it is heard again")
        elif back and node.state in (NodeState.STANDBY, NodeState.CHECKED):
            # The new life of the agent must pass its own self-check. An active node's ranks live on and are adopted.
            draft.move(node, NodeState.REGISTERED, "its agent has started again")

    def _welcome(self, draft: Draft, node: Node, reason: str) -> None:
        """A lost node is there again: it starts over, and needs no new self-check if its agent never went away."""
        if node.blocked_until:
            draft.move(node, NodeState.EVICTED, f"{reason}, but it is on the blocklist")
            return
        draft.move(node, NodeState.REGISTERED, reason)
        self._admit(draft, draft.nodes[node.id])

    def _inspected(self, draft: Draft, event: NodeInspected) -> None:
        node = draft.nodes.get(event.node or "")
        if event.facts and (node is None or node.instance < event.instance):
            self._registered(draft, event, event.facts)
            node = draft.nodes.get(event.node or "")
        if node is None or node.instance != event.instance:
            return
        if not event.passed:
            failed = ", ".join(f"{check.name}: {check.detail}" for check in event.checks if check.status == "failed")
            reason = f"self-check failed: {failed}"
            node = msgspec.structs.replace(node, passed_instance=None, unfit=failed, reason=reason)
            draft.nodes[node.id] = node
            if node.state in (NodeState.STANDBY, NodeState.CHECKED):
                draft.move(node, NodeState.REGISTERED, reason)
            return
        node = msgspec.structs.replace(node, passed_instance=event.instance, unfit="")
        draft.nodes[node.id] = node
        self._admit(draft, node)

    def _admit(self, draft: Draft, node: Node) -> None:
        """Into the pool, if its self-check has passed in this life of its agent."""
        if node.state is NodeState.REGISTERED and node.passed_instance == node.instance:
            draft.move(node, NodeState.CHECKED, "its self-check passed")
            draft.move(draft.nodes[node.id], NodeState.STANDBY, "warm and waiting")

    def _evicted(self, draft: Draft, event: Eviction) -> None:
        node = draft.nodes.get(event.node or "")
        if node is None or (node.job is not None and (node.job != event.job or 0 < event.epoch < node.epoch)):
            return  # it serves somebody by a later hand-over
        until = draft.now + timedelta(seconds=event.blocked_for_s)
        if node.state is NodeState.EVICTED:
            draft.nodes[node.id] = msgspec.structs.replace(node, blocked_until=until, reason=event.reason)
            return
        draft.move(node, NodeState.EVICTED, event.reason, job=None, blocked_until=until)

    def _unblock(self, draft: Draft, node: Node, heard: Heard, reason: str) -> None:
        node = msgspec.structs.replace(node, blocked_until=None)
        draft.nodes[node.id] = node
        if node.state is not NodeState.EVICTED:
            return
        if self._is_heard(node, heard, draft.now):
            unfit = f"; its self-check failed: {node.unfit}" if node.unfit else ""
            draft.move(node, NodeState.REGISTERED, f"{reason}{unfit}")
            self._admit(draft, draft.nodes[node.id])
        else:
            draft.move(node, NodeState.LOST, f"{reason}, but nothing is heard of it")

    def _released(self, draft: Draft, event: NodesReleased) -> None:
        if event.withdraws_claim:
            claims.withdrawn(draft, event)
        for name, epoch in zip_longest(event.nodes, event.epochs[: len(event.nodes)]):
            node = draft.nodes.get(name)
            if node is None or node.job != event.job or node.state is not NodeState.ACTIVE:
                continue
            if epoch is not None and epoch != node.epoch:
                continue
            if node.blocked_until and node.blocked_until <= draft.now:
                node = msgspec.structs.replace(node, blocked_until=None)
            if node.blocked_until:
                draft.move(node, NodeState.EVICTED, f"still on the blocklist, and released: {event.reason}", job=None)
            elif node.passed_instance == node.instance:
                draft.move(node, NodeState.STANDBY, f"released: {event.reason}", job=None)
            else:
                draft.move(node, NodeState.REGISTERED, f"released, not yet checked: {event.reason}", job=None)


def _remembered_epoch(event: NodeRegistered | NodeInspected) -> int:
    """What the agent remembers of hand-overs: more than this inventory if the database or the cluster is a new one."""
    epoch = event.epoch if isinstance(event, NodeRegistered) else 0
    return epoch if epoch <= EPOCH_BELIEVED_MAX else 0


def _now_that_released(node: Node) -> str:
    """What a person is told who has taken this node off the blocklist: what it is now, and what is left to do."""
    off = f"{node.id} is off the blocklist"
    if node.state is NodeState.LOST:
        return f"{off}, but nothing is heard of it: start its agent"
    if node.state is not NodeState.REGISTERED:
        return f"{off}: it is {node.state}"
    if node.unfit:
        return f"{off}, but it is not given to any job, for its self-check failed: {node.unfit}"
    return f"{off}: it is a standby as soon as its self-check has passed"
