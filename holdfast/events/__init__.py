"""All events that Holdfast's processes exchange.

An event is a fact that does not change. It is complete by itself and travels as plain JSON, so that
any NATS client in any language can read it. Rules: only add fields; a change of meaning is a new type.
`docs/asyncapi.yaml` is generated from this package.

Units stand last in a name (`_s` seconds, `_bytes`); times are UTC and travel as RFC 3339.
"""

from __future__ import annotations

from functools import cache
from typing import get_args

import msgspec

from holdfast.decoding import read
from holdfast.events.actions import (
    AnyAction,
    CheckpointSaved,
    CodeInPlace,
    ContextAhead,
    CredentialsChanged,
    NodesAwaited,
    NodesGranted,
    NodeStateChanged,
    RanksFinished,
    RanksStarted,
    RanksStopped,
    ShardsBackedUp,
    ShardsFetched,
    TelemetryModelTrained,
)
from holdfast.events.base import Action, Decision, Event, EventClass, Evidence, Finding, Metric
from holdfast.events.checkpoint_evidence import (
    CheckpointRestored,
    CopiesRefused,
    KeepingInterrupted,
    ShardDamaged,
    StepNotPersisted,
    StepsKept,
)
from holdfast.events.decisions import (
    AnyDecision,
    BackupsPlanned,
    BreakerOpened,
    BreakerReset,
    ChecksEnded,
    ChecksStarted,
    CodeJudged,
    Eviction,
    EvictionRevoked,
    GenerationStarted,
    HotUpdate,
    IncidentClosed,
    IncidentDiagnosed,
    IncidentOpened,
    JobFinished,
    JobStopping,
    JobSubmitted,
    NodeReleaseRequested,
    NodesReleased,
    NodesRequested,
    Reattempt,
    ReplayEnded,
    ReplayStarted,
    Rollback,
    SharedFaultFound,
    SharedFaultOver,
    StepsLost,
    Suspension,
    UpdatePlanned,
    UpdateWithdrawn,
    Withheld,
)
from holdfast.events.evidence import (
    AnyEvidence,
    BusWentBack,
    CodeNotInPlace,
    CollectiveTrace,
    DiagnosticResult,
    FaultInjected,
    FirstStep,
    Inspection,
    LogSignature,
    MessageRejected,
    NodeDeparted,
    NodeInspected,
    NodeRefused,
    NodeRegistered,
    OrderRefused,
    ProcessExited,
    Progress,
    ReplayResult,
    SpoolSetAside,
    StackDump,
    StepsNumbered,
)
from holdfast.events.findings import (
    AnyFinding,
    BadNumber,
    DeadlinePassed,
    FailSlowLocated,
    FailSlowOnset,
    FailSlowRelieved,
    HangFound,
    HangSuspected,
    JobTraced,
    MfuDeclined,
    NodeLost,
    StepRestorable,
    StepsCertified,
    StepTimeMeasured,
    SuspectsTested,
    TelemetryAnomaly,
    ThroughputMeasured,
)
from holdfast.events.metrics import AnyMetric, CopiesMeasured, NumbersLogged, StepsMeasured, TelemetryMeasured
from holdfast.events.slow_evidence import CollectivesProfiled, SlownessTested

__all__ = [
    "BODY_BYTES_MAX",
    "EVENT_TYPES",
    "LOG_TAIL_CHARS_MAX",
    "Action",
    "AnyEvent",
    "BackupsPlanned",
    "BadNumber",
    "BreakerOpened",
    "BreakerReset",
    "BusWentBack",
    "CheckpointRestored",
    "CheckpointSaved",
    "ChecksEnded",
    "ChecksStarted",
    "CodeInPlace",
    "CodeJudged",
    "CodeNotInPlace",
    "CollectiveTrace",
    "CollectivesProfiled",
    "ContextAhead",
    "CopiesMeasured",
    "CopiesRefused",
    "CredentialsChanged",
    "DeadlinePassed",
    "Decision",
    "DiagnosticResult",
    "Event",
    "EventClass",
    "Eviction",
    "EvictionRevoked",
    "Evidence",
    "FailSlowLocated",
    "FailSlowOnset",
    "FailSlowRelieved",
    "FaultInjected",
    "Finding",
    "FirstStep",
    "GenerationStarted",
    "HangFound",
    "HangSuspected",
    "HotUpdate",
    "IncidentClosed",
    "IncidentDiagnosed",
    "IncidentOpened",
    "Inspection",
    "JobFinished",
    "JobStopping",
    "JobSubmitted",
    "JobTraced",
    "KeepingInterrupted",
    "LogSignature",
    "MessageRejected",
    "Metric",
    "MfuDeclined",
    "NodeDeparted",
    "NodeInspected",
    "NodeLost",
    "NodeRefused",
    "NodeRegistered",
    "NodeReleaseRequested",
    "NodeStateChanged",
    "NodesAwaited",
    "NodesGranted",
    "NodesReleased",
    "NodesRequested",
    "NumbersLogged",
    "OrderRefused",
    "ProcessExited",
    "Progress",
    "RanksFinished",
    "RanksStarted",
    "RanksStopped",
    "Reattempt",
    "ReplayEnded",
    "ReplayResult",
    "ReplayStarted",
    "Rollback",
    "ShardDamaged",
    "ShardsBackedUp",
    "ShardsFetched",
    "SharedFaultFound",
    "SharedFaultOver",
    "SlownessTested",
    "SpoolSetAside",
    "StackDump",
    "StepNotPersisted",
    "StepRestorable",
    "StepTimeMeasured",
    "StepsCertified",
    "StepsKept",
    "StepsLost",
    "StepsMeasured",
    "StepsNumbered",
    "SuspectsTested",
    "Suspension",
    "TelemetryAnomaly",
    "TelemetryMeasured",
    "TelemetryModelTrained",
    "ThroughputMeasured",
    "UnreadableEvent",
    "UpdatePlanned",
    "UpdateWithdrawn",
    "Withheld",
    "decode",
    "encode",
]

BODY_BYTES_MAX = 1_000_000
"""An event's body is at most this long; what is larger goes to the object store with a reference."""

LOG_TAIL_CHARS_MAX = 16_384
"""Limit of a rank's log in an event."""

AnyEvent = AnyEvidence | AnyFinding | AnyDecision | AnyAction | AnyMetric

EVENT_TYPES: dict[str, type[Event]] = {str(cls.__struct_config__.tag): cls for cls in get_args(AnyEvent)}

_encoder = msgspec.json.Encoder()


@cache
def _decoder() -> msgspec.json.Decoder[AnyEvent]:
    # Takes tens of milliseconds to build; ranks import parts of events and decode none.
    return msgspec.json.Decoder(AnyEvent)


class UnreadableEvent(ValueError):
    """A body that is not an event of this vocabulary; the message names the place of the error."""


def encode(event: Event) -> bytes:
    """Return the event as JSON."""
    return _encoder.encode(event)


def decode(body: bytes) -> AnyEvent:
    """Return the event in `body`.

    Raises:
        UnreadableEvent: too long, not JSON, of an unknown type, or with a wrong field.
    """
    if len(body) > BODY_BYTES_MAX:
        raise UnreadableEvent(f"body of {len(body)} bytes is over the limit of {BODY_BYTES_MAX}")
    return read(_decoder(), body, UnreadableEvent)
