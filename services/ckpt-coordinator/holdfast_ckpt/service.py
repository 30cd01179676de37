"""The checkpoint coordinator as a decider."""

from __future__ import annotations

from datetime import datetime

from holdfast.events import AnyEvent, CheckpointSaved
from holdfast.service import Decider, Effect, Row
from holdfast_ckpt.plan import record
from holdfast_ckpt.store import STEPS, key_of


class Coordinator(Decider):
    """Writes the catalogue; see `holdfast.service.Decider`."""

    name = "ckpt-coordinator"
    handles = (CheckpointSaved,)

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        if not isinstance(event, CheckpointSaved) or event.job is None:
            return Effect()
        entry, finding = record(event, now)
        return Effect(rows=(Row(table=STEPS, key=key_of(entry), row=entry),), events=(finding,))
