"""Drills: something is broken by `holdfast inject`, and the job has to come back by itself. One row for each.

To add one: a row in `DRILLS`. `bench/drills.py` carries out the same rows and prints the seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from cluster import JOBS, Cluster
from job import Job
from waiting import DEADLINE_S, NotYet

from holdfast.embedded.layout import ClusterLayout
from holdfast.faults.registry import find_fault
from holdfast.faults.requirements import lacking
from holdfast.symptoms import Root, Symptom

STEPS_BEFORE = 15
"""How far the job is when it is struck; there is a checkpoint by then."""

FOLD, GPT, PACED = JOBS / "fold.py", JOBS / "gpt.py", JOBS / "paced.py"
GPT_SHAPE = ("--steps=100000", "--gate={scratch}/no-gate")
PACE = ("--step-s", "0.1")
"""Steps cost processor time, and drills run side by side."""
NO_HURRY = ("--later-step-s", "0.3")
"""After a restart there is time to undo the fault, before it strikes a second time."""


class Drill(NamedTuple):
    """A symptom, how it is made, and what has to come of it.

    `strike`: the arguments of `holdfast inject`; {first}, {last}: the job's nodes, {job}: its directory, {scratch}: one
    for the drill. `incident`: how the controller names it. `decision`: what it is to decide last. "" for whatever it
    is. `heals_by`: what has to be done for the job to come back: nothing, or that the fault is undone once it was
    noticed. `pending`: why this cannot work yet. `needs_gpus`: nodes are told which GPU is theirs (`divide_gpus`).
    `on_one_node`: it takes a network, or mounts, that no other node has. `is_repaired`: whoever had to go comes back by
    a restart of its machine. `steps_before`: how far the job is when it is struck. `row`: the row of Table 1 that it
    has to be given, by default that of `symptom`. `root`: whose it is, as far as can be known; None for whatever it is.
    `evicts`: the node that has to go, `first` or `last`; "" for none, None for whatever is done. `is_without_log`: it
    takes a cluster whose agents do not read the kernel's log. `then`: what is done as well, once an inspection has
    reported the first.
    """

    symptom: Symptom | None
    strike: tuple[str, ...]
    incident: str
    decision: str = "reattempt"
    heals_by: str = "itself"
    script: Path = FOLD
    arguments: tuple[str, ...] = ()
    pending: str = ""
    needs_gpus: bool = False
    on_one_node: bool = False
    is_repaired: bool = False
    steps_before: int = STEPS_BEFORE
    row: str | None = None
    root: Root | None = Root.UNKNOWN
    evicts: str | None = ""
    is_without_log: bool = False
    then: tuple[str, ...] = ()

    @property
    def wanted_row(self) -> str:
        return (self.symptom or "") if self.row is None else self.row

    @property
    def fault(self) -> str:
        return self.strike[0]

    @property
    def name(self) -> str:
        """The fault, with what is set of it."""
        options = [word for before, word in zip(self.strike, self.strike[1:], strict=False) if before == "-o"]
        return " ".join([self.fault, *(option for option in options if "{" not in option)])

    @property
    def is_slow(self) -> bool:
        """True if it takes long: the pace of its job is known before it is struck."""
        return self.script == PACED

    @property
    def ranks_per_node(self) -> int:
        """Return two where ranks of one node are compared with those of the other."""
        return 2 if self.is_slow else 1

    def is_right(self, came: Outcome) -> bool:
        """Return True if the incident has the row and root that can be known, and the node at fault went."""
        went = self.evicts is None or came.evicted == ((self.evicts,) if self.evicts else ())
        return came.row == self.wanted_row and self.root in (None, came.root) and went

    def lacking(self, cluster: Cluster) -> str:
        """Why it cannot be carried out here; "" if it can."""
        if self.pending:
            return self.pending
        if self.on_one_node and cluster.info.fabric is None:
            return "the nodes of this cluster have no networks and mounts of their own (up --namespaces)"
        if self.needs_gpus and not cluster.layout.node_settings("node-0").exists():
            return "the nodes of this cluster have no GPUs by their settings (see `divide_gpus`)"
        return "; ".join(reason for need in find_fault(self.fault).needs if (reason := lacking(need)))


class Outcome(NamedTuple):
    """What came of a drill: seconds since the injection.

    `noticed_s`: what opens the incident is said. `decided_s`: the decision that led back is made. `trains_s`: every
    rank of the generation that came of it has made a step.
    """

    noticed_s: float
    decided_s: float
    trains_s: float
    incident: str
    decision: str
    outcome: str
    row: str
    root: str
    evicted: tuple[str, ...]
    """`first` or `last`, for the nodes that the job was struck on."""
    injection: str = ""


LOST: Any = {"root": Root.INFRASTRUCTURE, "evicts": "last"}
"""What has to be concluded where the last node is at fault."""

AT_ITS_PACE: Any = {
    "script": PACED,
    "arguments": ("--products", "60", "--rest-s", "0.3", "--until", "{scratch}/stop", "--keeps"),
    "steps_before": 30,
}
"""For what makes a job slow: its steps need processors, and its pace is well known before it is struck."""

DRILLS = (
    Drill(None, ("kill-rank", "--rank", "1"), "killed_by_signal"),
    Drill(Symptom.CUDA_ERROR, ("cuda-error", "--rank", "1"), "cuda_error"),
    # Where no agent reads the kernel's log, nothing tells a kill for lack of memory from another one.
    Drill(Symptom.CPU_OOM, ("oom-kill", "--rank", "1"), "killed_by_signal", row="", is_without_log=True),
    # Where one does, its line names the incident, though the job trains again before the line is reported.
    Drill(Symptom.CPU_OOM, ("oom-kill", "--rank", "1"), "cpu_oom"),
    Drill(
        Symptom.INSUFFICIENT_DISK_SPACE,
        ("disk-full", "--node", "{last}", "-o", "path={job}"),
        "insufficient_disk_space",
        decision="",
        root=None,
        evicts=None,
        arguments=NO_HURRY,
        heals_by="undo",
    ),
    Drill(
        Symptom.EXTERNAL_SERVICE_ERROR,
        ("service-down", "-o", "port={port}"),
        "external_service_error",
        root=Root.INFRASTRUCTURE,
        heals_by="undo",
        arguments=("--service", "{scratch}/service", *NO_HURRY),
    ),
    Drill(
        Symptom.HDFS_ERROR,
        ("service-down", "-o", "speaks=webhdfs", "-o", "port={port}"),
        "hdfs_error",
        root=Root.INFRASTRUCTURE,
        heals_by="undo",
        arguments=("--service", "{scratch}/service", *NO_HURRY),
    ),
    Drill(Symptom.NAN_VALUE, ("nan", "--rank", "1", "-o", "look_s=1"), "nan", script=GPT, arguments=GPT_SHAPE),
    Drill(Symptom.OS_KERNEL_PANIC, ("lose-node", "--node", "{last}"), "node_lost", "eviction", **LOST),
    Drill(Symptom.CONTAINER_ERROR, ("kill-container", "--node", "{last}"), "ranks_vanished"),
    # Silence looks like a machine that is gone.
    Drill(
        Symptom.INFINIBAND_ERROR,
        ("cut", "--node", "{last}"),
        "node_lost",
        "eviction",
        on_one_node=True,
        row="os_kernel_panic",
        **LOST,
    ),
    Drill(Symptom.JOB_HANG, ("freeze-rank", "--rank", "0"), "hang"),
    Drill(
        Symptom.CPU_OVERLOAD,
        ("overload-node", "--node", "{last}"),
        "cpu_overload",
        decision="eviction",
        **LOST,
        **AT_ITS_PACE,
    ),
    Drill(
        Symptom.MFU_DECLINE,
        ("slow-node", "--node", "{last}", "-o", "cores=0.05"),
        "mfu_decline",
        decision="eviction",
        **LOST,
        **AT_ITS_PACE,
    ),
    Drill(
        # The bus goes over the same link: that its carrier is lost is not reported before it is back.
        Symptom.INFINIBAND_ERROR,
        ("link-down", "--node", "{last}"),
        "node_lost",
        decision="eviction",
        on_one_node=True,
        row="os_kernel_panic",
        **LOST,
    ),
    Drill(
        # While the job trains on, a link that flapped evicts no node (docs/adr/0042-whose-fault-by-who-else.md). A rank
        # of its node that dies without a reason has one in it.
        Symptom.INFINIBAND_ERROR,
        ("link-flap", "--node", "{last}"),
        "infiniband_error",
        decision="eviction",
        on_one_node=True,
        **LOST,
        then=("kill-rank", "--rank", "1"),
    ),
    Drill(
        # Its ranks wait for their data for ever, and with them all others.
        Symptom.FILESYSTEM_MOUNT,
        ("mount-hangs", "--node", "{last}", "-o", "path={scratch}/data"),
        "filesystem_mount",
        decision="eviction",
        on_one_node=True,
        **LOST,
        arguments=("--data", "{scratch}/data"),
    ),
    Drill(
        Symptom.GPU_MEMORY_ERROR,
        ("xid", "-o", "xid=95", "-o", "pci={last_gpu}"),
        "gpu_memory_error",
        decision="eviction",
        **LOST,
        needs_gpus=True,
        is_repaired=True,
    ),
    Drill(
        Symptom.GPU_UNAVAILABLE,
        ("xid", "-o", "xid=79", "-o", "pci={last_gpu}"),
        "gpu_unavailable",
        decision="eviction",
        **LOST,
        needs_gpus=True,
        is_repaired=True,
    ),
    Drill(
        Symptom.DISK_FAULT,
        ("disk-fails", "--node", "{last}", "-o", "path={job}"),
        "disk_fault",
        decision="eviction",
        **LOST,
        on_one_node=True,
        is_repaired=True,
    ),
)


def divide_gpus(layout: ClusterLayout, nodes: int) -> None:
    """Tell each node of a cluster that is not up yet which GPU is its own, so that the kernel's lines have an owner."""
    layout.create()
    layout.lock_file.touch()
    for number in range(nodes):
        layout.node(f"node-{number}").mkdir(exist_ok=True)
        layout.node_settings(f"node-{number}").write_text(f'[inspections]\ngpus = "{gpu_of(f"node-{number}")}"\n')


ENVIRONMENT = {
    "HOLDFAST_INSPECTIONS_DISABLED": "",
    "HOLDFAST_LADDER_SLOW_COST_MAX_S": "5",
    "HOLDFAST_LADDER_ALERTS_WAIT_S": "2",
    "HOLDFAST_TIMEOUTS_NODE_LOST_S": "20",
    "HOLDFAST_INSPECTIONS_NETWORK_S": "5",
}
"""Of a cluster for drills: nothing else reads the kernel's log there, whose lines are a part of what is drilled. A slow
machine is replaced, and one with a sure alert, after seconds. A node that is only busy, or whose agent starts again, is
not lost."""


def gpu_of(node: str) -> str:
    """The PCI address that a drill takes for the node's GPU; it need not be there for a line about it."""
    return f"0000:{0x10 + int(node.rpartition('-')[2]):02x}:00"


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
    if drill.then:
        cluster.until("an inspection reports it", lambda: _is_reported(cluster, drill, members[-1], told), within_s)
        cluster.command("inject", *drill.then, "--job", job.name)
    service = scratch / "service"
    fabric = cluster.info.fabric
    service.write_text(f"http://{fabric.gateway if fabric else '127.0.0.1'}:{port}/data")
    try:
        cluster.until("it is noticed", lambda: cluster.incidents(job), within_s)
        if drill.heals_by == "undo":
            service.unlink()
            cluster.command("inject", "--undo", told["id"])
            is_in_force = False
        cluster.until("it is over and named", lambda: _is_over(cluster, job, drill), within_s)
    finally:
        service.unlink(missing_ok=True)
        if is_in_force:
            # Only its own: other drills run beside it.
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
    """Bring the nodes of a drill back for the next one, and touch no others."""
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
    """By the record: not every script notes how far it is."""
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
