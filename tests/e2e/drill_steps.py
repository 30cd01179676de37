"""How a drill is carried out: a job trains, something is broken, the job trains again, and the record says how.

Which drills there are is in `drills.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from cluster import Cluster
from drills import FOLD, PACE, Drill, Outcome, gpu_of
from job import Job
from waiting import DEADLINE_S, NotYet

_FIRST_SIGN = """
select sign.at from historian.events opened join historian.events sign on sign.id = opened.cause
where opened.type = 'incident_opened' and opened.incident = $1::text::uuid
"""


def carry_out(cluster: Cluster, drill: Drill, port: int, within_s: float = DEADLINE_S) -> Outcome:
    """Train, break, wait until the job trains again by itself, let it end, and read in the record how long it took."""
    name = re.sub("[^a-z0-9]+", "-", f"drill-{len(cluster.jobs)}-{drill.name}")
    scratch = cluster.directory / "drills" / name
    (scratch / "data").mkdir(parents=True)
    words = {"scratch": str(scratch), "job": str(cluster.directory / "jobs" / name), "port": str(port)}
    given = (*(PACE if drill.script == FOLD else ()), *drill.arguments)
    arguments = [word.format(**words) for word in given]
    job = cluster.run(*arguments, script=drill.script, nproc=drill.ranks_per_node, name=name)
    cluster.until(f"step {drill.steps_before}", lambda: _is_at(cluster, job, drill.steps_before), within_s)
    members = cluster.members(job)
    words |= {"first": members[0], "last": members[-1], "last_gpu": gpu_of(members[-1])}
    strike = [word.format(**words) for word in drill.strike]
    strike += ["--job", job.name] if "--rank" in strike else []
    told = json.loads(cluster.command("inject", *strike, "--json").stdout)
    is_in_force = bool(told["undo"])
    service = scratch / "service"
    try:
        if drill.then:
            cluster.until("an inspection reports it", lambda: _is_reported(cluster, drill, members[-1], told), within_s)
            cluster.command("inject", *drill.then, "--job", job.name)
        fabric = cluster.info.fabric
        service.write_text(f"http://{fabric.gateway if fabric else '127.0.0.1'}:{port}/data")
        cluster.until("it is noticed", lambda: cluster.incidents(job), within_s)
        if drill.heals_by == "undo":
            service.unlink()
            cluster.command("inject", "--undo", told["id"])
            is_in_force = False
        cluster.until("it is over and named", lambda: _is_over(cluster, job, drill), within_s)
    finally:
        service.unlink(missing_ok=True)
        if is_in_force:
            # Only this fault: other drills run beside it.
            cluster.command("inject", "--undo", told["id"])
    if drill.is_repaired:
        for eviction in cluster.events(job, "eviction"):
            cluster.power_off(eviction["node"])
            cluster.power_on(eviction["node"])
    if drill.script == FOLD:
        job.finish()
    else:
        cluster.command("stop", job.name)
    return _read(cluster, job, datetime.fromisoformat(told["at"]), members)._replace(injection=told["id"])


def _is_reported(cluster: Cluster, drill: Drill, node: str, told: dict[str, Any]) -> bool:
    alerts = """select 1 from historian.events where type = 'inspection' and node = $1 and at > $2
                and body->>'state' = 'alert' and body->>'symptom' = $3"""
    return bool(cluster.query(alerts, node, datetime.fromisoformat(told["at"]), str(drill.symptom)))


def mend(cluster: Cluster, nodes: Sequence[str]) -> None:
    """Make these nodes ready for the next drill, and touch no others."""
    for node in nodes:
        if cluster.children()[node].state == "off":
            cluster.power_on(node)
    cluster.until("its nodes are ready", lambda: all(cluster.children()[node].state == "ready" for node in nodes))
    for node in nodes:
        if cluster.nodes()[node]["blocked_until"] is not None:
            cluster.command("nodes", "release", node)


_STEPS = """
select coalesce(min(step), -1) as step, count(*) as ranks
from (select max(step) as step from historian.steps where job = $1 group by rank) newest
"""


def _is_at(cluster: Cluster, job: Job, step: int) -> bool:
    """Return True if every rank has reached the step, by the record: not every script keeps a journal."""
    (newest,) = cluster.query(_STEPS, job.name)
    return bool(newest["ranks"] and newest["step"] >= step)


def _is_over(cluster: Cluster, job: Job, drill: Drill) -> bool:
    (incident, *_) = cluster.incidents(job)
    if incident["closed_at"] is None:
        raise NotYet(f"incident {incident['key']} is open: {incident['summary']}")
    (concluded,) = cluster.query(_CONCLUDED, incident["key"])
    if drill.wanted_row and not concluded["table_one"]:
        raise NotYet(f"incident {incident['key']} has no row of Table 1 yet")
    return True


def _read(cluster: Cluster, job: Job, struck_at: datetime, members: Sequence[str]) -> Outcome:
    (incident, *_) = cluster.incidents(job)
    sign = cluster.until("its first sign is recorded", lambda: cluster.query(_FIRST_SIGN, incident["key"]))
    started, stepped = cluster.until("its story is recorded", lambda: _last_start(cluster, job))
    decisions = [
        (event["at"], event["type"]) for kind in ("reattempt", "eviction") for event in cluster.events(job, kind)
    ]

    (concluded,) = cluster.query(_CONCLUDED, incident["key"])

    def seconds(moment: str | datetime) -> float:
        at = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        return (at - struck_at).total_seconds()

    return Outcome(
        noticed_s=seconds(sign[0]["at"]),
        decided_s=seconds(started["at"]),
        trains_s=max(seconds(event["completed_at"]) for event in stepped),
        incident=incident["symptom"],
        decision=max(decisions)[1] if decisions else "",
        outcome=incident["outcome"],
        row=concluded["table_one"],
        root=concluded["root"],
        evicted=tuple(_place(event["node"], members) for event in cluster.events(job, "eviction")),
    )


_CONCLUDED = "select table_one, root from historian.incidents where incident = $1::text::uuid"


def _place(node: str, members: Sequence[str]) -> str:
    return {members[0]: "first", members[-1]: "last"}.get(node, node)


def _last_start(cluster: Cluster, job: Job) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    started = cluster.events(job, "generation_started")[-1]
    stepped = [event for event in cluster.events(job, "first_step") if event["generation"] == started["generation"]]
    if len(stepped) < len(started["nodes"]):
        raise NotYet(f"of generation {started['generation']} {len(stepped)} nodes have said that they train")
    return started, stepped
