"""The controller as a decider: it selects the jobs that an input concerns, and turns decisions into rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from datetime import datetime
from itertools import islice, takewhile
from typing import Any

import msgspec

from holdfast.daemon.service_shell import Decider
from holdfast.effects import Effect, RowWrite
from holdfast.engines.checks.references import AnswerKey
from holdfast.engines.record.history import NodeRecord
from holdfast.engines.record.node_records import NodeRecords
from holdfast.events import AnyEvent, IncidentClosed, Inspection, NodeReleaseRequested, OrderRefused, SharedFaultOver
from holdfast.orders.any_order import AnyOrder
from holdfast.orders.code import CodeOrder
from holdfast.orders.node import NodeOrder
from holdfast.requests import (
    CONTROLLER_REQUESTS,
    Answer,
    AnyRequest,
    ResetBreaker,
    RollbackJob,
    StopJob,
    SubmitJob,
    UpdateJob,
)
from holdfast.settings.retention import RetentionPolicy
from holdfast_controller.job_secrets import SecretsApart
from holdfast_controller.plan.checks import suspect_test
from holdfast_controller.plan.doubt.doubt_records import SharedFault
from holdfast_controller.plan.doubt.shared_faults import reporters_of
from holdfast_controller.plan.draft import NOWHERE, JobDecision, Rules
from holdfast_controller.plan.incident.incident import Incident
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.loss.forgotten_orders import generations_max
from holdfast_controller.plan.members import concerns
from holdfast_controller.plan.orders import code_wanted, orders_in_force
from holdfast_controller.plan.phase import Ended
from holdfast_controller.plan.planner import SUBSCRIPTIONS, Planner
from holdfast_controller.plan.record.record_upkeep import is_outdated, last_at, released
from holdfast_controller.plan.requests import directory_taken
from holdfast_controller.store import (
    CODE_VERSIONS,
    INCIDENTS,
    JOB_SECRETS,
    JOBS,
    RECORDS,
    REFERENCES,
    TABLES,
    USED_NAMES,
    IncidentRecord,
    ReferenceRecord,
    UsedName,
    VersionRecord,
    version_key,
)

FORGOTTEN_AT_ONCE_MAX = 100
"""Maximum number of jobs deleted in one transaction, because decisions wait for it."""


class Controller(Decider):
    """Holds the state of all jobs; see `holdfast.daemon.service_shell.Decider`."""

    name = "controller"
    tables = TABLES
    handles = (*SUBSCRIPTIONS, NodeReleaseRequested)
    requests_subject = CONTROLLER_REQUESTS

    def __init__(
        self,
        rules: Rules,
        retention: RetentionPolicy | None = None,
    ) -> None:
        self._references: dict[AnswerKey, str] = {}
        self.records = NodeRecords()
        rules = msgspec.structs.replace(rules, references=self._references, records=self.records)
        self.planner = Planner(rules, retention)
        self.jobs: dict[str, JobState] = {}
        self._secrets = SecretsApart()
        # The oldest end first, so that usually one comparison shows that nothing is to be deleted.
        self._ended: dict[str, datetime] = {}
        self._used_names: dict[str, datetime] = {}
        self._forgotten_generations: dict[str, int] = {}

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        whole = self._secrets.load(rows.get(JOB_SECRETS.name, {}), rows[JOBS.name].values())
        self.jobs = {
            name: state.counting_from(self._forgotten_generations.get(name, 0)) for name, state in whole.items()
        }
        self._used_names = {name: used.ended_at for name, used in rows[USED_NAMES.name].items()}
        self._references.clear()
        for record in rows.get(REFERENCES.name, {}).values():
            self._references[record.reference.key] = record.reference.digest
        self.records.clear()
        # The oldest first, for the same reason as jobs that ended.
        self.records.update(sorted(rows.get(RECORDS.name, {}).items(), key=lambda item: last_at(item[1])))
        ended = {name: at for name, state in self.jobs.items() if (at := _ended_at(state))}
        self._ended = dict(sorted(ended.items(), key=lambda item: item[1]))

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        if isinstance(event, NodeReleaseRequested):
            record = released(self.records.get(event.node or ""), event, self.planner.rules)
            return Effect(rows=() if record is None else (RowWrite(table=RECORDS, key=record.node, row=record),))
        concerned = self._concerned(event)
        if isinstance(event, OrderRefused) and event.epoch < self._newest_epoch(event.node):
            # Its job does not know yet that it lost the node to another job: the newer order is not forged.
            concerned = []
        if isinstance(event, Inspection) and event.shared and event.state == "alert" and event.confidence != "hint":
            # A hint evicts no node, and may be about what only the nodes of one job share.
            return self._alerted(event, concerned, now)
        return _merge(self._decided(concerned, lambda planner, state: planner.event(state, event, now), now))

    def _alerted(self, event: Inspection, concerned: list[str], now: datetime) -> Effect:
        """Decide about an alert on a shared thing, in all jobs whose nodes report it: each counts all reports."""
        ladder = self.planner.rules.ladder
        found = {state.job: reporters_of(state, event, now, ladder) for state in self._live()}
        elsewhere = {node: at for nodes in found.values() for node, at in nodes.items()}
        more = [job for job, nodes in found.items() if nodes and event.node not in self.jobs[job].nodes]
        # To other jobs it is a node's report, not one about the job that the node names.
        report = msgspec.structs.replace(event, job=None)

        def decide(planner: Planner, state: JobState) -> JobDecision:
            return planner.event(state, event if state.job in concerned else report, now)

        return _merge(self._decided(dict.fromkeys((*concerned, *more)), decide, now, elsewhere))

    def on_request(self, request: AnyRequest, now: datetime) -> Effect:
        if not isinstance(request, SubmitJob | StopJob | UpdateJob | RollbackJob | ResetBreaker):
            return super().on_request(request, now)
        if isinstance(request, SubmitJob) and (taken := directory_taken(request.spec, self._live())):
            return Effect(answer=Answer(accepted=False, message=taken))
        job = request.spec.name if isinstance(request, SubmitJob) else request.job
        state = self.jobs.get(job)
        return self._effect(state, self.planner.request(state, request, now, self._used_names.get(job)), now)

    def on_time(self, now: datetime, hearing_since: datetime | None) -> Effect:
        waiting = [state.job for state in self._live() if state.waits_for_time]
        passed = _merge(self._decided(waiting, lambda planner, state: planner.time(state, now, hearing_since), now))
        return _merge([passed, Effect(rows=self._forgotten(now, {row.key for row in passed.rows}))])

    def adopt(self, effect: Effect) -> None:
        for row in effect.rows:
            if row.table is JOB_SECRETS:
                self._secrets.adopt(row)
            elif isinstance(row.row, JobState):
                self.jobs[row.key] = self._secrets.whole(row.row)
                if ended_at := _ended_at(row.row):
                    self._ended[row.key] = ended_at
            elif isinstance(row.row, UsedName):
                self._used_names[row.key] = row.row.ended_at
            elif isinstance(row.row, ReferenceRecord):
                self._references[row.row.reference.key] = row.row.reference.digest
            elif isinstance(row.row, NodeRecord):
                self.records.pop(row.key, None)
                self.records[row.key] = row.row
            elif row.table is RECORDS:
                del self.records[row.key]
            elif row.table is JOBS:
                del self.jobs[row.key], self._ended[row.key]

    def members(self) -> list[str]:
        """Return the nodes of all jobs that have not ended."""
        return sorted({member.node for state in self._live() for member in state.members if member is not None})

    def count_from(self, on_bus: Mapping[str, int], now: datetime, *, all_published: bool = True) -> None:
        """Number the next generation of a job above all that it can have had, if database or bus went back.

        `on_bus`: the generation of the newest order to its nodes by job. It is newer than the job if the database went
        back; it is older, or there is none, if the bus did, or if not `all_published` is on the bus yet.
        """
        for state in self._live():
            newest = on_bus.get(state.job, 0)
            is_older = newest < state.generation and all_published and bool(state.nodes)
            if newest > state.generation or is_older:
                above = self._forgotten_generations[state.job] = max(newest, generations_max(state, now))
                self.jobs[state.job] = state.counting_from(above)

    def has_job(self, name: str) -> bool:
        return name in self.jobs

    def orders_in_force(self) -> list[NodeOrder]:
        """Return the order in force for every node. If two jobs seem to hold a node, the later grant counts."""
        epochs: dict[str, int] = {}
        for state in self._live():
            for member in filter(None, state.members):
                epochs[member.node] = max(member.epoch, epochs.get(member.node, 0))
        orders = (order for state in self._live() for order in orders_in_force(state))
        return [order for order in orders if order.epoch == epochs[order.node]]

    def code_in_force(self) -> list[CodeOrder]:
        """Return what the nodes of each job should fetch ahead."""
        return [order for order in map(code_wanted, self._live()) if order.versions]

    def _concerned(self, event: AnyEvent) -> list[str]:
        """Return the job that an event names, or else those that hold the node it names or may be granted it."""
        if event.job is not None:
            return [event.job] if event.job in self.jobs else []
        return [state.job for state in self._live() if concerns(state, event)] if event.node else []

    def _newest_epoch(self, node: str | None) -> int:
        """Return the newest epoch at which a job holds this node, or held it to its end."""
        return max((member.epoch for state in self.jobs.values() if (member := state.member(node))), default=0)

    def _forgotten(self, now: datetime, written: Set[str]) -> tuple[RowWrite, ...]:
        old = takewhile(lambda job: self.planner.is_forgotten(self._ended[job], now), self._ended)
        jobs = tuple(
            row
            for job in islice(old, FORGOTTEN_AT_ONCE_MAX)
            for row in (
                RowWrite(table=JOBS, key=job, row=None),
                RowWrite(table=USED_NAMES, key=job, row=UsedName(ended_at=self._ended[job])),
            )
        )
        outdated = takewhile(lambda node: is_outdated(self.records[node], now, self.planner.retention), self.records)
        records = islice(outdated, FORGOTTEN_AT_ONCE_MAX)
        return (*jobs, *(RowWrite(table=RECORDS, key=node, row=None) for node in records if node not in written))

    def _live(self) -> list[JobState]:
        return [state for state in self.jobs.values() if not state.is_over]

    def _decided(
        self,
        jobs: Iterable[str],
        decide: Callable[[Planner, JobState], JobDecision],
        now: datetime,
        elsewhere: Mapping[str, datetime] = NOWHERE,
    ) -> list[Effect]:
        """Return the effects of decisions about these jobs; what one notes about a node, those after it know.

        With it goes a test of suspects for each decision that evicts several nodes together.
        """
        records = NodeRecords(on_top_of=self.records)
        planner = self.planner.knowing(records, elsewhere)
        effects = []
        for state in map(self.jobs.__getitem__, jobs):
            decision = decide(planner, state)
            records.update({record.node: record for record in decision.noted})
            effects.append(self._effect(state, decision, now))
            tests = suspect_test.follow_up(decision.events, decision.state or state, now, planner.rules)
            if tests is not None:
                effects.append(self._effect(None, tests, now))
        return effects

    def _effect(self, before: JobState | None, decision: JobDecision, now: datetime) -> Effect:
        if decision.refusal:
            return Effect(answer=Answer(accepted=False, message=decision.refusal))
        after = decision.state
        if after is None or (after == before and not (decision.events or decision.orders or decision.noted)):
            return Effect()
        rows = [*self._secrets.rows(after)]
        closings = [event for event in decision.events if isinstance(event, IncidentClosed)]
        for incident, closing in zip(decision.closed, closings, strict=True):
            rows.append(_incident_row(after.job, incident, closing.at, closing.outcome))
        if after.incident and (before is None or before.incident != after.incident):
            rows.append(_incident_row(after.job, after.incident))
        if after.closed and before and before.closed != after.closed and not before.incident:
            rows.append(_incident_row(after.job, after.closed.incident, after.closed.closed_at, after.closed.outcome))
        rows += _shared_rows(before, decision)
        rows += _version_rows(before, after)
        rows += [
            RowWrite(table=REFERENCES, key=str(it.key), row=ReferenceRecord(reference=it, job=after.job, agreed_at=now))
            for it in decision.learned
        ]
        rows += [RowWrite(table=RECORDS, key=record.node, row=record) for record in decision.noted]
        orders: tuple[AnyOrder, ...] = decision.orders
        if decision.events and _wanted(before) != _wanted(after):
            orders = (code_wanted(after, decision.events[-1].id), *orders)
        return Effect(rows=tuple(rows), events=decision.events, orders=orders)


def _ended_at(state: JobState) -> datetime | None:
    return state.phase.at if isinstance(state.phase, Ended) else None


def _version_rows(before: JobState | None, after: JobState) -> list[RowWrite]:
    known = before.code.versions if before else ()
    return [
        RowWrite(
            table=CODE_VERSIONS,
            key=version_key(after.job, about.version),
            row=VersionRecord(job=after.job, about=about),
        )
        for about in after.code.versions
        if about not in known
    ]


def _wanted(state: JobState | None) -> tuple[str, ...]:
    return code_wanted(state).versions if state else ()


def _incident_row(
    job: str, incident: Incident, closed_at: datetime | None = None, outcome: str | None = None
) -> RowWrite:
    record = IncidentRecord(
        id=incident.id,
        job=job,
        opened_at=incident.opened_at,
        symptom=incident.symptom_name,
        summary=incident.full_summary,
        attempts=incident.attempts,
        blamed=incident.blamed,
        taken=incident.taken,
        closed_at=closed_at,
        outcome=outcome,
    )
    return RowWrite(table=INCIDENTS, key=incident.id, row=record)


def _shared_rows(before: JobState | None, decision: JobDecision) -> list[RowWrite]:
    """Return the incidents of faults that nodes share: those that changed, and those that are over."""
    after = decision.state
    assert after is not None
    known = before.shared if before else {}
    changed = [fault for key, fault in after.shared.items() if known.get(key) != fault]
    closed = {event.incident: event.at for event in decision.events if isinstance(event, SharedFaultOver)}
    faults = {fault.incident: fault for fault in (*changed, *decision.closed_shared)}
    return [
        RowWrite(table=INCIDENTS, key=fault.incident, row=_shared_record(after.job, fault, closed.get(fault.incident)))
        for fault in faults.values()
    ]


def _shared_record(job: str, fault: SharedFault, closed_at: datetime | None) -> IncidentRecord:
    return IncidentRecord(
        id=fault.incident,
        job=job,
        opened_at=fault.since,
        symptom=fault.symptom,
        summary=fault.summary,
        attempts=0,
        blamed={},
        closed_at=closed_at,
        outcome="passed" if closed_at else None,
    )


def _merge(effects: list[Effect]) -> Effect:
    if len(effects) == 1:
        return effects[0]
    return Effect(
        rows=tuple(row for effect in effects for row in effect.rows),
        events=tuple(event for effect in effects for event in effect.events),
        orders=tuple(order for effect in effects for order in effect.orders),
    )
