"""Sections `[history]` and `[retention]`: how long finished work and recorded history are kept."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import Section, Within
from holdfast.subjects import DESIRED_KEPT_S

DAYS_MAX = 36_500


class HistoryPolicy(Section, frozen=True, kw_only=True):
    """How long the recorded history is kept."""

    keep_days: Annotated[int, Within(0, DAYS_MAX)] = 0
    """Days of events that are kept; 0 keeps all."""


_ORDERS_KEPT_DAYS = DESIRED_KEPT_S // (24 * 3600)
_ORDERS_KEPT = f"the last order of a node is on the bus for {_ORDERS_KEPT_DAYS} days"


class RetentionPolicy(Section, frozen=True, kw_only=True):
    """How long what is over is kept where work is done; the historian has the story (`HistoryPolicy`)."""

    ended_jobs_days: Annotated[float, Within(1, DAYS_MAX, "agents' last words of a job may arrive that late")] = 30.0
    """Days that the controller keeps a job after its end.

    Its name stays taken afterwards: two jobs of one name would be one in the record, and share a directory.
    """

    lost_nodes_days: Annotated[float, Within(_ORDERS_KEPT_DAYS + 1, DAYS_MAX, _ORDERS_KEPT)] = 7.0
    """Days that the inventory keeps a node that is lost or has departed, and is not on the blocklist."""

    jobs_on_node_max: Annotated[int, Within(1, 1_000_000, "the logs of the job that ended last are looked at")] = 20
    """A node keeps logs and reports of this many jobs, those that began there last, besides the one that runs."""
