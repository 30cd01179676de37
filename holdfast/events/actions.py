"""What was done."""

from __future__ import annotations

from holdfast.events.base import Action
from holdfast.events.parts.job import Grant, Purpose
from holdfast.events.parts.ranks import RankProcess
from holdfast.events.parts.scalars import Count, Id, Moment, Name, Step


class RanksStopped(Action, frozen=True, kw_only=True, omit_defaults=True):
    """An agent obeyed an order that ends its ranks: none of `generation` is left, nor any of their children.

    Said for each order that replaces a generation or asks for no ranks, even if `ranks` (those that were still
    alive) is empty. `ordered_generation` is the generation of the order that was obeyed.
    """

    ranks: tuple[Count, ...]
    killed: Count
    took_s: float
    ordered_generation: Count = 0


class RanksStarted(Action, frozen=True, kw_only=True, omit_defaults=True):
    """An agent started its ranks of a generation."""

    ranks: tuple[RankProcess, ...]
    took_s: float
    adopted: bool = False
    purpose: Purpose = "train"


class RanksFinished(Action, frozen=True, kw_only=True, omit_defaults=True):
    """All ranks of a node ended with exit code 0."""

    ranks: tuple[Count, ...]
    purpose: Purpose = "train"


class NodesGranted(Action, frozen=True, kw_only=True, omit_defaults=True):
    """The standby service answers a claim; `claim` is the id of the NodesRequested."""

    claim: Id
    grants: tuple[Grant, ...]


class NodesAwaited(Action, frozen=True, kw_only=True, omit_defaults=True):
    """A claim cannot be met yet: `available` of `wanted` nodes; it is met when enough register.

    `behind` is the job whose earlier claim must be met first. `missing` says of a claim that names its nodes what is
    the matter with those that cannot be had, the `missing_nodes`.
    """

    claim: Id
    wanted: Count
    available: Count
    behind: Name | None = None
    missing: str = ""
    missing_nodes: tuple[Name, ...] = ()


class NodeStateChanged(Action, frozen=True, kw_only=True, omit_defaults=True):
    """A node moved in the inventory."""

    old_state: str
    new_state: str
    reason: str


class CodeInPlace(Action, frozen=True, kw_only=True, omit_defaults=True):
    """A node has a version of the job's code on its disk, whole; `fetched_bytes` of it came over the bus."""

    version: str
    files: Count
    fetched_bytes: Count
    took_s: float


class CheckpointSaved(Action, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint of all ranks was published whole. `steps` are those that are there now; none: nobody says."""

    step: Step
    path: str
    checkpoint_bytes: Count
    took_s: float
    steps: tuple[Step, ...] = ()


class ShardsBackedUp(Action, frozen=True, kw_only=True, omit_defaults=True):
    """All ranks of a node have this step sealed in the memory of another node, `keeper`, as well.

    Said of the first such step of a generation, and of the first at another keeper: from then on the node may be lost.
    How copies go on is in `copies_measured`. `backup_bytes` of it were sent, and `replicated_bytes` by data-parallel
    replicas of its ranks.
    """

    step: Step
    ranks: tuple[Count, ...]
    keeper: Name
    backup_bytes: Count
    took_s: float
    replicated_bytes: Count = 0


class ShardsFetched(Action, frozen=True, kw_only=True, omit_defaults=True):
    """A node got shards of its ranks from the memory of another node, `keeper`."""

    step: Step
    ranks: tuple[Count, ...]
    keeper: Name
    fetched_bytes: Count
    took_s: float


class TelemetryModelTrained(Action, frozen=True, kw_only=True, omit_defaults=True):
    """The historian has learned from recorded telemetry up to `learned_until`; `reason` says what came of it.

    `is_used`: the analyzer has taken the model of this `version`. One that failed its test is not used, and without
    enough to learn from there is none (`version` ""). Scores are those on the part that it had not seen.
    """

    reason: str
    learned_until: Moment | None = None
    version: str = ""
    windows: Count = 0
    accuracy: float | None = None
    precision: float | None = None
    recall: float | None = None
    is_used: bool = False
    took_s: float = 0.0


AnyAction = (
    RanksStopped
    | RanksStarted
    | RanksFinished
    | NodesGranted
    | NodesAwaited
    | NodeStateChanged
    | CodeInPlace
    | CheckpointSaved
    | ShardsBackedUp
    | ShardsFetched
    | TelemetryModelTrained
)
