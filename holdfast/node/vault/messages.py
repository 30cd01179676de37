"""Messages between a node's vault and its ranks and agent over `vault.sock`, framed by `holdfast.node.frames`.

The rank sends requests, and the vault answers them in order; the docstring of each names its answers. The node's agent
uses the same protocol: it hands over backup orders, and on a second connection it receives notices. A rank whose state
lies on an accelerator fills segments itself: it has a second connection for that, which begins with `Fills`.

File descriptors travel beside the message that names them: a rank's userfaultfd with `Join`, the memory of a shard with
`SealedShard`, memory to be filled with `Room`.
"""

from __future__ import annotations

import msgspec

from holdfast.node.vault.seals import Seal
from holdfast.orders.backup import BackupOrder


class _VaultMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class ShardName(msgspec.Struct, frozen=True, kw_only=True):
    """Name of a rank's shards. `submitted_ms` tells a job from a later one of the same name."""

    job: str
    submitted_ms: int
    world_size: int
    rank: int


class SealedStep(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A step that is whole, and the generation that made it. A later generation's is newer, even with a lower step."""

    generation: int
    step: int


class Join(_VaultMessage, frozen=True, kw_only=True, tag="join"):
    """First message of a rank, sent again when its memory moves. The userfaultfd beside it, if there is one, lets the
    vault copy that memory while the rank goes on. While a collective is under way by the rank's `ledger` (a path),
    copies to other nodes wait. Answered by `Done`, or by `Refused`: it is not the process that it names, or
    may not have shards of this job.
    """

    name: ShardName
    generation: int
    pid: int
    ledger: str = ""


class Lay(_VaultMessage, frozen=True, kw_only=True, tag="lay"):
    """Places of the rank's tensors, for all saves until the next such message. Answered by `Done`, or by `Refused`: the
    layout is not valid."""

    nbytes: int
    index: bytes
    """Describes them for the reader of the shard; the vault stores it without looking into it."""
    pieces: tuple[tuple[int, int, int], ...]
    """(address, bytes, offset in the shard) of each."""
    protected: tuple[tuple[int, int], ...] = ()
    """Page-aligned ranges (address, bytes) that hold them."""
    numa_node: int = -1
    """NUMA node near the device that fills the shards; -1: any."""


class Save(_VaultMessage, frozen=True, kw_only=True, tag="save"):
    """Request to keep the tensors as they are now, and `objects` with them. Answered by `Done` as soon as they may be
    changed, or by `Refused`: they are not kept."""

    step: int
    objects: bytes


class AskSteps(_VaultMessage, frozen=True, kw_only=True, tag="ask_steps"):
    """Request for the sealed steps of this rank; the vault waits for one that is being sealed. Answered by `Steps`. If
    none of them is `at_most` this step, other nodes are asked as well.
    """

    at_most: int | None = None


class AskFormer(_VaultMessage, frozen=True, kw_only=True, tag="ask_former"):
    """Request for the steps that one rank kept on this node while the job had another number of ranks. Answered by
    `Former`."""


class AskShard(_VaultMessage, frozen=True, kw_only=True, tag="ask_shard"):
    """Request for the shard of this step. Answered by `SealedShard`, its memory beside it, or `Refused`."""

    sealed: SealedStep
    of_former: bool = False
    """True if the step is one of those that `Former` names."""


class Repair(_VaultMessage, frozen=True, kw_only=True, tag="repair"):
    """Request to replace what is damaged of this step from other nodes. Answered by `Done`, after which the shard may
    be asked for again, or by `Refused`; it is then not offered any more.
    """

    sealed: SealedStep


class KeepOnly(_VaultMessage, frozen=True, kw_only=True, tag="keep_only"):
    """Request to abandon what else is sealed, for the job goes on from this step (None: from no step). `from_disk`: the
    step was read from there, and what it has behind it in memory may stay. Answered by `Done`.
    """

    sealed: SealedStep | None
    from_disk: bool = False


class PersistTo(_VaultMessage, frozen=True, kw_only=True, tag="persist_to"):
    """Request to bring the steps saved over this connection to a disk as well. Answered by `Done`.

    The order decides how often.
    """

    place: str
    """A directory or URL, the same for all ranks."""
    steps_max: int
    """Number of newest steps that are kept there."""
    nbytes_max: int = 0
    """Their maximum size together; 0: unlimited."""
    mesh: dict[str, int] = {}
    """Noted with each step."""


class Fills(_VaultMessage, frozen=True, kw_only=True, tag="fills"):
    """First message on a connection over which a rank fills segments itself. Answered by `Done`, or by `Refused`: it
    may not have shards of this job. `Lay` (without pieces), `Fill`, `Filled` and `Abandon` follow, one step at a time.
    """

    name: ShardName
    generation: int
    persist_to: PersistTo | None = None


class Fill(_VaultMessage, frozen=True, kw_only=True, tag="fill"):
    """Request for memory for this step, which this rank fills. Answered by `Room`, the memory beside it, or `Refused`.

    If the rank ends before it has filled all, the step is not kept, and the memory never used again: its device may
    still write there.
    """

    step: int
    objects: bytes


class Filled(_VaultMessage, frozen=True, kw_only=True, tag="filled"):
    """Report that the first `up_to` bytes of the memory have come. No answer until all have: then `Done` once the step
    is sealed, or `Refused`.
    """

    up_to: int


class Abandon(_VaultMessage, frozen=True, kw_only=True, tag="abandon"):
    """Request to forget the step that is being filled; no device writes to its memory any more. Answered by `Done`."""


class AskCertified(_VaultMessage, frozen=True, kw_only=True, tag="ask_certified"):
    """Request for the newest certified step of this job. Answered by `Certified`."""


class Assign(_VaultMessage, frozen=True, kw_only=True, tag="assign"):
    """Order of the agent: these are the backups of this node's ranks from now on. Answered by `Done` or `Refused`.
    `token` is the job's: vaults that do not show the same one get nothing from each other.
    """

    order: BackupOrder
    token: str


class Serve(_VaultMessage, frozen=True, kw_only=True, tag="serve"):
    """Order of the agent: from now on only ranks of this job may join. Answered by `Done`."""

    job: str
    submitted_ms: int
    world_size: int


class Follow(_VaultMessage, frozen=True, kw_only=True, tag="follow"):
    """Request of the agent for notices. No answer; notices follow on this connection as they come."""


class End(_VaultMessage, frozen=True, kw_only=True, tag="end"):
    """Order of the agent: end, and its successor with it. What it holds is lost. No answer."""


OfAgent = Assign | Serve | Follow | End
OfFilling = Fills | Fill | Filled | Abandon
OfRestoring = AskSteps | AskFormer | AskShard | Repair
Request = Join | Lay | Save | OfRestoring | KeepOnly | PersistTo | AskCertified | OfFilling | OfAgent


class Done(_VaultMessage, frozen=True, kw_only=True, tag="done"):
    """The request was carried out."""

    writers_waited_s: float = 0.0
    """Answer to `Save`: time for which the rank's threads have waited for the copy of the save before, at least."""


class Refused(_VaultMessage, frozen=True, kw_only=True, tag="refused"):
    """The request cannot be carried out; the connection stays usable."""

    reason: str


class Steps(_VaultMessage, frozen=True, kw_only=True, tag="steps"):
    """Sealed steps, newest first."""

    sealed: tuple[SealedStep, ...]
    newest_made: SealedStep | None = None
    """The newest step that this rank has sealed on this node; None: not known, as in a vault that was started since."""


class Former(_VaultMessage, frozen=True, kw_only=True, tag="former"):
    """Sealed steps of a rank of the job when it had another number of ranks, newest first."""

    world_size: int = 0
    """The number of ranks then; 0: there are no such steps."""
    sealed: tuple[SealedStep, ...] = ()


class Certified(_VaultMessage, frozen=True, kw_only=True, tag="certified"):
    """The newest certified step: of the steps on a disk, the newest up to it must stay. None: none has to."""

    up_to: int | None


class Room(_VaultMessage, frozen=True, kw_only=True, tag="room"):
    """Memory of a step that the rank fills."""

    files: tuple[int, ...]
    """Inodes of all memory that this rank may get: what else it has mapped, it should give back."""
    is_settled: bool
    """Its pages stay what they are, so they may be pinned for long."""
    waits: bool = False
    """The rank goes on only when the step is sealed: the vault has no other of it."""


class SealedShard(_VaultMessage, frozen=True, kw_only=True, tag="shard"):
    """A sealed shard; map its memory privately. `damaged` chunks differ from the seal: the vault just compared all."""

    sealed: SealedStep
    index: bytes
    objects: bytes
    seal: Seal
    damaged: tuple[int, ...] = ()


class BackedUp(_VaultMessage, frozen=True, kw_only=True, tag="backed_up"):
    """Notice: another node's vault holds this step of a rank, sealed."""

    name: ShardName
    sealed: SealedStep
    keeper: str
    nbytes: int
    """Bytes of it that were sent there."""
    nbytes_shared: int = 0
    """Bytes of it that replicas of the rank send there."""
    took_s: float
    skipped: int = 0
    """Number of steps before it that were not sent."""


class DamageNotice(_VaultMessage, frozen=True, kw_only=True, tag="damaged"):
    """Notice: bytes held or received are not those that were sealed. `node` held them; "" is this one."""

    name: ShardName
    sealed: SealedStep
    node: str = ""
    detail: str


class Fetched(_VaultMessage, frozen=True, kw_only=True, tag="fetched"):
    """Notice: this node got a shard that it did not have from another node's vault."""

    name: ShardName
    sealed: SealedStep
    source: str
    nbytes: int
    took_s: float


class Persisted(_VaultMessage, frozen=True, kw_only=True, tag="persisted"):
    """Notice: a step is whole on the disk, every rank's part of it. `name` is the rank whose node has published it,
    `steps` are those that are there now."""

    name: ShardName
    sealed: SealedStep
    path: str
    nbytes: int
    took_s: float
    steps: tuple[int, ...]


class NotPersisted(_VaultMessage, frozen=True, kw_only=True, tag="not_persisted"):
    """Notice: a step due for the disk is not there; the one before still is. `name`: a rank of the reporting node."""

    name: ShardName
    sealed: SealedStep
    reason: str


class NotKept(_VaultMessage, frozen=True, kw_only=True, tag="not_kept"):
    """Notice: a rank's save is refused, because there is no memory for it."""

    name: ShardName
    sealed: SealedStep
    reason: str


class CopiesRefusal(_VaultMessage, frozen=True, kw_only=True, tag="copies_refused"):
    """Notice: this vault and another do not accept each other. `name`: a rank of the reporting node."""

    name: ShardName
    keeper: str
    reason: str


Notice = BackedUp | DamageNotice | Fetched | Persisted | NotPersisted | NotKept | CopiesRefusal
Answer = Done | Refused | Steps | Former | Certified | Room | SealedShard | Notice

requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
