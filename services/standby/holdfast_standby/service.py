"""The standby service as a decider, and the receiver of heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from datetime import datetime
from typing import Any

import msgspec

from holdfast.bus import Bus
from holdfast.clock import Now
from holdfast.daemon.service_shell import Decider
from holdfast.effects import Effect, RowWrite
from holdfast.events import AnyEvent
from holdfast.requests import STANDBY_REQUESTS, Answer, AnyRequest, ReleaseNode
from holdfast.settings.pool import PoolPolicy
from holdfast.settings.retention import RetentionPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast.subjects import ALL_HEARTBEATS
from holdfast_standby.draft import InventoryChange
from holdfast_standby.plan import HANDLED, InventoryPlanner
from holdfast_standby.state import Inventory, NodeLiveness
from holdfast_standby.store import CLAIMS, NODES, TABLES


class Heartbeats:
    """Last heartbeat of each node. Not stored: after a restart every node has the full time to send one."""

    def __init__(self, bus: Bus, now: Now, is_known: Callable[[str], bool]) -> None:
        self._bus = bus
        self._now = now
        self._is_known = is_known
        self.last: dict[str, datetime] = {}
        self.only: dict[str, tuple[str, datetime]] = {}

    async def listen(self) -> None:
        """Receive the heartbeats of known nodes until cancelled. Those of unknown nodes are ignored."""
        async for subject, body in self._bus.listen(ALL_HEARTBEATS):
            node = subject.rsplit(".", 1)[-1]
            if not self._is_known(node):
                continue
            self.last[node] = now = self._now()
            instance = _instance(body)
            if node not in self.only or self.only[node][0] != instance:
                self.only[node] = (instance, now)


class _Sender(msgspec.Struct):
    instance: str


def _instance(heartbeat: bytes) -> str:
    try:
        return msgspec.json.decode(heartbeat, type=_Sender).instance
    except msgspec.DecodeError:
        return ""


class Standby(Decider):
    """The inventory in memory and its decisions; see `holdfast.daemon.service_shell.Decider`."""

    name = "standby"
    tables = TABLES
    handles = HANDLED
    requests_subject = STANDBY_REQUESTS

    def __init__(self, timeouts: Timeouts, pool: PoolPolicy, retention: RetentionPolicy | None = None) -> None:
        self.planner = InventoryPlanner(timeouts, pool, retention)
        self.inventory = Inventory()
        self.last_heard: MutableMapping[str, datetime] = {}
        self.only_heard: MutableMapping[str, tuple[str, datetime]] = {}

    def is_known(self, node: str) -> bool:
        return node in self.inventory.nodes

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        claims = {claim.job: claim for claim in rows[CLAIMS.name].values()}
        self.inventory = Inventory(nodes=dict(rows[NODES.name]), claims=claims)

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        return self._effect(self.planner.event(self.inventory, event, now))

    def on_request(self, request: AnyRequest, now: datetime) -> Effect:
        if not isinstance(request, ReleaseNode):
            return super().on_request(request, now)
        outcome = self.planner.release(self.inventory, request, NodeLiveness(last=dict(self.last_heard)), now)
        if outcome.refusal:
            return Effect(answer=Answer(accepted=False, message=outcome.refusal))
        return msgspec.structs.replace(self._effect(outcome), answer=Answer(accepted=True, message=outcome.note))

    def on_time(self, now: datetime, hearing_since: datetime | None) -> Effect:
        liveness = NodeLiveness(last=dict(self.last_heard), listening_since=hearing_since, only=dict(self.only_heard))
        return self._effect(self.planner.time(self.inventory, liveness, now))

    def adopt(self, effect: Effect) -> None:
        nodes, claims = dict(self.inventory.nodes), dict(self.inventory.claims)
        for row in effect.rows:
            kept: dict[str, Any] = nodes if row.table is NODES else claims
            if row.row is None:
                kept.pop(row.key, None)
                if row.table is NODES:
                    self.last_heard.pop(row.key, None)
                    self.only_heard.pop(row.key, None)
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
