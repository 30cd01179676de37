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
from holdfast_agent.plan import departure, orders, progress, ranks, warm_up
from holdfast_agent.plan.actions import Plan
from holdfast_agent.plan.draft import PlanDraft
from holdfast_agent.plan.inputs import (
    CodeMissing,
    CodeReady,
    Input,
    LogAlertSeen,
    Observed,
    OrderSeen,
    RankEnded,
    RanksRun,
    ShutdownRequested,
    StartFailed,
    StopDone,
    StoreLost,
    WarmUpReported,
    ZygoteFound,
    ZygoteLost,
)
from holdfast_agent.plan.node_state import AgentState


def plan(state: AgentState, seen: Input, now: datetime, timeouts: Timeouts) -> Plan:
    draft = PlanDraft(state, seen.id, now, timeouts)
    match seen:
        case OrderSeen():
            orders.order_seen(draft, seen)
        case CodeReady():
            orders.code_ready(draft, seen)
        case CodeMissing():
            orders.code_missing(draft, seen)
        case ZygoteFound():
            ranks.zygote_found(draft, seen)
        case ZygoteLost():
            ranks.zygote_lost(draft, seen)
        case RanksRun():
            ranks.ranks_run(draft, seen)
        case StartFailed():
            ranks.start_failed(draft, seen)
        case StoreLost():
            ranks.store_lost(draft, seen)
        case RankEnded():
            ranks.rank_ended(draft, seen)
        case StopDone():
            ranks.stop_done(draft, seen)
        case LogAlertSeen():
            ranks.log_alert_seen(draft, seen)
        case WarmUpReported():
            warm_up.reported(draft, seen)
        case Observed():
            progress.observed(draft, seen)
        case ShutdownRequested():
            departure.shutdown_requested(draft)
    return Plan(state=draft.state, actions=tuple(draft.actions), reason=draft.reason)
