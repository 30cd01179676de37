"""The agent's decisions: one handler for each input.

| input | decided in |
|---|---|
| an order, the code that it names | `orders.py` |
| the zygote, its ranks and their TCPStore | `ranks.py` |
| progress in the ledgers | `progress.py`; without the bus: `cut_off.py` |
| tests of the node beside its start | `warm_up.py` |
| shutdown of the agent | `departure.py` |

The ranks of one order are started at most once on a node: the start is durable before it is made. So ranks that are
missing afterwards are reported, and the agent never restarts them itself.
"""

from __future__ import annotations

from datetime import datetime

from holdfast.settings.timeouts import Timeouts
from holdfast_agent.plan import departure, inputs, orders, progress, ranks, warm_up
from holdfast_agent.plan.actions import Plan
from holdfast_agent.plan.node_state import AgentState
from holdfast_agent.plan.plan_draft import PlanDraft


def plan(state: AgentState, seen: inputs.Input, now: datetime, timeouts: Timeouts) -> Plan:
    """Return the next state of the agent, its actions and the events to publish, for one input."""
    draft = PlanDraft(state, seen.id, now, timeouts)
    match seen:
        case inputs.OrderSeen():
            orders.order_seen(draft, seen)
        case inputs.CodeReady():
            orders.code_ready(draft, seen)
        case inputs.CodeMissing():
            orders.code_missing(draft, seen)
        case inputs.ZygoteFound():
            ranks.zygote_found(draft, seen)
        case inputs.ZygoteLost():
            ranks.zygote_lost(draft, seen)
        case inputs.RanksRun():
            ranks.ranks_run(draft, seen)
        case inputs.StartFailed():
            ranks.start_failed(draft, seen)
        case inputs.StoreLost():
            ranks.store_lost(draft, seen)
        case inputs.RankEnded():
            ranks.rank_ended(draft, seen)
        case inputs.StopDone():
            ranks.stop_done(draft, seen)
        case inputs.LogAlertSeen():
            ranks.log_alert_seen(draft, seen)
        case inputs.WarmUpReported():
            warm_up.reported(draft, seen)
        case inputs.Observed():
            progress.observed(draft, seen)
        case inputs.ShutdownRequested():
            departure.shutdown_requested(draft)
    return Plan(state=draft.state, actions=tuple(draft.actions), reason=draft.reason)
