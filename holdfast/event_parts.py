"""What events are made of: names and times, jobs, nodes, ranks and samples."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from holdfast.persistence import PersistEvery
from holdfast.topology import Mesh, Topology
from holdfast.training_quantities import named_tags

Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$(?!\n)")]
"""A UUID in its canonical form; events carry version 7."""

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$(?!\n)")]
"""A job's or a node's name: one token of a subject."""

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""A point in time, with its zone."""


INTEGER_MAX = (1 << 53) - 1
"""Integers beyond this are not exact in every JSON reader, and no honest count comes near it."""

Count = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)]
"""How many, or the number of something that is counted from 0."""

Step = Annotated[int, msgspec.Meta(ge=-1, le=INTEGER_MAX)]
"""A training step; -1 before any is completed."""

Code = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
"""An exit code or the number of a signal."""

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
"""A TCP port."""

StorePorts = Annotated[tuple[Port, ...], msgspec.Meta(min_length=1)]
"""The ports that a node holds open for the TCPStores of generations: one at least, or it can serve none."""

Purpose = Literal["train", "checks", "replay"]
"""What a generation of ranks is for: training, stop-time checks of its nodes, or training again to find a fault."""

RANKS_MAX = 1_000_000
"""A job has at most this many ranks; what is asked beyond that is a mistake, and must not cost the memory."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a user asked to run, as torchrun would be told.

    `start` is how a rank comes to life: forked from the node's zygote, or executed afresh for scripts
    that need environment variables to take effect at import. `token` is what the job's nodes show each other before
    they hand out its checkpoints; without one there are no copies on other nodes. `persist_every` says how often a step
    goes to the disk, see `holdfast.persistence`; "": as often as the cluster says. `only_nodes` are the nodes that it
    is to run on, where not just any will do, beside as many others as there are `witnesses`. `tags` names what the
    training logs of the script call a quantity (`holdfast.training_quantities`); `training_logs` are patterns of
    further logs.

    `code_root` is the source tree of which versions are held: `script` lies in it (of a module `cwd` does), and ranks
    run it from the version that their order names; "": they run it where it lies. `code_outside` are paths in the tree
    that are no part of its code, and are reached where they lie.
    """

    name: Name
    script: str
    args: tuple[str, ...] = ()
    is_module: bool = False
    nnodes: Count = 1
    nproc_per_node: Count = 1
    mesh: str | None = None
    env: dict[str, str] = {}
    cwd: str
    directory: str
    start: str = "fork"
    token: str = ""
    persist_every: str = ""
    only_nodes: tuple[Name, ...] = ()
    witnesses: Count = 0
    code_root: str = ""
    code_outside: tuple[str, ...] = ()
    tags: dict[str, str] = {}
    training_logs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.nnodes < 1 or self.nproc_per_node < 1:
            raise ValueError("a job needs at least one node and one rank per node")
        if self.nnodes * self.nproc_per_node > RANKS_MAX:
            raise ValueError(f"a job of {self.nnodes} x {self.nproc_per_node} ranks is over the limit of {RANKS_MAX:,}")
        if self.start not in ("fork", "exec"):
            raise ValueError(f"start {self.start!r} is unknown: use fork or exec")
        wanted = self.nnodes - self.witnesses
        if self.only_nodes and not len(set(self.only_nodes)) == len(self.only_nodes) == wanted:
            raise ValueError(f"{self.nnodes} nodes are asked for, and {len(self.only_nodes)} are named")
        if self.persist_every:
            PersistEvery.parse(self.persist_every)
        named_tags(self.tags)
        self.topology()

    def topology(self) -> Topology:
        """How the job's ranks lie over its nodes.

        Raises:
            MeshError: the mesh does not fit the number of ranks.
        """
        mesh = Mesh.parse(self.mesh) if self.mesh else None
        return Topology.of(self.nnodes, self.nproc_per_node, mesh)


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node says of itself. `store_ports` are held open for the TCPStores of generations.

    On `vault_port` its vault answers other vaults; None: it has no checkpoints in memory.
    """

    address: str
    hostname: str
    boot_id: str
    store_ports: StorePorts
    cpus: Count
    memory_bytes: Count
    version: str
    vault_port: Port | None = None


class CheckResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One check of a node: `status` is ok, failed or unreadable (no reading is not good health)."""

    name: str
    status: str
    detail: str = ""


class Suspect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node that speaks against itself in tests, and how."""

    node: Name
    symptom: str
    reason: str


class RankReplay(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rank computed in a replay, from step `first` to `last`; `digest` is of all that.

    `digests[i]` is of all up to the end of step `first + i * every`. `bad_step` is the first step with a number that is
    not finite; None: there was none. A rank that made no step has -1 for both.
    """

    first: Step
    last: Step
    digest: str
    digests: tuple[str, ...] = ()
    every: Count = 1
    bad_step: Step | None = None


class RankException(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The Python exception that ended a rank."""

    type: str
    message: str
    traceback: str


class RankProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A rank and its process."""

    rank: Count
    pid: Count


class RankProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a rank stands by its ledger: `step` is the last completed one, -1 before any.

    `since_change_s` is how long it has noted nothing, no step, phase or collective; `since_step_s` how long no step,
    both by the clock of its node. `collectives` counts those that it has entered, `in_collective` its threads that are
    inside one now, the newest of which is `collective`. `has_ended`: its script has ended by itself.
    """

    rank: Count
    step: Step
    phase: str
    phase_since: Moment | None = None
    steps_done: Count = 0
    since_change_s: float = 0.0
    since_step_s: float = 0.0
    collectives: Count = 0
    in_collective: Count = 0
    collective: str = ""
    has_ended: bool = False


class StandingPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Processes of one kind that stand at the same place. `stack` is innermost first, shortened; `ranks` the first of
    those that they belong to. `is_usual`: so many stand there that it is where one waits."""

    kind: str
    count: Count
    stack: tuple[str, ...] = ()
    waits_for: str = ""
    ranks: tuple[Count, ...] = ()
    is_usual: bool = False


class HangSuspect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ranks that hold a job up; several: one of them, and nothing says which. `evidence` can be checked by hand."""

    ranks: tuple[Count, ...]
    nodes: tuple[Name, ...] = ()
    reason: str
    confidence: float
    evidence: tuple[str, ...] = ()


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node handed to a job. `epoch` grows with every hand-over of this node and fences older orders."""

    node: Name
    epoch: Count
    address: str
    store_ports: StorePorts
    vault_port: Port | None = None


class StepSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One completed step of one rank.

    `not_finite` has what JSON cannot carry: of `loss` and `grad_norm` those that are nan, inf or -inf.
    """

    rank: Count
    step: Step
    ended_at: Moment
    duration_s: float
    loss: float | None = None
    grad_norm: float | None = None
    tokens: Count | None = None
    not_finite: dict[str, str] = {}


class IterationSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """One iteration of a rank, as its collectives tell it, whatever its script says of steps.

    `iteration` counts them on this rank and in this generation. `pattern` numbers what repeats: training and evaluation
    repeat different things. `in_calls_s` is what the rank waited in collectives; None: not known.
    """

    rank: Count
    iteration: Count
    duration_s: float
    pattern: Count = 0
    in_calls_s: float | None = None


class ProfiledCalls(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """Collectives of one kind that a rank took part in lately.

    `runs` are the group's ranks, as runs of (first, count, stride). `sequences` are those of the group, the same on all
    its ranks; `seconds` what the rank waited in each; `before` and `before_s` the same of those before the iterations
    that were asked for. `count` and `total_s`: of all in these iterations.
    """

    group: str
    description: str
    runs: tuple[tuple[Count, Count, int], ...]
    operation: str
    bytes: Count
    sequences: tuple[Count, ...]
    seconds: tuple[float, ...]
    before: tuple[Count, ...] = ()
    before_s: tuple[float, ...] = ()
    count: Count = 0
    total_s: float = 0.0


class RankProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rank did in its last iterations, oldest first: seconds each took, and those in collectives.

    `healthy_s` and `healthy_work_s`: an iteration before these, and what of it was outside of collectives; 0: not
    known. `calls` are the kinds of collectives that it waited in longest. `unread`: why there is nothing.
    """

    rank: Count
    step: Step = -1
    iterations_s: tuple[float, ...] = ()
    in_calls_s: tuple[float, ...] = ()
    healthy_s: float = 0.0
    healthy_work_s: float = 0.0
    calls: tuple[ProfiledCalls, ...] = ()
    unread: str = ""


class RankTelemetry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the processes of one rank used lately: its own and those that it started. None: this may not be read.

    `sent_bytes_per_s` is of its whole node.
    """

    rank: Count
    cpu_cores: float | None = None
    memory_bytes: Count | None = None
    io_bytes_per_s: float | None = None
    sent_bytes_per_s: float | None = None
    collectives_per_s: float | None = None


SlowCause = Literal["computation", "communication", "stage_imbalance", "sequence_imbalance", "unknown"]


class RankPace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """A rank's last iterations by their medians: seconds, and what of them was in and outside of collectives."""

    rank: Count
    node: Name
    iteration_s: float
    work_s: float
    in_calls_s: float


class GroupPace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """A collective of a group: what it takes once all its ranks are there, and how long the last one lets wait."""

    group: str
    kind: str
    operation: str
    bytes: Count
    ranks: Count
    transfer_s: float
    waiting_s: float


class FlaggedGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group of ranks that stood elsewhere than most in `times` rounds of stacks: `machine`, or a mesh dimension."""

    kind: str
    ranks: tuple[Count, ...]
    nodes: tuple[Name, ...] = ()
    times: Count = 1


class StackRound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A round of stacks of a job that goes on: how many of its ranks could be read, and the `outliers`, which stood
    elsewhere than most; the first of very many. `unanswered` nodes gave no stacks in time."""

    at: Moment
    read: Count
    outliers: tuple[Count, ...] = ()
    flagged: FlaggedGroup | None = None
    unanswered: tuple[Name, ...] = ()


class LoggedSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rank wrote into a training log at one moment.

    `step` is the one that the rank had completed then, by its ledger; `logged_step` is the log's own number, by
    whatever it counts. `mfu` is a share of 1. `not_finite` has what JSON cannot carry, as in `StepSample`.
    """

    rank: Count
    step: Step
    logged_step: Annotated[int, msgspec.Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)]
    logged_at: Moment
    loss: float | None = None
    grad_norm: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    learning_rate: float | None = None
    not_finite: dict[str, str] = {}
