"""Ways to stand still, made on real processes, and what has to come of each. `bench/live_hangs.py` prints the seconds.

To add one: a row in `CASES`, and what its rank does in `jobs/fold.py` or a fault of `holdfast inject`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import NamedTuple

from cluster import Cluster
from job import Job
from waiting import DEADLINE_S

STRIKES_AT = 14
GUILTY = 1
"""The rank that stands still."""


class Case(NamedTuple):
    """`fault` is one of `jobs/fold.py`, at step `STRIKES_AT` of one generation, or "": `inject` is carried out then.

    {first} and {last} in it are the job's nodes. `decision`: what the controller makes of it. `at`: when the rank does
    it; "": at step `STRIKES_AT`. `spoils`: some ranks come out of that step, with wrong numbers. `needs_links`: the
    nodes have networks of their own.
    """

    name: str
    fault: str = ""
    inject: tuple[str, ...] = ()
    decision: str = "reattempt"
    needs_spare: bool = False
    at: str = ""
    spoils: bool = False
    needs_links: bool = False


CASES = (
    Case(
        "a rank is stopped (SIGSTOP)",
        inject=("freeze-rank", "--job", "{job}", "--rank", str(GUILTY)),
    ),
    Case("deadlock in user code", fault="deadlock"),
    Case("a data loader worker sleeps", fault="worker-sleeps"),
    Case("a rank skips a collective", fault="skip"),
    Case("a collective of another size", fault="other-size", spoils=True),
    Case(
        "the link between two nodes is cut",
        inject=("cut", "--node", "{first}", "-o", "off={last}"),
        decision="eviction",
        needs_spare=True,
        needs_links=True,
    ),
)


BEFORE_THE_FIRST_STEP = (
    Case("a rank does not come to the rendezvous", fault="deadlock", at="init"),
    Case("a rank stands in its data set-up, the others in the first collective", fault="worker-sleeps", at="first"),
)


class Outcome(NamedTuple):
    """Seconds since the rank stood still: noticed, suspects named, what helped decided, every rank steps again."""

    noticed_s: float
    named_s: float
    decided_s: float
    trains_s: float
    ranks: tuple[int, ...]
    confidence: float
    summary: str
    decision: str


def start(cluster: Cluster, case: Case, *, nnodes: int, nproc: int, step_s: float = 0.3) -> Job:
    """The job, on its way to where it will stand still."""
    fault = (
        ("--fault", f"{case.fault}@{case.at or STRIKES_AT}", "--fault-rank", str(GUILTY), "--fault-once")
        if case.fault
        else ()
    )
    return cluster.run("--step-s", str(step_s), *fault, nnodes=nnodes, nproc=nproc)


def strike(cluster: Cluster, case: Case, job: Job) -> datetime:
    """Let it stand still; returns when it began."""
    if case.inject:
        job.until_step(STRIKES_AT)
        members = cluster.members(job)
        words = [word.format(job=job.name, first=members[0], last=members[-1]) for word in case.inject]
        told = json.loads(cluster.command("inject", *words, "--json").stdout)
        return datetime.fromisoformat(told["at"])
    mark = job.journal / "fault"
    job.until("it stands still", mark.exists)
    return datetime.fromtimestamp(mark.stat().st_mtime, tz=UTC)


def end(cluster: Cluster, case: Case, job: Job) -> None:
    """Let the job end, with the result of an undisturbed one where it has that."""
    if case.spoils:
        cluster.command("stop", job.name)
    else:
        job.finish()


def outcome(cluster: Cluster, case: Case, job: Job, since: datetime, within_s: float = DEADLINE_S) -> Outcome:
    """Wait until the job trains again, and read in the record how long it took."""
    job.until("it trains again", lambda: job.generation() >= 2 and job.step() > STRIKES_AT + 1, within_s)
    found = cluster.until("the hang is recorded", lambda: cluster.events(job, "hang_found"))[0]
    suspected = cluster.until("and the suspicion", lambda: cluster.events(job, "hang_suspected"))[0]
    cluster.until("the incident is over", lambda: all(row["closed_at"] for row in cluster.incidents(job)))
    started = cluster.events(job, "generation_started")[-1]

    def stepped() -> list[float]:
        steps = [step for step in cluster.events(job, "first_step") if step["generation"] == started["generation"]]
        return [seconds(step["completed_at"]) for step in steps] if len(steps) == job.nnodes else []

    def seconds(moment: str) -> float:
        return (datetime.fromisoformat(moment) - since).total_seconds()

    decisions = [kind for kind in ("eviction", "reattempt") if cluster.events(job, kind)]
    return Outcome(
        noticed_s=seconds(suspected["at"]),
        named_s=seconds(found["at"]),
        decided_s=seconds(started["at"]),
        trains_s=max(cluster.until("its first steps are recorded", stepped)),
        ranks=tuple(found.get("ranks", ())),
        confidence=found.get("confidence", 0.0),
        summary=found.get("summary", ""),
        decision=decisions[0] if decisions else "",
    )
