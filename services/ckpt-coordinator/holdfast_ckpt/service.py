"""The checkpoint coordinator as a decider."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.events import AnyEvent, CheckpointSaved, Event
from holdfast.requests import Answer, AnyRequest
from holdfast.service import Effect, Row
from holdfast.store import Table
from holdfast_ckpt.plan import record
from holdfast_ckpt.store import STEPS, key_of


class Coordinator:
    """Writes the catalogue; see `holdfast.service.Decider`."""

    name = "ckpt-coordinator"
    tables: tuple[Table[Any], ...] = ()
    handles: tuple[type[Event], ...] = (CheckpointSaved,)
    requests_subject: str | None = None

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        pass

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        if not isinstance(event, CheckpointSaved) or event.job is None:
            return Effect()
        entry, finding = record(event, now)
        return Effect(rows=(Row(table=STEPS, key=key_of(entry), row=entry),), events=(finding,))

    def on_request(self, request: AnyRequest, now: datetime) -> Effect:
        return Effect(answer=Answer(accepted=False, message="the checkpoint coordinator serves no requests"))

    def on_time(self, now: datetime) -> Effect:
        return Effect()

    def next_time(self) -> datetime | None:
        return None

    def adopt(self, effect: Effect) -> None:
        pass
