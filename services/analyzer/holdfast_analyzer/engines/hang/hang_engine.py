"""Hangs of all jobs, and the traces that `holdfast hang` asks for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from holdfast.effects import Effect, RowWrite
from holdfast.events import AnyEvent, CollectiveTrace, Progress, RanksFinished, StackDump
from holdfast.requests import Answer, AnyRequest, TraceJob
from holdfast.settings.findings.hang import HangPolicy
from holdfast_analyzer.engines.engine import Engine
from holdfast_analyzer.engines.hang.hangs import HangStep, JobHang

NODES_SHOWN = 8
OLD = timedelta(seconds=30)
"""An older event shows nothing of the present: the stream keeps a day of them for a process that was away."""


class HangEngine(Engine):
    events = (Progress, RanksFinished, StackDump, CollectiveTrace)
    requests = (TraceJob,)

    def __init__(self, policy: HangPolicy, long_step_s: Callable[[str], float | None]) -> None:
        """`long_step_s` returns a long step (P99) of a job in seconds; None: not known."""
        self._policy = policy
        self._long_step_s = long_step_s
        self._jobs: dict[str, JobHang] = {}
        self._uncommitted: dict[str, tuple[str, HangStep]] = {}

    def take(self, job: str, event: AnyEvent, now: datetime) -> Effect:
        assert isinstance(event, Progress | RanksFinished | StackDump | CollectiveTrace)
        if now - event.at > OLD:
            return Effect()
        is_answer = isinstance(event, StackDump | CollectiveTrace)
        hang = self._jobs.get(job)
        if hang is None:
            if is_answer:
                return Effect()
            hang = self._jobs[job] = JobHang(job, self._policy)
        hang.take(event, now)
        # Progress is judged twice a second by `due`; an answer shall not wait for that.
        return self._effect(job, hang.answered(self._long_step_s(job), now)) if is_answer else Effect()

    def due(self, now: datetime, hearing_since: datetime | None) -> Effect:
        whole = Effect()
        if hearing_since is not None:
            for job, hang in self._jobs.items():
                whole = whole.together(self._effect(job, hang.due(self._long_step_s(job), now, hearing_since)))
        return whole

    def answer(self, request: AnyRequest, now: datetime) -> Effect:
        assert isinstance(request, TraceJob)
        hang = self._jobs.get(request.job)
        if refusal := _refusal(request.job, hang, now):
            return Effect(answer=Answer(accepted=False, message=refusal))
        assert hang is not None
        return self._effect(request.job, hang.requested(request.id, request.asked_by, now, native=request.native))

    def committed(self, effect: Effect) -> None:
        for emitted in (*effect.events, *effect.orders):
            job = emitted.job or ""
            if job in self._uncommitted and self._uncommitted[job][0] == getattr(emitted, "id", None):
                self._jobs[job].committed(self._uncommitted.pop(job)[1])

    def forget(self, job: str) -> tuple[RowWrite, ...]:
        self._jobs.pop(job, None)
        self._uncommitted.pop(job, None)
        return ()

    def _effect(self, job: str, step: HangStep | None) -> Effect:
        if step is None:
            return Effect()
        if not (step.events or step.orders):
            self._jobs[job].committed(step)
            return Effect()
        # Until the commit the job stays as it was. The id of the first event or order identifies the whole step.
        self._uncommitted[job] = (step.events[0].id if step.events else step.orders[0].id, step)
        return Effect(events=step.events, orders=step.orders)


def _refusal(job: str, hang: JobHang | None, now: datetime) -> str:
    if hang is None:
        return f"no agent reports a job {job} that trains; `holdfast jobs` lists the jobs"
    if hang.tracing is not None:
        return f"job {job} is being traced now; ask again in a few seconds"
    if hang.watch.is_complete(now):
        return ""
    if silent := hang.watch.silent_nodes(now):
        shown = ", ".join((*silent[:NODES_SHOWN], *(["..."] if len(silent) > NODES_SHOWN else [])))
        refusal = f"{len(silent)} of {len(hang.watch.nodes)} nodes of job {job} do not report now: {shown}"
    else:
        refusal = f"only {hang.watch.ranks_reported} of {hang.watch.world_size} ranks of job {job} are reported so far"
    return f"{refusal}; see `holdfast jobs {job}` and `holdfast nodes`"
