"""Wrong policies about silence of all nodes at once (ADR 5)."""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast_proving.policies.mutation import Change, Function
from holdfast_proving.policies.policy import Insight, Patch, Policy
from holdfast_standby.plan import InventoryPlanner
from holdfast_standby.service import Standby
from holdfast_standby.state import Node, NodeLiveness


def _loses_while(share: float | None) -> Change:
    """Count a silent node as lost while another one was heard within this share of the limit; None: in any case."""

    def make(original: Function, insight: Insight) -> Function:
        def silent_s(planner: InventoryPlanner, node: Node, liveness: NodeLiveness, now: datetime) -> float | None:
            limit = timedelta(seconds=planner.timeouts.node_lost_s)
            silence = now - max(liveness.last.get(node.id, node.since), node.since)
            is_alive = share is None or any(now - at <= limit * share for at in liveness.last.values())
            return silence.total_seconds() if silence > limit and is_alive else None

        return silent_s

    return make


def _from_the_connection(original: Function, insight: Insight) -> Function:
    return lambda standby, now, hearing_since: hearing_since


SILENCES: tuple[Policy, ...] = (
    Policy(
        name="loses_all_at_once",
        about="each node that is silent is lost, though all are",
        patches=(Patch(InventoryPlanner, "_silent_s", _loses_while(None)),),
    ),
    Policy(
        name="loses_within_a_heartbeat",
        about="a node is lost while another one was heard a heartbeat later, though nothing arrives any more",
        patches=(Patch(InventoryPlanner, "_silent_s", _loses_while(1.0)),),
    ),
    Policy(
        name="loses_who_is_heard_last",
        about="after a silence of all, a node is lost that is heard later than the first one",
        patches=(Patch(Standby, "_listening_since", _from_the_connection),),
    ),
)
