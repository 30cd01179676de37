"""The effect of one decision: rows to write, events to publish, orders to give, and the answer to a request.

Plain data. It lies above the folders of decisions, which build effects, and below `holdfast.daemon`, which commits
them: decisions import no daemon.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.events import Event
from holdfast.orders.any_order import AnyOrder
from holdfast.requests import Answer
from holdfast.store import Table


class RowWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A row to write, or to delete if `row` is None."""

    table: Table[Any]
    key: str
    row: msgspec.Struct | None


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a decision changes and publishes. `answer` goes to the process that made the request."""

    rows: tuple[RowWrite, ...] = ()
    events: tuple[Event, ...] = ()
    orders: tuple[AnyOrder, ...] = ()
    answer: Answer = Answer(accepted=True)

    @property
    def is_nothing(self) -> bool:
        return not (self.rows or self.events or self.orders)

    def together(self, other: Effect) -> Effect:
        """Return both effects as one, with the answer of this one."""
        return Effect(
            rows=(*self.rows, *other.rows),
            events=(*self.events, *other.events),
            orders=(*self.orders, *other.orders),
            answer=self.answer,
        )
