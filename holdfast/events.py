"""Every event that Holdfast's processes exchange: the whole vocabulary, in one place.

An event is a fact that does not change. It is complete by itself and travels as plain JSON, so that
any NATS client in any language can read it. Rules: only add fields; a change of meaning is a new type.
`docs/asyncapi.yaml` is generated from this file.

Units stand last in a name (`_s` seconds, `_bytes`); times are UTC and travel as RFC 3339.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import ClassVar, get_args

import msgspec

from holdfast.event_parts import (
    CheckResult,
    Code,
    Count,
    Grant,
    Id,
    JobSpec,
    Moment,
    Name,
    NodeFacts,
    RankException,
    RankProcess,
    RankProgress,
    Step,
    StepSample,
)

BODY_BYTES_MAX = 1_000_000
"""An event's body is at most this long; what is larger goes to the object store with a reference."""


LOG_TAIL_CHARS_MAX = 16_384
"""How much of a rank's log an event carries."""


class EventClass(StrEnum):
    """What kind of statement an event makes: the third token of its subject."""

    EVIDENCE = "evidence"  # a fact that an agent saw
    FINDING = "finding"  # a conclusion drawn from facts
    DECISION = "decision"  # what shall be done, and why
    ACTION = "action"  # what was done
    METRIC = "metric"  # samples


def _type_name(class_name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=_type_name, omit_defaults=True):
    """What all events share.

    `id` is a UUIDv7. `cause` is the id of the event that led to this one; `incident` the incident it
    belongs to. `source` is the process that says it: a service's name, or `agent/<node>`.
    """

    id: Id
    at: Moment
    source: str
    job: Name | None = None
    generation: Count | None = None
    node: Name | None = None
    cause: Id | None = None
    incident: Id | None = None

    event_class: ClassVar[EventClass]

    @property
    def type(self) -> str:
        """The event's type, as it stands in its subject and body."""
        return str(self.__struct_config__.tag)


class Evidence(Event, frozen=True, kw_only=True, tag=_type_name, omit_defaults=True):
    """A fact from an agent."""

    event_class: ClassVar[EventClass] = EventClass.EVIDENCE


class Finding(Event, frozen=True, kw_only=True, tag=_type_name, omit_defaults=True):
    """A conclusion drawn from evidence; it changes nothing by itself."""

    event_class: ClassVar[EventClass] = EventClass.FINDING


class Decision(Event, frozen=True, kw_only=True, tag=_type_name, omit_defaults=True):
    """What shall be done, with the reason in words that an engineer can check."""

    reason: str

    event_class: ClassVar[EventClass] = EventClass.DECISION


class Action(Event, frozen=True, kw_only=True, tag=_type_name, omit_defaults=True):
    """What was done."""

    event_class: ClassVar[EventClass] = EventClass.ACTION


class Metric(Event, frozen=True, kw_only=True, tag=_type_name, omit_defaults=True):
    """Samples; kept briefly on the bus and for good by the historian."""

    event_class: ClassVar[EventClass] = EventClass.METRIC


# --- evidence ----------------------------------------------------------------------------------


class NodeRegistered(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """An agent has started and offers its node. `instance` is a UUIDv7 new with every start: later ones sort later.

    `epoch` is that of the newest order it remembers: the next hand-over must be above it.
    """

    instance: Id
    facts: NodeFacts
    epoch: Count = 0


class NodeInspected(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A node's self-check is done: whether it can take ranks, and what was looked at.

    It carries the node's facts as well, so that it says enough if it overtakes the registration.
    """

    instance: Id
    checks: tuple[CheckResult, ...]
    facts: NodeFacts | None = None

    @property
    def passed(self) -> bool:
        """No check failed."""
        return all(check.status != "failed" for check in self.checks)


class NodeDeparted(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """An agent is shut down on purpose; its ranks are stopped."""

    instance: Id


class ProcessExited(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A rank ended with an error, or is gone although it should run (`exit_code` and `signal` unknown).

    `step` is the last step it completed (-1: none ever); `steps_done` how many in this generation.
    """

    rank: Count
    local_rank: Count
    pid: Count | None = None
    exit_code: Code | None = None
    signal: Code | None = None
    exited_at: Moment
    step: Step = -1
    steps_done: Count = 0
    exception: RankException | None = None
    log_tail: str = ""
    detail: str = ""


class FirstStep(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """All ranks of a node have completed their first step of this generation."""

    step: Step
    completed_at: Moment


class Progress(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """Where the ranks of a node stand, sent about once a second while they run."""

    ranks: tuple[RankProgress, ...]

    @property
    def step(self) -> int:
        """The step that all ranks of the node have completed."""
        return min((rank.step for rank in self.ranks), default=-1)


class OrderRefused(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """An agent read an order older than the newest it obeyed. If it is the true one, the newest was never given."""

    epoch: Count
    newest_epoch: Count
    newest_generation: Count


class MessageRejected(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A message could not be understood or handled; it lies whole in the dead-letter stream."""

    subject: str
    consumer: str
    error: str
    body_bytes: Count
    deliveries: Count


# --- findings ----------------------------------------------------------------------------------


class NodeLost(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Nothing was heard of a node for too long, while others were heard on the same bus.

    `epoch` is the node's at its loss: a later hand-over of the node is not meant.
    """

    last_heard_at: Moment
    silent_s: float
    epoch: Count = 0


class StepTimeMeasured(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """What a step of this job takes now; limits adapt to it."""

    median_s: float
    p99_s: float
    samples: Count


class DeadlinePassed(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Something that had to happen did not happen in time."""

    awaited: str
    waited_s: float
    missing_nodes: tuple[Name, ...] = ()


class StepRestorable(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Every shard of a checkpoint of this step is in place."""

    step: Step
    path: str
    checkpoint_bytes: Count


# --- decisions ---------------------------------------------------------------------------------


class JobSubmitted(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A job was accepted."""

    spec: JobSpec


class NodesRequested(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A job claims nodes; its id is the claim's id."""

    count: Count


class NodesReleased(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A job gives nodes back; at its end it also withdraws what it still claims.

    `epochs` are those at which it held the nodes: a later hand-over of a node is not meant.
    """

    nodes: tuple[Name, ...]
    withdraws_claim: bool = False
    epochs: tuple[Count, ...] = ()


class GenerationStarted(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A generation of ranks is to run on these nodes, in the order of their node ranks."""

    nodes: tuple[Name, ...]
    world_size: Count
    restore_step: Step | None = None


class IncidentOpened(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """Something went wrong in a job; all that follows carries this incident's id."""

    symptom: str
    failed_step: Step
    rank: Count | None = None


class Reattempt(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The rung "restart in place": same nodes, next generation."""

    attempt: Count


class Eviction(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The rung "evict": the node, as held at `epoch`, leaves the job and goes on the blocklist."""

    blocked_for_s: float
    epoch: Count = 0


class Suspension(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A job's remaining ranks are stopped while it waits for nodes."""


class IncidentClosed(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """An incident is over: `outcome` is recovered, or the job's own end.

    `symptom` and `summary` are what it turned out to be: later evidence may have told more than the first sign.
    """

    outcome: str
    attempts: Count
    symptom: str = ""
    summary: str = ""


class JobFinished(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A job is over: completed, failed or stopped."""

    outcome: str
    exit_code: Code
    traceback: str = ""


class JobStopping(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """The rung "stop": all ranks of a job are ended for good, because a person or the ladder says so."""


class NodeReleaseRequested(Decision, frozen=True, kw_only=True, omit_defaults=True):
    """A person takes a node off the blocklist."""


# --- actions -----------------------------------------------------------------------------------


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


class RanksFinished(Action, frozen=True, kw_only=True, omit_defaults=True):
    """All ranks of a node ended with exit code 0."""

    ranks: tuple[Count, ...]


class NodesGranted(Action, frozen=True, kw_only=True, omit_defaults=True):
    """The standby service answers a claim; `claim` is the id of the NodesRequested."""

    claim: Id
    grants: tuple[Grant, ...]


class NodesAwaited(Action, frozen=True, kw_only=True, omit_defaults=True):
    """A claim cannot be met yet: `available` of `wanted` nodes; it is met when enough register.

    `behind` is the job whose earlier claim must be met first.
    """

    claim: Id
    wanted: Count
    available: Count
    behind: Name | None = None


class NodeStateChanged(Action, frozen=True, kw_only=True, omit_defaults=True):
    """A node moved in the inventory."""

    old_state: str
    new_state: str
    reason: str


class CheckpointSaved(Action, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint of all ranks was published whole."""

    step: Step
    path: str
    checkpoint_bytes: Count
    took_s: float


# --- metrics -----------------------------------------------------------------------------------


class StepsMeasured(Metric, frozen=True, kw_only=True, omit_defaults=True):
    """The steps that the ranks of a node completed since the last such event."""

    samples: tuple[StepSample, ...]
    missed: Count = 0


AnyEvent = (
    NodeRegistered
    | NodeInspected
    | NodeDeparted
    | ProcessExited
    | FirstStep
    | Progress
    | OrderRefused
    | MessageRejected
    | NodeLost
    | StepTimeMeasured
    | DeadlinePassed
    | StepRestorable
    | JobSubmitted
    | NodesRequested
    | NodesReleased
    | GenerationStarted
    | IncidentOpened
    | Reattempt
    | Eviction
    | Suspension
    | IncidentClosed
    | JobFinished
    | JobStopping
    | NodeReleaseRequested
    | RanksStopped
    | RanksStarted
    | RanksFinished
    | NodesGranted
    | NodesAwaited
    | NodeStateChanged
    | CheckpointSaved
    | StepsMeasured
)

EVENT_TYPES: dict[str, type[Event]] = {str(cls.__struct_config__.tag): cls for cls in get_args(AnyEvent)}

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


class UnreadableEvent(ValueError):
    """A body that is no event of this vocabulary; the message says where it breaks."""


def encode(event: Event) -> bytes:
    """The event as JSON."""
    return _encoder.encode(event)


def decode(body: bytes) -> AnyEvent:
    """The event in `body`.

    Raises:
        UnreadableEvent: too long, not JSON, of an unknown type, or with a wrong field.
    """
    if len(body) > BODY_BYTES_MAX:
        raise UnreadableEvent(f"body of {len(body)} bytes is over the limit of {BODY_BYTES_MAX}")
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise UnreadableEvent(str(error)) from error
