"""The agent's decision loop: take an input, plan, make the plan durable, carry it out.

`learn` never waits. So decisions are made one at a time, and only one SQLite transaction lies between a rank's exit and
its evidence.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from holdfast.bus import KeyUpdate, event_message
from holdfast.clock import Now
from holdfast.fresh_ids import uuid7
from holdfast.settings.timeouts import Timeouts
from holdfast.subjects import kv_subject
from holdfast_agent.files.spool import Spool
from holdfast_agent.plan.actions import Emit, Plan
from holdfast_agent.plan.inputs import Input
from holdfast_agent.plan.node_state import AgentState, Crew, Durable
from holdfast_agent.plan.planner import plan
from holdfast_agent.publisher import Publisher
from holdfast_agent.registration import refused_order

REJECTED_MAX = 16
"""Number of keys whose rejected value is remembered: this node's own, and those of its jobs."""

_DURABLE_KEY = "standing"

log = structlog.get_logger(__name__)


def recall_durable(spool: Spool) -> Durable:
    """Return the durable state of the agent before. Raises msgspec.DecodeError if it cannot be read."""
    recalled = spool.recall(_DURABLE_KEY)
    return msgspec.json.decode(recalled, type=Durable) if recalled else Durable()


class Reconciler:
    """The node's state and every change of it. `carry_out` gets each plan with the state before it."""

    def __init__(
        self,
        node: str,
        spool: Spool,
        publisher: Publisher,
        timeouts: Timeouts,
        now: Now,
        carry_out: Callable[[Plan, AgentState], None],
    ) -> None:
        self._publisher = publisher
        self._timeouts = timeouts
        self._now = now
        self._carry_out = carry_out
        durable = recall_durable(spool)
        if durable.began_at is None:
            durable = msgspec.structs.replace(durable, began_at=now())
            spool.commit(memory={_DURABLE_KEY: msgspec.json.encode(durable)})
        self.state = AgentState(node=node, instance=uuid7(), durable=durable)

    def learn(self, seen: Input) -> None:
        before = self.state
        decided = plan(before, seen, self._now(), self._timeouts)
        self.state = decided.state
        events = [action.event for action in decided.actions if isinstance(action, Emit)]
        if events or self.state.durable != before.durable:
            memory = self._memory() if self.state.durable != before.durable else None
            self._publisher.commit([event_message(event) for event in events], memory)
        if decided.reason:
            log.info("decided", on=type(seen).__name__, reason=decided.reason)
        self._carry_out(decided, before)

    def crew(self) -> Crew | None:
        return self.state.crew

    def training_job(self) -> str | None:
        """Return the job that trains on the node; None during checks and replays, whose output is not the job's."""
        crew = self.state.crew
        return crew.order.job if crew is not None and crew.trains else None

    def reject_order(self, bucket: str, update: KeyUpdate, error: str, message_bytes_max: int) -> None:
        """Move an order that is not obeyed to the dead letters, once, and keep to the present one."""
        durable, subject = self.state.durable, kv_subject(bucket, update.key)
        if update.revision == durable.rejected.get(subject):
            return
        log.error("an order is refused", subject=subject, revision=update.revision, error=error)
        letters = refused_order(self.state.node, subject, update, error, self._now(), message_bytes_max)
        rejected = {key: revision for key, revision in durable.rejected.items() if key != subject}
        newest = dict([*rejected.items(), (subject, update.revision)][-REJECTED_MAX:])
        durable = msgspec.structs.replace(durable, rejected=newest)
        self.state = msgspec.structs.replace(self.state, durable=durable)
        self._publisher.commit(letters, self._memory())

    def _memory(self) -> dict[str, bytes]:
        return {_DURABLE_KEY: msgspec.json.encode(self.state.durable)}
