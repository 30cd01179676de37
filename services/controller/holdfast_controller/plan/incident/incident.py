"""An incident: a failure of a job, the evidence for it, and the rungs that were taken."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from holdfast.events.parts.ranks import RankException
from holdfast.symptoms import Root, Symptom


class RankError(msgspec.Struct, frozen=True, kw_only=True):
    """The way in which a rank ended, to recognize the same error when it recurs and to show it to people."""

    generation: int
    signature: str
    step: int
    on_first_step: bool
    traceback: str
    exit_code: int
    node: str = ""

    @property
    def trait(self) -> str:
        """The part that is equal whenever the same failure recurs, on any node."""
        return f"{self.signature} at step {self.step}"

    @property
    def is_kill(self) -> bool:
        """Return True if the rank was killed: people and the kernel do that, a broken device does not."""
        return self.signature == "signal 9"


class Proof(StrEnum):
    """Strength of all evidence together against the machine on which a failure happened."""

    NOTHING = ""
    CLAIMED = "claimed"
    """Only what a rank printed names the machine, and a script can print anything."""
    PROVEN = "proven"
    """Something else names the machine as well: its kernel or its devices, which no script can forge, or all other
    nodes."""


class RankExit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one rank of the newest generation that failed, kept to be judged together with others."""

    generation: int
    node: str
    rank: int
    at: datetime
    code: int | None
    """Negative for a signal; None if it is not known."""
    exception: RankException | None
    log_tail: str
    rule: str
    """The rule that this end matches by itself; "" for none."""
    is_telling: bool
    """True if the rank did not end because of another rank, as far as this end alone shows."""
    accuses: bool
    """True if it names its machine with enough confidence."""
    has_stepped: bool
    event: str


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """The conclusion from all evidence of a failure: one symptom, whose fault it is, and what shows that."""

    symptom: Symptom
    root: Root
    generation: int
    node: str | None
    rank: int | None
    proof: Proof
    confidence: float
    rule: str
    summary: str
    accused: frozenset[str] = frozenset()
    """Nodes whose ranks accuse their machine of it, in this generation and earlier ones of the incident."""
    witness: str = ""
    """Evidence that confirms it, and that no script can forge."""
    is_misfit: bool = False
    """True if nothing proves it but that ranks on other nodes do not report it."""
    advice: str
    lines: tuple[str, ...]
    """Lines of evidence, each with its source."""
    events: tuple[str, ...]
    """Ids of the events that it rests on."""

    @property
    def is_shared(self) -> bool:
        """True if ranks of several nodes accuse their machines of the same: something that they share is at fault."""
        return len(self.accused) > 1 and self.proof is not Proof.PROVEN

    @property
    def reason(self) -> str:
        return "; ".join(dict.fromkeys(filter(None, (self.summary, self.witness))))

    @property
    def conclusion(self) -> tuple[object, ...]:
        """Return the fields that make it another conclusion when one of them changes."""
        return self.symptom, self.root, self.node, self.rank, self.proof, self.is_shared


class Rung(StrEnum):
    """A response to a failure; the mildest first."""

    REATTEMPT = "reattempt"
    WAIT = "wait"
    ROLLBACK = "rollback"
    REPLACE = "replace"
    CHECKS = "stop_time_checks"
    REPLAY = "replay"
    EVICT = "evict"
    STOP = "stop"


class BadStep(msgspec.Struct, frozen=True, kw_only=True):
    """The first step of a generation with bad numbers."""

    generation: int
    step: int
    certified: int | None = None
    """The newest step that was known to be clean then; None if none was."""
    node: str | None = None
    """The node whose ranks alone had them at this step."""
    members: tuple[str, ...] = ()
    """The job's nodes then, if they are few."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure of a job, and what is known about its cause and its nodes."""

    symptom: Symptom
    generation: int
    step: int
    text: str
    named: str = ""
    """The symptom in the terms of `holdfast.symptoms`, if it is more exact than `symptom`."""
    root: Root = Root.UNKNOWN
    evidence: tuple[str, ...] = ()
    """Ids of the events that report it."""
    node: str | None = None
    rank: int | None = None
    error: RankError | None = None
    bad_step: BadStep | None = None
    cause: Cause | None = None
    """The conclusion from all evidence about `generation`; it may be about another rank than this one."""
    suspects: tuple[str, ...] = ()
    """Machines that themselves show a fault in a hang."""
    group: tuple[str, ...] = ()
    """Nodes of which one blocks the others, or slows the job down; it is not known which. The most suspect first."""
    is_convincing: bool = False
    """True if the group of a hang stands apart enough to evict it before anything else was tried."""
    is_known_hang: bool = False
    """True if an earlier hang of the job named one of these nodes too: it does not pass by itself."""
    is_irreplaceable: bool = False
    """True if the pool was asked, and has no other nodes for those that would leave."""
    lacks_witness: bool = False
    """True if it has these, and none in addition for their test."""
    of_warm_up: bool = False
    """True for nodes that the warm-up of the job found unfit: `group` has all of them."""
    link: tuple[str, str] | None = None
    """The broken connection that the warm-up names one of its ends for."""
    is_guess: bool = False
    """True if the other end may be at fault as well."""
    is_urgent: bool = False
    """True if nodes that the warm-up found unfit leave even if nothing can replace them."""
    is_early_end: bool = False
    """True if the rank lost a partner, and others of its generation had ended with exit code 0 before."""
    lacks_steps: bool = False
    """True if the rank refused to start from scratch: the nodes that it can reach do not have the steps."""
    has_no_directory: bool = False
    """True if the rank refused to write where a job of another cluster writes."""
    may_be_outage: bool = False
    """True if a loss of power that took other machines as well would look the same."""

    @property
    def symptom_name(self) -> str:
        return self.named or self.symptom

    @property
    def proof(self) -> Proof:
        """Return the strength of all evidence together against `node`."""
        return self.cause.proof if self.cause and self.node and self.cause.node == self.node else Proof.NOTHING

    @property
    def lacks_path(self) -> bool:
        """True if the only evidence against the nodes is that they lack what their job's author named."""
        return self.of_warm_up and self.named in (Symptom.FILESYSTEM_MOUNT, Symptom.READ_ONLY_FILESYSTEM)

    @property
    def is_witnessed(self) -> bool:
        """True if something that no script can forge proves that `node` is at fault."""
        return self.proof is Proof.PROVEN and self.cause is not None and not self.cause.is_misfit

    @property
    def is_shared(self) -> bool:
        return self.cause is not None and self.cause.is_shared

    @property
    def is_of_own_link(self) -> bool:
        """True if the rank lost a partner because RDMA failed between them: its node or the other end is at fault."""
        cause = self.cause
        is_rdma = cause is not None and cause.node == self.node and cause.symptom is Symptom.INFINIBAND_ERROR
        return is_rdma and self.symptom is Symptom.PEER_LOST


class RungTaken(msgspec.Struct, frozen=True, kw_only=True):
    """A rung of the ladder that was taken in an incident."""

    at: datetime
    generation: int
    rung: Rung
    reason: str
    nodes: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    next: str = ""
    """The rung that would have followed."""


ALERT_LINES_MAX = 4
STARTS_SHOWN = 3


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert or hint of an inspection, kept for a node of the job."""

    at: datetime
    check: str
    device: str
    kind: str = ""
    symptom: str
    confidence: str
    text: str
    event: str
    stands: bool = True
    """False once it was cleared."""
    is_momentary: bool = False
    """True if the alert was over when it was reported, and will not be cleared."""
    shared: str = ""
    """Thing that it is about, if nodes share it."""
    lines: tuple[str, ...] = ()
    """The text that was read, at most `ALERT_LINES_MAX` lines."""
    is_answered: bool = False
    """True for a hint whose node has passed stop-time checks since."""

    @property
    def key(self) -> str:
        """Return the key by which nodes are compared: the check, and the shared thing or the kind of device."""
        return f"{self.check} {self.shared or self.symptom}"


class Recurrence(msgspec.Struct, frozen=True, kw_only=True):
    """One failure that was seen on several nodes or in several generations."""

    by: dict[int, frozenset[str]]
    """Nodes that showed it, by generation."""
    each_time: frozenset[str]
    """Nodes that were part of the job each time."""


class Evicted(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was evicted for failures of one trait, and the epoch at which it was held."""

    epoch: int
    trait: str


class FailedLink(msgspec.Struct, frozen=True, kw_only=True):
    """Two nodes that cannot reach each other."""

    ends: tuple[str, str]
    evicted: dict[str, int]
    """Nodes that were evicted for it, each with the epoch at which it was held."""


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """An open incident. It ends when the job has trained past the step at which it failed, or with the job."""

    id: str
    opened_at: datetime
    symptom: Symptom
    failed_step: int
    attempts: int = 0
    """Number of restarts."""
    paused: tuple[int, ...] = ()
    """Generations that a service elsewhere failed; a pause followed each."""
    cut_off: frozenset[str] = frozenset()
    """Nodes whose ranks failed on a file system of another machine."""
    blamed: dict[str, int] = {}
    """Number of generations that failed first on a node, by node."""
    blamed_generation: dict[str, int] = {}
    """Last generation that failed first on a node, by node."""
    recurrences: dict[str, Recurrence] = {}
    """First-hand failures, by trait."""
    evicted: dict[str, Evicted] = {}
    """Nodes that were evicted for them."""
    unjudged: dict[str, frozenset[int]] = {}
    """For each node the generations that ended there while its agent was away, since the job last ran."""
    excused: int = 0
    """Number of restarts that answered outages."""
    links: tuple[FailedLink, ...] = ()
    user_error: RankError | None = None
    bad_steps: tuple[BadStep, ...] = ()
    """One per generation with bad numbers. Such an incident ends only when its last step is certified."""
    checked: frozenset[str] = frozenset()
    """Nodes that passed stop-time checks."""
    replayed: frozenset[str] = frozenset()
    untrained: frozenset[int] = frozenset()
    """Generations of checks and replays."""
    early_ended: frozenset[int] = frozenset()
    """Generations in which ranks had ended with exit code 0 when others lost them."""
    taken: tuple[RungTaken, ...] = ()
    """The newest rungs."""
    named: str = ""
    cause: Cause | None = None
    """The newest conclusion from all evidence."""
    accused: dict[str, frozenset[str]] = {}
    """Nodes whose ranks accused their machines, by rule."""
    summary: str = ""
    lost_steps: int = 0
    losses: tuple[str, ...] = ()
    """Sentences about the newest losses."""
    has_stepped: bool = False
    """True once a generation that was started for it has made a step."""
    reached: int = -1
    """Last step before the newest generation, in the numbers of the generation that made it."""
    redone: int = 0
    """Steps that its restarts make once more, as far as is known."""
    went_on_at: tuple[int, ...] = ()
    """The steps at which these restarts began."""
    doubt: str = ""
    """A sentence why this is not known of one of its restarts."""
    doubted: int = 0
    """The generation that it is not known of."""

    @property
    def symptom_name(self) -> str:
        return self.named or self.symptom

    @property
    def full_summary(self) -> str:
        """The summary, and what was lost."""
        return "; ".join((self.summary, *self.what_was_lost))

    @property
    def what_was_lost(self) -> tuple[str, ...]:
        """Return sentences about it."""
        if not self.redone or self.losses:
            # Restarts from one step lose the same steps, again and again.
            losses = tuple(dict.fromkeys(self.losses))
            return (*losses, self.doubt) if self.doubt else losses
        how = "began again" if self.went_on_at[-1] <= 1 else "went on"
        where = f"the job {how} at step {', then '.join(map(str, self.went_on_at[-STARTS_SHOWN:]))}"
        text = f"{self.redone} {'step was' if self.redone == 1 else 'steps were'} lost: {where}"
        return (text, self.doubt) if self.doubt else (text,)

    @property
    def redone_steps(self) -> int | None:
        """Return the number of steps that its restarts make once more; None if it is not known."""
        return None if self.doubt else self.redone

    @property
    def restarts(self) -> int:
        """Number of restarts for failures of the job itself: without pauses for a service elsewhere, and outages."""
        return self.attempts - len(self.paused) - self.excused

    def times_blamed(self, node: str) -> int:
        """Return how often the node failed; of its failures with the agent away the newest may still be an outage."""
        unjudged = self.unjudged.get(node, frozenset()) if len(self.unjudged) == 1 else frozenset()
        return self.blamed.get(node, 0) + max(0, len(unjudged) - 1)


class ClosedIncident(msgspec.Struct, frozen=True, kw_only=True):
    """The incident that was closed last: what is reported late may still show why its ranks ended."""

    incident: Incident
    closed_at: datetime
    outcome: str
    exits: tuple[RankExit, ...]
