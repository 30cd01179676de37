"""Actions that were carried out."""

from __future__ import annotations

from typing import Literal

from holdfast.events.base import Action
from holdfast.events.parts.job import Grant, Purpose
from holdfast.events.parts.ranks import RankProcess
from holdfast.events.parts.scalars import Count, Id, Moment, Name, Step


class RanksStopped(Action, frozen=True, kw_only=True, omit_defaults=True):
    """An agent obeyed an order that ends its ranks: no process of `generation` is left.

    Published for each order that replaces a generation or asks for no ranks.
    """

    ranks: tuple[Count, ...]
    """Ranks that were still alive; may be empty."""
    killed: Count
    """Processes that did not exit within the grace period."""
    took_s: float
    ordered_generation: Count = 0
    """Generation of the order that was obeyed."""


class RanksStarted(Action, frozen=True, kw_only=True, omit_defaults=True):
    """An agent started its ranks of a generation."""

    ranks: tuple[RankProcess, ...]
    took_s: float
    adopted: bool = False
    """The agent was restarted and found the ranks running."""
    purpose: Purpose = "train"
    user: str = ""
    """User of the ranks; "": the agent's."""
    root_because: str = ""
    """Reason why they run as root, though the job should have its own user."""
    with_context: Count = 0
    """Ranks whose context on their device had been made ahead."""


class ContextAhead(Action, frozen=True, kw_only=True, omit_defaults=True):
    """A process with the context of a rank waits for its next generation, or does not any more; by its agent."""

    rank: Count
    device: str
    is_ready: bool
    reason: str = ""
    """Reason why there is none."""
    took_s: float = 0.0
    free_before_bytes: Count = 0
    """Free memory of the device before it was made."""
    free_bytes: Count = 0
    """Free memory of the device while it is there."""
    host_bytes: Count = 0
    """Memory of the host that it takes."""


class RanksFinished(Action, frozen=True, kw_only=True, omit_defaults=True):
    """All ranks of a node exited with code 0; published by its agent."""

    ranks: tuple[Count, ...]
    purpose: Purpose = "train"


class NodesGranted(Action, frozen=True, kw_only=True, omit_defaults=True):
    """The standby service hands nodes to a job."""

    claim: Id
    """Id of the `nodes_requested` that is met."""
    grants: tuple[Grant, ...]


class NodesAwaited(Action, frozen=True, kw_only=True, omit_defaults=True):
    """The standby service cannot meet a claim yet; it will when enough nodes register."""

    claim: Id
    wanted: Count
    available: Count
    at_least: Count | None = None
    """Number of nodes that suffices once they have been free for `last_call_s`; None: all wanted nodes are needed."""
    last_call_s: float = 0.0
    behind: Name | None = None
    """Job whose earlier claim must be met first."""
    missing: str = ""
    """Reason why the `missing_nodes` of a claim that names its nodes are not available."""
    missing_nodes: tuple[Name, ...] = ()
    trains_on: bool = False
    """The job trains without them."""


class NodeStateChanged(Action, frozen=True, kw_only=True, omit_defaults=True):
    """A node changed its state in the inventory; published by the standby service."""

    old_state: str
    new_state: str
    reason: str


class CodeInPlace(Action, frozen=True, kw_only=True, omit_defaults=True):
    """A node has a complete version of the job's code on its disk; published by its agent."""

    version: str
    files: Count
    fetched_bytes: Count
    """Bytes that came over the bus; the others were on the node before."""
    took_s: float


class CheckpointSaved(Action, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint with the shards of all ranks was published on disk."""

    step: Step
    path: str
    checkpoint_bytes: Count
    took_s: float
    steps: tuple[Step, ...] = ()
    """Steps on disk now; empty: not known."""


class ShardsBackedUp(Action, frozen=True, kw_only=True, omit_defaults=True):
    """All ranks of a node have this step sealed in the memory of another node as well.

    Published by the agent for the first such step of a generation and of a keeper: from then on the node may be lost.
    `copies_measured` reports how copies go on.
    """

    step: Step
    ranks: tuple[Count, ...]
    keeper: Name
    """The other node."""
    backup_bytes: Count
    """Bytes that this node sent."""
    took_s: float
    replicated_bytes: Count = 0
    """Bytes that data-parallel replicas of its ranks sent."""


class ShardsFetched(Action, frozen=True, kw_only=True, omit_defaults=True):
    """A node fetched shards of its ranks from the memory of another node, `keeper`; published by its agent."""

    step: Step
    ranks: tuple[Count, ...]
    keeper: Name
    fetched_bytes: Count
    took_s: float


class TelemetryModelTrained(Action, frozen=True, kw_only=True, omit_defaults=True):
    """The historian has trained a model on recorded telemetry up to `learned_until`.

    Scores are those on the part of the data that the model has not seen.
    """

    reason: str
    """Outcome in words."""
    learned_until: Moment | None = None
    version: str = ""
    """"" if there was not enough data for a model."""
    windows: Count = 0
    accuracy: float | None = None
    precision: float | None = None
    recall: float | None = None
    is_used: bool = False
    """The analyzer uses this model; one that failed its test is not used."""
    took_s: float = 0.0


class CredentialsChanged(Action, frozen=True, kw_only=True, omit_defaults=True):
    """Secrets of users were replaced, or a node was revoked or restored; published by the supervisor of `holdfast up`.

    It holds no secret. With a revocation or restoration the node gets a new password.
    """

    change: Literal["renewed", "revoked", "restored"]
    users: tuple[Name, ...]
    """The users whose secrets were replaced: services, nodes, `operator`, `reader` or `admin`."""
    kind: Literal["password", "order_key"] = "password"
    by: str = ""
    """The user who gave the command."""


AnyAction = (
    RanksStopped
    | RanksStarted
    | ContextAhead
    | RanksFinished
    | NodesGranted
    | NodesAwaited
    | NodeStateChanged
    | CodeInPlace
    | CheckpointSaved
    | ShardsBackedUp
    | ShardsFetched
    | TelemetryModelTrained
    | CredentialsChanged
)
