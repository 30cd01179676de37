"""The standby service as a decider."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from datetime import datetime
from typing import Any

import msgspec

from holdfast.daemon.service_shell import Decider
from holdfast.effects import Effect, RowWrite
from holdfast.events import AnyEvent
from holdfast.requests import STANDBY_REQUESTS, Answer, AnyRequest, ReleaseNode
from holdfast.settings.pool import PoolPolicy
from holdfast.settings.retention import RetentionPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast_standby.inventory_draft import InventoryChange
from holdfast_standby.plan import HANDLED, InventoryPlanner
from holdfast_standby.state import Inventory, Node, NodeLiveness
from holdfast_standby.store import CLAIMS, NODES, TABLES


class Standby(Decider):
    """The inventory in memory and its decisions; see `holdfast.daemon.service_shell.Decider`."""

    name = "standby"
    tables = TABLES
    handles = HANDLED
    requests_subject = STANDBY_REQUESTS

    def __init__(self, timeouts: Timeouts, pool: PoolPolicy, retention: RetentionPolicy | None = None) -> None:
        self.planner = InventoryPlanner(timeouts, pool, retention)
        self.inventory = Inventory()
        self.last_heartbeats: MutableMapping[str, datetime] = {}
        self.only_instance: MutableMapping[str, tuple[str, datetime]] = {}
        self._is_all_silent = False
        self._silence_ended_at: datetime | None = None

    def node(self, name: str) -> Node | None:
        return self.inventory.nodes.get(name)

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        claims = {claim.job: claim for claim in rows[CLAIMS.name].values()}
        self.inventory = Inventory(nodes=dict(rows[NODES.name]), claims=claims)

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        return self._effect(self.planner.event(self.inventory, event, now))

    def on_request(self, request: AnyRequest, now: datetime) -> Effect:
        if not isinstance(request, ReleaseNode):
            return super().on_request(request, now)
        outcome = self.planner.release(self.inventory, request, NodeLiveness(last=dict(self.last_heartbeats)), now)
        if outcome.refusal:
            return Effect(answer=Answer(accepted=False, message=outcome.refusal))
        return msgspec.structs.replace(self._effect(outcome), answer=Answer(accepted=True, message=outcome.note))

    def on_time(self, now: datetime, hearing_since: datetime | None) -> Effect:
        self._count_from_now(now)
        since = self._listening_since(now, hearing_since)
        liveness = NodeLiveness(last=dict(self.last_heartbeats), listening_since=since, only=dict(self.only_instance))
        return self._effect(self.planner.time(self.inventory, liveness, now))

    def _count_from_now(self, now: datetime) -> None:
        """Take times that lie in the future, as this clock has been put back since, for the present."""
        self.last_heartbeats.update({node: now for node, at in self.last_heartbeats.items() if at > now})
        self.only_instance.update({node: (who, now) for node, (who, at) in self.only_instance.items() if at > now})
        if self._silence_ended_at is not None:
            self._silence_ended_at = min(self._silence_ended_at, now)

    def _listening_since(self, now: datetime, hearing_since: datetime | None) -> datetime | None:
        """Return since when a node's silence counts: after a silence of all nodes, since the first heartbeat arrived
        again.

        What took all of them had one cause, and they come back one after another (ADR 5).
        """
        newest = max(self.last_heartbeats.values(), default=now)
        was_silent, self._is_all_silent = self._is_all_silent, self.planner.is_silence(newest, now)
        if was_silent and not self._is_all_silent:
            self._silence_ended_at = newest
        if hearing_since is None or self._silence_ended_at is None:
            return hearing_since
        return max(hearing_since, self._silence_ended_at)

    def adopt(self, effect: Effect) -> None:
        nodes, claims = dict(self.inventory.nodes), dict(self.inventory.claims)
        for row in effect.rows:
            kept: dict[str, Any] = nodes if row.table is NODES else claims
            if row.row is None:
                kept.pop(row.key, None)
                if row.table is NODES:
                    self.last_heartbeats.pop(row.key, None)
                    self.only_instance.pop(row.key, None)
            else:
                kept[row.key] = row.row
        self.inventory = Inventory(nodes=nodes, claims=claims)

    def _effect(self, outcome: InventoryChange) -> Effect:
        was, now = self.inventory, outcome.inventory
        rows = [
            RowWrite(table=NODES, key=key, row=node) for key, node in now.nodes.items() if was.nodes.get(key) != node
        ]
        rows += [RowWrite(table=NODES, key=key, row=None) for key in was.nodes if key not in now.nodes]
        rows += [
            RowWrite(table=CLAIMS, key=key, row=row) for key, row in now.claims.items() if was.claims.get(key) != row
        ]
        rows += [RowWrite(table=CLAIMS, key=key, row=None) for key in was.claims if key not in now.claims]
        return Effect(rows=tuple(rows), events=outcome.events)
