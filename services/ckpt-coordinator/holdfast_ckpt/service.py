"""The coordinator's shell: it dispatches events to the handlers of `plan.planner`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.daemon.service_shell import Decider
from holdfast.effects import Effect
from holdfast.events import AnyEvent
from holdfast.orders.backup import BackupOrder
from holdfast.settings.checkpoint import CheckpointPolicy
from holdfast_ckpt.plan.planner import HANDLERS, orders_in_force
from holdfast_ckpt.plan.state import CoordinatorState
from holdfast_ckpt.store import TABLES

SHARDS_WRITTEN_MAX = 200
"""Rows of shards in one transaction, twice a second: decisions wait behind it."""


class Coordinator(Decider):
    """The catalogue of steps and the orders to vaults; see `holdfast.daemon.service_shell.Decider`."""

    name = "ckpt-coordinator"
    tables = TABLES
    handles = tuple(HANDLERS)
    knows_nodes = True

    def __init__(self, policy: CheckpointPolicy | None = None) -> None:
        self._state = CoordinatorState(policy or CheckpointPolicy())

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        self._state.load(rows)

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        handle = HANDLERS.get(type(event))
        if handle is None or event.job is None:
            return Effect()
        return handle(self._state, event.job, event, now)

    def on_time(self, now: datetime, hearing_since: datetime | None) -> Effect:
        return self._state.shards_to_write(SHARDS_WRITTEN_MAX)

    def adopt(self, effect: Effect) -> None:
        self._state.adopt(effect)

    def orders_in_force(self) -> list[BackupOrder]:
        return orders_in_force(self._state)
