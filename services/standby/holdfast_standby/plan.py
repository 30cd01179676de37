"""The decisions of the standby service about nodes: their states in the inventory. Pure.

ByteRobust §6.2: a node that replaces another is checked and warm before it is granted. Silence means loss only while
other nodes are received on the same bus: a service without a connection learns nothing.
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
    IncidentClosed,
    NodeDeparted,
    NodeInspected,
    NodeLost,
    NodeRefused,
    NodeRegistered,
    NodeReleaseRequested,
    NodesReleased,
    NodesRequested,
    Suspension,
)
from holdfast.events.parts.job import NodeFacts
from holdfast.ids import moment_of
from holdfast.requests import ReleaseNode
from holdfast.settings.pool import PoolPolicy
from holdfast.settings.retention import RetentionPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast.subjects import STREAMS
from holdfast_standby import claims, kept_nodes, sizing
from holdfast_standby.inventory_draft import InventoryChange, InventoryDraft
from holdfast_standby.state import WATCHED, Inventory, Node, NodeLiveness, NodeState

EPOCH_BELIEVED_MAX = 1 << 40
"""A higher epoch of an agent is ignored: no node is granted this often, and the next epoch must be higher still."""

INSTANCE_AHEAD_MAX = timedelta(days=1)
"""An instance from a later time than this does not replace another: no later start of the agent would sort after it."""

UNHEARD_MULTIPLE = 3
"""A node without a heartbeat since this service began to listen gets this many times the limit: after an outage of
everything, nodes start later than the services do."""

CLAIMS_REMEMBERED = timedelta(seconds=max(stream.keep_s for stream in STREAMS))
"""The bus keeps no older message, so none can arrive late."""

DEPARTED = "its agent was shut down"

HANDLED: tuple[type[Event], ...] = (
    NodeRegistered,
    NodeInspected,
    NodeDeparted,
    NodeRefused,
    NodesRequested,
    NodesReleased,
    Eviction,
    EvictionRevoked,
    Suspension,
    IncidentClosed,
)


class InventoryPlanner:
    """The decisions under one set of limits, without state."""

    def __init__(self, timeouts: Timeouts, pool: PoolPolicy, retention: RetentionPolicy | None = None) -> None:
        self.timeouts = timeouts
        self.pool = pool
        self.retention = retention or RetentionPolicy()

    def event(self, inventory: Inventory, event: AnyEvent, now: datetime) -> InventoryChange:
        draft = InventoryDraft(inventory, event.id, now)
        match event:
            case NodeRegistered():
                self._registered(draft, event, event.facts)
            case NodeInspected():
                self._inspected(draft, event)
            case NodeDeparted():
                node = draft.nodes.get(event.node or "")
                if node and node.instance == event.instance and node.state in WATCHED:
                    _depart(draft, node)
            case NodeRefused():
                _refused(draft, event)
            case NodesRequested():
                claims.requested(draft, event)
            case NodesReleased():
                self._released(draft, event)
            case Suspension():
                kept_nodes.begin(draft, event)
            case IncidentClosed():
                kept_nodes.end(draft, event)
            case Eviction():
                self._evicted(draft, event)
            case EvictionRevoked():
                node = draft.nodes.get(event.node or "")
                if node and node.blocked_until and node.epoch == event.epoch:
                    draft.nodes[node.id] = msgspec.structs.replace(
                        node, blocked_until=draft.now, reason=event.reason, failures=node.failures[:-1]
                    )
            case _:
                pass
        claims.grant(draft, self.pool)
        return draft.outcome()

    def release(
        self, inventory: Inventory, request: ReleaseNode, liveness: NodeLiveness, now: datetime
    ) -> InventoryChange:
        """Take a node off the blocklist at a person's request."""
        node = inventory.nodes.get(request.node)
        if node is None:
            return InventoryChange(
                inventory=inventory, refusal=f"there is no node {request.node}; `holdfast nodes` lists them"
            )
        if node.blocked_until is None:
            return InventoryChange(
                inventory=inventory, refusal=f"node {node.id} is not on the blocklist; it is {node.state}"
            )
        draft = InventoryDraft(inventory, request.id, now)
        reason = f"released by {request.asked_by}"
        draft.emit(NodeReleaseRequested, node=node.id, reason=reason)
        self._unblock(draft, node, liveness, reason)
        claims.grant(draft, self.pool)
        return msgspec.structs.replace(draft.outcome(), note=_release_note(draft.nodes[node.id]))

    def time(self, inventory: Inventory, liveness: NodeLiveness, now: datetime) -> InventoryChange:
        draft = InventoryDraft(inventory, None, now)
        for known in sorted(inventory.nodes.values(), key=lambda node: node.id):
            node = self._with_living_instance(draft, known, liveness, now)
            if node.blocked_until and node.blocked_until <= now:
                self._unblock(draft, node, liveness, "its time on the blocklist is over")
            elif node.state in WATCHED and (silent_s := self._silent_s(node, liveness, now)) is not None:
                last = max(liveness.last.get(node.id, node.since), node.since)
                draft.emit(
                    NodeLost,
                    node=node.id,
                    job=node.job,
                    epoch=node.epoch,
                    last_heard_at=last,
                    silent_s=silent_s,
                    is_unheard=_is_unheard(node, liveness),
                )
                failures = sizing.after_failure(node.failures, now)
                draft.move(node, NodeState.LOST, f"no heartbeat for {silent_s:.1f} s", job=None, failures=failures)
            elif node.state is NodeState.LOST and not node.has_departed and self._is_alive(node, liveness, now):
                self._take_back(draft, node, "its heartbeats are back")
            elif self._is_outdated(node, liveness, now):
                draft.forget(node, f"it was lost for {(now - node.since).total_seconds() / 86400:.3g} days")
        kept_nodes.end_outdated(draft)
        for claim in inventory.claims.values():
            if claim.over_at and now - claim.over_at >= CLAIMS_REMEMBERED:
                del draft.claims[claim.job]
        claims.grant(draft, self.pool)
        return draft.outcome()

    def is_silence(self, last: datetime, now: datetime) -> bool:
        """Return True if no heartbeat has arrived for so long that a single node would count as lost."""
        return now - last > timedelta(seconds=self.timeouts.node_lost_s)

    def _with_living_instance(self, draft: InventoryDraft, node: Node, liveness: NodeLiveness, now: datetime) -> Node:
        """Forget a registration that no living agent made: a forged one would lock the real agent out for good."""
        instance, since = liveness.only.get(node.id, (node.instance, now))
        if not instance or instance >= node.instance or not self._is_alive(node, liveness, now):
            return node
        if now - since <= timedelta(seconds=self.timeouts.node_lost_s):
            return node
        draft.nodes[node.id] = msgspec.structs.replace(node, instance=instance)
        self._admit(draft, draft.nodes[node.id])
        return draft.nodes[node.id]

    def _silent_s(self, node: Node, liveness: NodeLiveness, now: datetime) -> float | None:
        """Return the seconds since a node's last heartbeat if they are too many and other nodes send some."""
        limit = timedelta(seconds=self.timeouts.node_lost_s)
        if liveness.listening_since is None or now - liveness.listening_since <= limit:
            return None
        # A state from before the clock was put back begins in the future.
        since = node.since if node.since <= now else liveness.listening_since
        last = max(liveness.last.get(node.id, liveness.listening_since), liveness.listening_since, since)
        if now - last <= (limit * UNHEARD_MULTIPLE if _is_unheard(node, liveness) else limit):
            return None
        # Silence of all nodes is no sign of loss: then the bus delivers nothing, or this service is cut off. The last
        # heartbeats of two nodes are up to one interval apart, so one that came just after this node's shows nothing.
        if not any(now - at <= limit / 2 for at in liveness.last.values()):
            return None
        return (now - last).total_seconds()

    def _is_alive(self, node: Node, liveness: NodeLiveness, now: datetime) -> bool:
        last = liveness.last.get(node.id)
        limit = timedelta(seconds=self.timeouts.node_lost_s)
        if last is None or not timedelta(0) <= now - last <= limit:
            return False
        # A heartbeat from before the loss was noticed, or sent on the way out, is no sign of life.
        return node.since > now or last > node.since + timedelta(seconds=1)

    def _is_outdated(self, node: Node, liveness: NodeLiveness, now: datetime) -> bool:
        """Return True if a lost node is to be forgotten; never while cut off: unknown nodes' heartbeats are ignored."""
        return (
            node.state is NodeState.LOST
            and node.blocked_until is None
            and now - node.since >= timedelta(days=self.retention.lost_nodes_days)
            and liveness.listening_since is not None
            and now - liveness.listening_since > timedelta(seconds=self.timeouts.node_lost_s)
        )

    def _registered(self, draft: InventoryDraft, event: NodeRegistered | NodeInspected, facts: NodeFacts) -> None:
        assert event.node is not None
        node = draft.nodes.get(event.node)
        if node is not None and (event.instance < node.instance or event.instance == node.departed):
            return  # a late message of an earlier life
        if node is not None and moment_of(event.instance) > draft.now + INSTANCE_AHEAD_MAX:
            started_at = f"{moment_of(event.instance):%Y-%m-%d %H:%M}"
            _note(draft, node, f"an agent that started at {started_at} is not accepted: check the node's clock")
            return
        if node is None:
            fresh = Node(
                id=event.node,
                state=NodeState.REGISTERED,
                since=draft.now,
                known_since=draft.now,
                instance=event.instance,
                facts=facts,
                epoch=_remembered_epoch(event),
                reason="its agent has started",
            )
            draft.put(fresh, old_state="")
            return
        back = node.instance != event.instance
        # A job that holds the node releases it by the epoch of its grant.
        epoch = node.epoch if node.job else max(node.epoch, _remembered_epoch(event))
        node = msgspec.structs.replace(node, instance=event.instance, facts=facts, epoch=epoch)
        draft.nodes[node.id] = node
        if node.state is NodeState.LOST:
            self._take_back(draft, node, "its agent has started again" if back else "its heartbeats are back")
        elif back and node.state in (NodeState.STANDBY, NodeState.CHECKED):
            # The new life of the agent must pass its own self-check. An active node's ranks live on and are adopted.
            draft.move(node, NodeState.REGISTERED, "its agent has started again")

    def _take_back(self, draft: InventoryDraft, node: Node, reason: str) -> None:
        """Take back a lost node. It needs no new self-check if its agent never stopped."""
        if node.blocked_until:
            draft.move(node, NodeState.EVICTED, f"{reason}, but it is on the blocklist")
            return
        draft.move(node, NodeState.REGISTERED, reason)
        self._admit(draft, draft.nodes[node.id])

    def _inspected(self, draft: InventoryDraft, event: NodeInspected) -> None:
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

    def _admit(self, draft: InventoryDraft, node: Node) -> None:
        """Move a node into the pool if its self-check has passed since its agent started."""
        if node.state is NodeState.REGISTERED and node.passed_instance == node.instance:
            draft.move(node, NodeState.CHECKED, "its self-check passed")
            kept = f", kept for job {node.kept_for}, which waits for the steps in its memory" if node.kept_for else ""
            draft.move(draft.nodes[node.id], NodeState.STANDBY, f"warm and waiting{kept}")

    def _evicted(self, draft: InventoryDraft, event: Eviction) -> None:
        node = draft.nodes.get(event.node or "")
        if node is None or 0 < event.epoch < node.epoch or (node.job is not None and node.job != event.job):
            return  # a later grant has given it to another job, which may have released it since
        if not event.blocked_for_s:
            # It left its job because it was silent; its heartbeats will show what it does next.
            if node.state is NodeState.ACTIVE:
                _give_back(draft, node, event.reason)
            return
        until = draft.now + timedelta(seconds=event.blocked_for_s)
        node = msgspec.structs.replace(node, failures=sizing.after_failure(node.failures, draft.now))
        if node.state is NodeState.EVICTED:
            draft.nodes[node.id] = msgspec.structs.replace(node, blocked_until=until, reason=event.reason)
            return
        draft.move(node, NodeState.EVICTED, event.reason, job=None, blocked_until=until)

    def _unblock(self, draft: InventoryDraft, node: Node, liveness: NodeLiveness, reason: str) -> None:
        node = msgspec.structs.replace(node, blocked_until=None)
        draft.nodes[node.id] = node
        if node.state is not NodeState.EVICTED:
            return
        if self._is_alive(node, liveness, draft.now):
            unfit = f"; its self-check failed: {node.unfit}" if node.unfit else ""
            draft.move(node, NodeState.REGISTERED, f"{reason}{unfit}")
            self._admit(draft, draft.nodes[node.id])
        else:
            draft.move(node, NodeState.LOST, f"{reason}, but it sends no heartbeats")

    def _released(self, draft: InventoryDraft, event: NodesReleased) -> None:
        if event.withdraws_claim:
            claims.withdrawn(draft, event)
        for name, epoch in zip_longest(event.nodes, event.epochs[: len(event.nodes)]):
            node = draft.nodes.get(name)
            if node is None or node.job != event.job or node.state is not NodeState.ACTIVE:
                continue
            if epoch is not None and epoch != node.epoch:
                continue
            if node.instance in event.departed:
                # The release has overtaken `node_departed`.
                _depart(draft, node)
            else:
                _give_back(draft, node, event.reason)


def _depart(draft: InventoryDraft, node: Node) -> None:
    """Note that a node's agent was shut down. Only its next start brings the node back, by registering: heartbeats are
    those of its end, or of a start whose ports are not known yet.
    """
    draft.move(node, NodeState.LOST, DEPARTED, job=None, departed=node.instance)


def _give_back(draft: InventoryDraft, node: Node, reason: str) -> None:
    """Take a node back from its job."""
    if node.blocked_until and node.blocked_until <= draft.now:
        node = msgspec.structs.replace(node, blocked_until=None)
    if node.blocked_until:
        draft.move(node, NodeState.EVICTED, f"still on the blocklist, and released: {reason}", job=None)
    elif node.passed_instance == node.instance:
        draft.move(node, NodeState.STANDBY, f"released: {reason}", job=None)
    else:
        draft.move(node, NodeState.REGISTERED, f"released, not yet checked: {reason}", job=None)


def _refused(draft: InventoryDraft, event: NodeRefused) -> None:
    """Show on the node that a second agent was refused; the first one holds it as before."""
    node = draft.nodes.get(event.node or "")
    reason = (
        f"a second agent of this name (pid {event.place.pid} on {event.place.hostname}) was refused: it is held by "
        f"pid {event.holder.pid} on {event.holder.hostname}"
    )
    if node is not None and node.state in WATCHED:
        _note(draft, node, reason)


def _note(draft: InventoryDraft, node: Node, reason: str) -> None:
    """Show something on a node, which stays in its state."""
    if node.reason != reason:
        draft.put(msgspec.structs.replace(node, reason=reason), old_state=node.state)


def _is_unheard(node: Node, liveness: NodeLiveness) -> bool:
    """Return True if the node has given no sign of life since this service began to listen."""
    since = liveness.listening_since
    return since is not None and max(liveness.last.get(node.id, node.since), node.since) < since


def _remembered_epoch(event: NodeRegistered | NodeInspected) -> int:
    """Return the epoch that the agent remembers: higher than the inventory's if the database is a new one."""
    epoch = event.epoch if isinstance(event, NodeRegistered) else 0
    return epoch if epoch <= EPOCH_BELIEVED_MAX else 0


def _release_note(node: Node) -> str:
    off = f"{node.id} is off the blocklist"
    if node.state is NodeState.LOST:
        return f"{off}, but it sends no heartbeats: start its agent"
    if node.state is not NodeState.REGISTERED:
        return f"{off}: it is {node.state}"
    if node.unfit:
        return f"{off}, but no job gets it, because its self-check failed: {node.unfit}"
    return f"{off}: it is a standby as soon as its self-check has passed"
