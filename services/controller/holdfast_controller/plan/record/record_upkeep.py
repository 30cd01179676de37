"""Records of nodes outside of decisions about jobs: a person releases a node, and old records are deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.engines.record.chance import elsewhere, log_odds
from holdfast.engines.record.history import TEXT_MAX, Mark, MarkKind, NodeRecord
from holdfast.events import NodeReleaseRequested
from holdfast.settings.retention import RetentionPolicy
from holdfast_controller.plan.draft import Rules


def released(record: NodeRecord | None, event: NodeReleaseRequested, rules: Rules) -> NodeRecord | None:
    """Return the record of a node that a person took off the blocklist, perhaps after a repair."""
    if record is None or any(mark.event == event.id for mark in record.marks):
        return None
    mark = Mark(at=event.at, kind=MarkKind.RELEASED, text=event.reason[:TEXT_MAX], event=event.id)
    noted = record.with_mark(mark)
    odds = log_odds(noted, elsewhere(noted, rules.records), event.at, rules.record)
    return msgspec.structs.replace(noted, log_odds=odds)


def last_at(record: NodeRecord) -> datetime:
    return record.as_of or datetime.min.replace(tzinfo=UTC)


def is_outdated(record: NodeRecord, now: datetime, retention: RetentionPolicy) -> bool:
    return now - last_at(record) >= timedelta(days=retention.node_records_days)
