"""Drills: something is broken by `holdfast inject`, and the job has to come back by itself. One row for each.

To add one: a row in `DRILLS`. `drill_steps.py` carries them out, `bench/drills.py` prints the seconds that they take.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from cluster import JOBS, Cluster

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
    """A symptom, how it is caused, and what has to follow."""

    symptom: Symptom | None
    strike: tuple[str, ...]
    """The arguments of `holdfast inject`. {first}, {last}: the job's nodes; {last_gpu}: the GPU of the last one; {job}:
    the job's directory; {scratch}: a directory for the drill; {port}: a free port."""
    incident: str
    """The symptom that the controller gives the incident."""
    decision: str = "reattempt"
    """The last decision; "" if any will do."""
    heals_by: str = "itself"
    """`undo` if the job can only train again after the fault is undone, which is done once it was noticed."""
    script: Path = FOLD
    arguments: tuple[str, ...] = ()
    """Of the script, with the same names in braces as in `strike`."""
    ranks_per_node: int = 1
    """Two where a rank of the struck node survives, or where the ranks of a node are compared with those of others."""
    pending: str = ""
    """Why this cannot work yet."""
    needs_gpus: bool = False
    """Nodes are told which GPU is theirs (`divide_gpus`)."""
    on_one_node: bool = False
    """The node needs a network and mounts that no other node has."""
    is_repaired: bool = False
    """The machine of an evicted node is restarted."""
    steps_before: int = STEPS_BEFORE
    """The step that the job has reached when it is struck."""
    row: str | None = None
    """The row of Table 1 that the incident has to get; None: that of `symptom`."""
    root: Root | None = Root.UNKNOWN
    """The root that the incident has to get, as far as it can be known; None if any will do."""
    evicts: str | None = ""
    """The node that has to be evicted, `first` or `last`; "" for none, None if any will do."""
    is_without_log: bool = False
    """It needs a cluster whose agents do not read the kernel's log."""
    then: tuple[str, ...] = ()
    """A second fault, injected once an inspection has reported the first."""

    @property
    def wanted_row(self) -> str:
        return (self.symptom or "") if self.row is None else self.row

    @property
    def fault(self) -> str:
        return self.strike[0]

    @property
    def name(self) -> str:
        """The fault with its options."""
        options = [word for before, word in zip(self.strike, self.strike[1:], strict=False) if before == "-o"]
        return " ".join([self.fault, *(option for option in options if "{" not in option)])

    @property
    def is_slow(self) -> bool:
        """True if it takes a minute: the job's pace has to be known before the fault."""
        return self.script == PACED

    def is_right(self, came: Outcome) -> bool:
        """Return True if the incident has the row and root that can be known, and the node at fault went."""
        went = self.evicts is None or came.evicted == ((self.evicts,) if self.evicts else ())
        return came.row == self.wanted_row and self.root in (None, came.root) and went

    def lacking(self, cluster: Cluster) -> str:
        """Return why it cannot be carried out here; "" if it can."""
        if self.pending:
            return self.pending
        if self.on_one_node and cluster.info.fabric is None:
            return "the nodes of this cluster have no networks and mounts of their own (up --namespaces)"
        if self.needs_gpus and not cluster.layout.node_settings("node-0").exists():
            return "the nodes of this cluster have no GPUs by their settings (see `divide_gpus`)"
        return "; ".join(reason for need in find_fault(self.fault).needs if (reason := lacking(need)))


class Outcome(NamedTuple):
    """The result of a drill, by the record. Seconds count from the injection."""

    noticed_s: float
    """Until the event that opened the incident."""
    decided_s: float
    """Until the decision after which the job trains."""
    trains_s: float
    """Until every rank of the generation that followed has completed a step."""
    incident: str
    decision: str
    outcome: str
    row: str
    root: str
    evicted: tuple[str, ...]
    """`first` or `last`, for the nodes that the job was struck on."""
    injection: str = ""


LOST: Any = {"root": Root.INFRASTRUCTURE, "evicts": "last"}
"""The right conclusion where the last node is at fault."""

AT_ITS_PACE: Any = {
    "script": PACED,
    "arguments": ("--products", "60", "--rest-s", "0.3", "--until", "{scratch}/stop", "--keeps"),
    "steps_before": 30,
    "ranks_per_node": 2,
}
"""For faults that make a job slow: its steps need processors, and its pace is well known before the fault."""

DRILLS = (
    Drill(None, ("kill-rank", "--rank", "3"), "killed_by_signal", ranks_per_node=2),
    Drill(Symptom.CUDA_ERROR, ("cuda-error", "--rank", "1"), "cuda_error"),
    # Where no agent reads the kernel's log, a kill for lack of memory looks like any other.
    Drill(
        Symptom.CPU_OOM,
        ("oom-kill", "--rank", "2"),
        "killed_by_signal",
        ranks_per_node=2,
        row="",
        is_without_log=True,
    ),
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
        # Its ranks wait for their data without end, and all others wait for them.
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
}
"""Settings of a cluster for drills. Its agents read the kernel's log, which those of other tests do not: its lines are
a part of the drills. A slow machine is replaced after seconds, and so is one with a sure alert."""


def gpu_of(node: str) -> str:
    """Return the PCI address that drills use for the node's GPU. The log's line about it needs no real device."""
    return f"0000:{0x10 + int(node.rpartition('-')[2]):02x}:00"
