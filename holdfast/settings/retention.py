"""Sections `[history]` and `[retention]`: retention of recorded history and of finished work."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import Section, Within
from holdfast.subjects import DESIRED_KEPT_S

DAYS_MAX = 36_500


class HistoryPolicy(Section, frozen=True, kw_only=True):
    """Retention of the recorded history."""

    keep_days: Annotated[int, Within(0, DAYS_MAX)] = 0
    """Days of events that are kept; 0: all."""


_ORDERS_KEPT_DAYS = DESIRED_KEPT_S // (24 * 3600)
_ORDERS_KEPT = f"the last order of a node is on the bus for {_ORDERS_KEPT_DAYS} days"


class RetentionPolicy(Section, frozen=True, kw_only=True):
    """Retention of finished work outside of the history (`HistoryPolicy`)."""

    ended_jobs_days: Annotated[float, Within(1, DAYS_MAX, "agents' last events of a job may arrive that late")] = 30.0
    """Days that the controller keeps a job after its end. Its name stays taken afterwards: jobs of one name would be
    one in the history, and share a directory."""

    node_records_days: Annotated[float, Within(1, DAYS_MAX)] = 180.0
    """Days that the controller keeps a node's record after its last entry."""

    lost_nodes_days: Annotated[float, Within(_ORDERS_KEPT_DAYS + 1, DAYS_MAX, _ORDERS_KEPT)] = 7.0
    """Days that the inventory keeps a node that is lost or has departed, unless it is on the blocklist."""

    jobs_on_node_max: Annotated[int, Within(1, 1_000_000, "users read the logs of the job that ended last")] = 20
    """Jobs whose logs and reports a node keeps, the newest first, beside the one that runs."""
