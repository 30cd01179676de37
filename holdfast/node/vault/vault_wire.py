"""What a rank and its node's vault say to each other over `vault.sock`.

MessagePack, each message after its length (u32). The rank asks, the vault answers each request once and in order.
The node's agent speaks the same: it hands over backup orders, and on a connection of its own it is told what happened.
Descriptors travel beside the message that names them: a rank's userfaultfd with `Join`, the memory of a shard with
`Shard`.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.decoding import UNREADABLE
from holdfast.node.vault.seals import Seal
from holdfast.orders.backup import BackupOrder

if TYPE_CHECKING:
    from asyncio import StreamReader

FRAME_BYTES_MAX = 256 * 1024 * 1024
_LENGTH = struct.Struct("<I")


class VaultWireError(Exception):
    """The other side ended the connection, or sent what is no message of this protocol."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class ShardName(msgspec.Struct, frozen=True, kw_only=True):
    """Whose state a shard is. `submitted_ms` tells a job from a later one of the same name."""

    job: str
    submitted_ms: int
    world_size: int
    rank: int


class SealedStep(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A step that is whole, and the generation that made it. A later generation's is newer, be its step lower."""

    generation: int
    step: int


class Join(_Message, frozen=True, kw_only=True, tag="join"):
    """First word of a rank, and again when its memory changes place.

    The userfaultfd beside it, if there is one, lets the vault copy that memory while the rank goes on. `ledger` is the
    path of the rank's: while a collective is under way by it, copies to other nodes stand back.
    """

    name: ShardName
    generation: int
    pid: int
    ledger: str = ""


class Lay(_Message, frozen=True, kw_only=True, tag="lay"):
    """Where the rank's tensors lie, for all saves until the next such message.

    `pieces` are (address, bytes, offset in the shard); `protected` the page-aligned ranges (address, bytes) that hold
    them. `index` says what they are, for whoever reads the shard; the vault keeps it and does not look into it.
    """

    nbytes: int
    index: bytes
    pieces: tuple[tuple[int, int, int], ...]
    protected: tuple[tuple[int, int], ...] = ()


class Save(_Message, frozen=True, kw_only=True, tag="save"):
    """Keep the tensors as they are now, and `objects` with them. Answered by `Done` as soon as they may be changed."""

    step: int
    objects: bytes


class AskSteps(_Message, frozen=True, kw_only=True, tag="ask_steps"):
    """Which steps of this rank are sealed here? Waits for one that is being sealed. Answered by `Steps`.

    If none of them is `at_most` this step, other nodes are asked as well.
    """

    at_most: int | None = None


class AskShard(_Message, frozen=True, kw_only=True, tag="ask_shard"):
    """Give me the shard of this step. Answered by `Shard`, its memory beside it, or `Refused`."""

    sealed: SealedStep


class Repair(_Message, frozen=True, kw_only=True, tag="repair"):
    """This step of mine fails its checks: replace what is damaged from other nodes.

    Answered by `Done`, after which the shard may be asked for again, or by `Refused`; it is then not offered any more.
    """

    sealed: SealedStep


class KeepOnly(_Message, frozen=True, kw_only=True, tag="keep_only"):
    """The job goes on from this step (None: from none there was): what else is sealed is of an abandoned past.

    `from_disk`: that is where the step was read from. What it has behind it in memory may stay.
    """

    sealed: SealedStep | None
    from_disk: bool = False


class PersistTo(_Message, frozen=True, kw_only=True, tag="persist_to"):
    """What is saved over this connection is also to be brought to a disk: a directory or URL, the same for all ranks.

    The newest `steps_max` are kept there, if they fit into `nbytes_max` (0: into anything). `mesh` is noted with each.
    Answered by `Done`. How often is the order's to say.
    """

    place: str
    steps_max: int
    nbytes_max: int = 0
    mesh: dict[str, int] = {}


class AskCertified(_Message, frozen=True, kw_only=True, tag="ask_certified"):
    """Up to which step is this job certified? Answered by `Certified`."""


class Assign(_Message, frozen=True, kw_only=True, tag="assign"):
    """The agent's word: these are the backups of this node's ranks from now on. Answered by `Done`.

    `token` is the job's: vaults that do not show the same one get nothing from each other.
    """

    order: BackupOrder
    token: str


class Follow(_Message, frozen=True, kw_only=True, tag="follow"):
    """The agent's: tell me what happens. No answer; notices follow on this connection as they come."""


Request = Join | Lay | Save | AskSteps | AskShard | Repair | KeepOnly | PersistTo | AskCertified | Assign | Follow


class Done(_Message, frozen=True, kw_only=True, tag="done"):
    """It is done."""


class Refused(_Message, frozen=True, kw_only=True, tag="refused"):
    """It cannot be done; the connection stays usable."""

    reason: str


class Steps(_Message, frozen=True, kw_only=True, tag="steps"):
    """What is sealed, newest first."""

    sealed: tuple[SealedStep, ...]


class Certified(_Message, frozen=True, kw_only=True, tag="certified"):
    """Of the steps on a disk the newest `up_to` this one is to stay; None: none has to."""

    up_to: int | None


class Shard(_Message, frozen=True, kw_only=True, tag="shard"):
    """A sealed shard; its memory is to be mapped privately.

    `damaged` are the chunks that are not what was sealed: the vault has just compared all of them.
    """

    sealed: SealedStep
    index: bytes
    objects: bytes
    seal: Seal
    damaged: tuple[int, ...] = ()


class BackedUp(_Message, frozen=True, kw_only=True, tag="backed_up"):
    """Notice: another node's vault holds this step of a rank, sealed. `skipped` steps before it were not sent.

    `nbytes` of it were sent there, and `nbytes_shared` are sent by replicas of the rank.
    """

    name: ShardName
    sealed: SealedStep
    keeper: str
    nbytes: int
    nbytes_shared: int = 0
    took_s: float
    skipped: int = 0


class Damaged(_Message, frozen=True, kw_only=True, tag="damaged"):
    """Notice: bytes held or received are not those that were sealed. `node` held them; "" is this one."""

    name: ShardName
    sealed: SealedStep
    node: str = ""
    detail: str


class Fetched(_Message, frozen=True, kw_only=True, tag="fetched"):
    """Notice: this node got a shard that it did not have from another node's vault."""

    name: ShardName
    sealed: SealedStep
    source: str
    nbytes: int
    took_s: float


class Persisted(_Message, frozen=True, kw_only=True, tag="persisted"):
    """Notice: a step is whole on the disk, every rank's part of it. `name` is the rank whose node has published it,
    `steps` are those that are there now."""

    name: ShardName
    sealed: SealedStep
    path: str
    nbytes: int
    took_s: float
    steps: tuple[int, ...]


class NotPersisted(_Message, frozen=True, kw_only=True, tag="not_persisted"):
    """Notice: a step that was due for the disk is not there; what was before it still is. `name` is a rank of the node
    that says so."""

    name: ShardName
    sealed: SealedStep
    reason: str


Notice = BackedUp | Damaged | Fetched | Persisted | NotPersisted
Answer = Done | Refused | Steps | Certified | Shard | Notice

M = TypeVar("M")

_encode = msgspec.msgpack.Encoder().encode
_requests = msgspec.msgpack.Decoder(Request)
_answers = msgspec.msgpack.Decoder(Answer)


def frame(message: msgspec.Struct) -> bytes:
    """A message as it goes over a connection."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


def send(link: socket.socket, message: msgspec.Struct, descriptor: int | None = None) -> None:
    """Send one message, with a descriptor beside it.

    Raises:
        VaultWireError: the connection has ended.
    """
    data = frame(message)
    try:
        sent = link.send(data) if descriptor is None else socket.send_fds(link, [data], [descriptor])
        # A send of nothing would fail where the other has its answer already and is gone.
        if sent < len(data):
            link.sendall(memoryview(data)[sent:])
    except OSError as error:
        raise lost(error) from error


def receive_request(link: socket.socket) -> tuple[Request, int | None]:
    """The next request and the descriptor that came with it; raises VaultWireError."""
    return receive(link, _requests)


def receive_answer(link: socket.socket) -> tuple[Answer, int | None]:
    """The next answer and the descriptor that came with it; raises VaultWireError."""
    return receive(link, _answers)


async def read_answer(reader: StreamReader) -> Answer:
    """The next answer or notice, for whoever waits for many things at once; raises VaultWireError."""
    try:
        (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        _check_size(size, FRAME_BYTES_MAX)
        answer: Answer = _answers.decode(await reader.readexactly(size))
    except (OSError, EOFError) as error:
        raise VaultWireError("the connection has ended") from error
    except UNREADABLE as error:
        raise VaultWireError(f"not a message of this protocol: {error}") from error
    return answer


def receive(
    link: socket.socket, decoder: msgspec.msgpack.Decoder[M], nbytes_max: int = FRAME_BYTES_MAX
) -> tuple[M, int | None]:
    """The next message of a protocol that is framed like this one, and the descriptor that came with it.

    Raises:
        VaultWireError: there is none, or it is longer than `nbytes_max`, or no message of that protocol.
    """
    descriptors: list[int] = []
    try:
        head, descriptors, _, _ = socket.recv_fds(link, _LENGTH.size, 1)
        rest = bytearray(_LENGTH.size - len(head))
        receive_into(link, memoryview(rest))
        (size,) = _LENGTH.unpack(head + rest)
        _check_size(size, nbytes_max)
        body = bytearray(size)
        receive_into(link, memoryview(body))
        return decoder.decode(body), descriptors[0] if descriptors else None
    except BaseException as error:
        for descriptor in descriptors:
            os.close(descriptor)
        if isinstance(error, OSError):
            raise lost(error) from error
        if isinstance(error, UNREADABLE):
            raise VaultWireError(f"not a message of this protocol: {error}") from error
        raise


def receive_into(link: socket.socket, view: memoryview) -> None:
    """Fill `view` with the bytes that come next; raises VaultWireError if the connection ends before."""
    try:
        while view:
            # All of it in one call where the kernel can: a chunk would otherwise wake this thread some fifty times.
            count = link.recv_into(view, 0, socket.MSG_WAITALL)
            if not count:
                raise VaultWireError("the connection has ended")
            view = view[count:]
    except OSError as error:
        raise lost(error) from error


def lost(error: OSError) -> VaultWireError:
    """What a failure of the connection is to those who speak over it."""
    return VaultWireError(f"the connection is lost: {error.strerror or error}")


def _check_size(size: int, nbytes_max: int) -> None:
    if size > nbytes_max:
        raise VaultWireError(f"a message of {size} bytes is over the limit of {nbytes_max}")
