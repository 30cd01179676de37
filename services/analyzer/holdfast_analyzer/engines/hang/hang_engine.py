"""Hangs of all jobs, and `holdfast hang`: a person asks what the processes of a job do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from holdfast.effects import Effect, RowWrite
from holdfast.events import AnyEvent, CollectiveTrace, Progress, RanksFinished, StackDump
from holdfast.requests import Answer, AnyRequest, TraceJob
from holdfast.settings.hang import HangPolicy
from holdfast_analyzer.engines.engine import Engine
from holdfast_analyzer.engines.hang.hangs import Hangs, Said

NODES_SHOWN = 8
OLD = timedelta(seconds=30)
"""An older event shows nothing of the present: the stream keeps a day of them for a process that was away."""


class HangEngine(Engine):
    """Hangs of all jobs."""

    events = (Progress, RanksFinished, StackDump, CollectiveTrace)
    requests = (TraceJob,)

    def __init__(self, policy: HangPolicy, long_step_s: Callable[[str], float | None]) -> None:
        """`long_step_s` returns a long step (P99) of a job in seconds; None: not known."""
        self._policy = policy
        self._long_step_s = long_step_s
        self._jobs: dict[str, Hangs] = {}
        self._uncommitted: dict[str, tuple[str, Said]] = {}

    def take(self, job: str, event: AnyEvent, now: datetime) -> Effect:
        assert isinstance(event, Progress | RanksFinished | StackDump | CollectiveTrace)
        if now - event.at > OLD:
            return Effect()
        is_answer = isinstance(event, StackDump | CollectiveTrace)
        hangs = self._jobs.get(job)
        if hangs is None:
            if is_answer:
                return Effect()
            hangs = self._jobs[job] = Hangs(job, self._policy)
        hangs.take(event, now)
        # Progress is judged twice a second by `due`; an answer shall not wait for that.
        return self._effect(job, hangs.answered(self._long_step_s(job), now)) if is_answer else Effect()

    def due(self, now: datetime, hearing_since: datetime | None) -> Effect:
        whole = Effect()
        if hearing_since is not None:
            for job, hangs in self._jobs.items():
                whole = whole.together(self._effect(job, hangs.due(self._long_step_s(job), now, hearing_since)))
        return whole

    def answer(self, request: AnyRequest, now: datetime) -> Effect:
        assert isinstance(request, TraceJob)
        hangs = self._jobs.get(request.job)
        if refusal := _refusal(request.job, hangs, now):
            return Effect(answer=Answer(accepted=False, message=refusal))
        assert hangs is not None
        return self._effect(request.job, hangs.by_hand(request.id, request.asked_by, now, native=request.native))

    def committed(self, effect: Effect) -> None:
        for emitted in (*effect.events, *effect.orders):
            job = emitted.job or ""
            if job in self._uncommitted and self._uncommitted[job][0] == getattr(emitted, "id", None):
                self._jobs[job].committed(self._uncommitted.pop(job)[1])

    def forget(self, job: str) -> tuple[RowWrite, ...]:
        self._jobs.pop(job, None)
        self._uncommitted.pop(job, None)
        return ()

    def _effect(self, job: str, said: Said | None) -> Effect:
        if said is None:
            return Effect()
        if not (said.events or said.orders):
            self._jobs[job].committed(said)
            return Effect()
        # Until the commit the job stays as it was. The id of the first event or order identifies the whole step.
        self._uncommitted[job] = (said.events[0].id if said.events else said.orders[0].id, said)
        return Effect(events=said.events, orders=said.orders)


def _refusal(job: str, hangs: Hangs | None, now: datetime) -> str:
    if hangs is None:
        return f"no agent tells of a job {job} that trains; `holdfast jobs` lists the jobs"
    if hangs.asked is not None:
        return f"job {job} is being traced just now; ask again in a few seconds"
    if hangs.watch.is_heard(now):
        return ""
    if silent := hangs.watch.silent(now):
        shown = ", ".join((*silent[:NODES_SHOWN], *(["..."] if len(silent) > NODES_SHOWN else [])))
        who = f"{len(silent)} of {len(hangs.watch.nodes)} nodes of job {job} tell nothing of their ranks now: {shown}"
    else:
        who = f"only {hangs.watch.ranks_told} of {hangs.watch.world_size} ranks of job {job} are told of so far"
    return f"{who}; `holdfast jobs {job}` shows how it stands, `holdfast nodes` its nodes"
