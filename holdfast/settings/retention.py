"""Sections `[history]` and `[retention]`: how long finished work and recorded history are kept."""

from __future__ import annotations

import msgspec

from holdfast.settings.ranges import require_within
from holdfast.subjects import DESIRED_KEPT_S

DAYS_MAX = 36_500


class HistoryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the recorded history is kept."""

    keep_days: int = 0
    """Days of events that are kept; 0 keeps all."""

    def __post_init__(self) -> None:
        require_within(self, keep_days=(0, DAYS_MAX))


_ORDERS_KEPT_DAYS = DESIRED_KEPT_S // (24 * 3600)


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long what is over is kept where work is done; the historian has the story (`HistoryPolicy`)."""

    ended_jobs_days: float = 30.0
    """Days that the controller keeps a job after its end.

    Its name stays taken afterwards: two jobs of one name would be one in the record, and share a directory.
    """

    lost_nodes_days: float = 7.0
    """Days that the inventory keeps a node that is lost or has departed, and is not on the blocklist."""

    jobs_on_node_max: int = 20
    """A node keeps logs and reports of this many jobs, those that began there last, besides the one that runs."""

    def __post_init__(self) -> None:
        orders_kept = f"the last order of a node is on the bus for {_ORDERS_KEPT_DAYS} days"
        require_within(
            self,
            ended_jobs_days=(1, DAYS_MAX, "agents' last words of a job may arrive that late"),
            lost_nodes_days=(_ORDERS_KEPT_DAYS + 1, DAYS_MAX, orders_kept),
            jobs_on_node_max=(1, 1_000_000, "the logs of the job that ended last are looked at"),
        )
