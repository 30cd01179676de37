"""What vaults of different nodes say to each other over TCP.

Framed as in `holdfast.node.vault.vault_wire`. A connection begins with the handshake (see `handshake`); then the one
who opened it
asks and the other answers in order. The bytes of a chunk follow their `Chunk`, in either direction, not inside of it:
they go from memory to the network and into memory again without being looked at on the way. The chunks of an offer are
acknowledged one by one, so that who sends keeps a window of them on the way.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
import xxhash

from holdfast.events.parts.scalars import Count, Name
from holdfast.node.vault.seals import CHUNK_BYTES, Seal, chunk_bytes
from holdfast.node.vault.vault_wire import Refused, SealedStep, ShardName, lost, receive, receive_into, send
from holdfast.settings.checkpoint import REPLICAS_MAX
from holdfast_vault.cuts import Cut
from holdfast_vault.shelf.segments import Segment

STALL_S = 30.0
"""Who says nothing for so long in the middle of a message is gone."""
SEAL_WAIT_S = 1.0
"""How long a replica waits for a step that a rank has not sealed yet: ranks are less than a step apart."""
LANGUAGE = 2
"""Counts up with every change that a vault of before would misunderstand: such two do not talk at all."""
SPARE_BUFFERS_MAX = 8
NONCE_BYTES = 32
MAC_BYTES = 32
GREETING_BYTES_MAX = 1024
"""Nobody may make a vault take more memory than this before showing who he is."""

Alike = Annotated[tuple[Count, ...], msgspec.Meta(max_length=REPLICAS_MAX)]
Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Mac = Annotated[bytes, msgspec.Meta(min_length=MAC_BYTES, max_length=MAC_BYTES)]


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    """First word of who opened the connection: which node, and for which job."""

    node: Name
    job: Name
    submitted_ms: Count
    generation: Count
    nonce: Nonce
    speaks: Count = 0


class Challenge(_Message, frozen=True, kw_only=True, tag="challenge"):
    """The other's nonce."""

    nonce: Nonce


class Proof(_Message, frozen=True, kw_only=True, tag="proof"):
    """That he knows the job's token."""

    mac: Mac


class Welcome(_Message, frozen=True, kw_only=True, tag="welcome"):
    """The other's proof. From here on it is about shards."""

    mac: Mac
    speaks: Count = 0


class Offer(_Message, frozen=True, kw_only=True, tag="offer"):
    """I have this shard for you. Answered by `Want`, `Kept` (it is there already) or `Refused`.

    `mac` is its voucher: see `handshake`. `absent` are the chunks that a replica sends in its place: see `chunk_sets`.
    """

    name: ShardName
    sealed: SealedStep
    index: bytes
    objects: bytes
    seal: Seal
    mac: Mac
    absent: bytes = b""


class Want(_Message, frozen=True, kw_only=True, tag="want"):
    """The chunks from this one on are missing."""

    first: Count


class Chunk(_Message, frozen=True, kw_only=True, tag="chunk"):
    """`nbytes` of data follow."""

    number: Count
    nbytes: Annotated[int, msgspec.Meta(ge=1, le=CHUNK_BYTES)]


class Good(_Message, frozen=True, kw_only=True, tag="good"):
    """This chunk of the offer is what was sealed. The last one is answered by `Kept` instead."""

    number: Count


class Again(_Message, frozen=True, kw_only=True, tag="again"):
    """This chunk of the offer is not what was sealed."""

    number: Count


class Kept(_Message, frozen=True, kw_only=True, tag="kept"):
    """The shard is here, whole and checked."""


class GoOn(_Message, frozen=True, kw_only=True, tag="go_on"):
    """The rank left steps behind. Answered by `Understood`."""

    name: ShardName
    cut: Cut


class Understood(_Message, frozen=True, kw_only=True, tag="understood"):
    """It will not be offered any more."""


class AskHashes(_Message, frozen=True, kw_only=True, tag="ask_hashes"):
    """What do the chunks `first`, `first` + `every`, ... of this shard hash to? Answered by `Hashes`.

    Who has not sealed that step yet waits for it, though not for long.
    """

    name: ShardName
    sealed: SealedStep
    first: Count
    every: Annotated[int, msgspec.Meta(ge=1)]


class Hashes(_Message, frozen=True, kw_only=True, tag="hashes"):
    """What they hash to; () if that step is not there whole."""

    hashes: tuple[int, ...]


class AskHeld(_Message, frozen=True, kw_only=True, tag="ask_held"):
    """What do you have of these ranks? Answered by `Held`."""

    names: tuple[ShardName, ...]


class HeldShards(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What there is of one rank, newest first; `coming` is half there, with so many of its chunks."""

    name: ShardName
    sealed: tuple[SealedStep, ...] = ()
    cut: Cut | None = None
    coming: SealedStep | None = None
    chunks: int = 0


class Held(_Message, frozen=True, kw_only=True, tag="held"):
    """One for each rank that was asked about."""

    shards: tuple[HeldShards, ...]


class AskWhole(_Message, frozen=True, kw_only=True, tag="ask_whole"):
    """All of this shard but its data. Answered by `Whole` or `Refused`."""

    name: ShardName
    sealed: SealedStep


class Whole(_Message, frozen=True, kw_only=True, tag="whole"):
    """The shard, but for its data, and its voucher. `absent` are the chunks that are not there: see `chunk_sets`."""

    index: bytes
    objects: bytes
    seal: Seal
    mac: Mac
    absent: bytes = b""


class AskWhich(_Message, frozen=True, kw_only=True, tag="ask_which"):
    """Which chunks do you have that hash to these, in this shard or the same step of one of the `alike` ranks?

    Answered by `Which`.
    """

    name: ShardName
    sealed: SealedStep
    hashes: tuple[int, ...]
    alike: Alike = ()


class Which(_Message, frozen=True, kw_only=True, tag="which"):
    """Their numbers: see `chunk_sets`."""

    chunks: bytes


class AskChunk(_Message, frozen=True, kw_only=True, tag="ask_chunk"):
    """One chunk of a shard, which hashes to `hash`. Answered by `Chunk` and its bytes, or by `Lacks`.

    The same chunk of the same step of one of the `alike` ranks, replicas of this one, will do as well. `is_repeated`:
    what came before was damaged, so it is looked at before it is sent.
    """

    name: ShardName
    sealed: SealedStep
    number: Count
    hash: int
    alike: Alike = ()
    is_repeated: bool = False


class Lacks(_Message, frozen=True, kw_only=True, tag="lacks"):
    """This chunk is not here."""

    number: Count


Ask = Offer | Chunk | GoOn | AskHashes | AskHeld | AskWhich | AskWhole | AskChunk
Reply = Want | Good | Again | Kept | Understood | Hashes | Held | Which | Whole | Chunk | Lacks | Refused

greetings = msgspec.msgpack.Decoder(Hello | Proof)
greeting_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Challenge | Welcome | Refused)
_asks: msgspec.msgpack.Decoder[Ask] = msgspec.msgpack.Decoder(Ask)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def receive_ask(link: socket.socket) -> Ask:
    """The next request; raises VaultWireError."""
    return receive(link, _asks)[0]


def receive_reply(link: socket.socket) -> Reply:
    """The next answer; raises VaultWireError."""
    return receive(link, _replies)[0]


def send_chunk(link: socket.socket, segment: Segment, number: int) -> int:
    """Send a chunk of a segment, and say how many bytes it has; raises VaultWireError."""
    start, size = number * CHUNK_BYTES, chunk_bytes(segment.nbytes, number)
    send(link, Chunk(number=number, nbytes=size))
    try:
        end = start + size
        while start < end:
            start += os.sendfile(link.fileno(), segment.descriptor, start, end - start)
    except OSError as error:
        raise lost(error) from error
    return size


def receive_chunk(link: socket.socket, chunk: Chunk, segment: Segment, expected: int) -> bool:
    """Put the bytes that follow a `Chunk` where they belong. False: they do not hash to what was expected.

    Raises:
        OSError: there is no memory for them.
        VaultWireError: the connection ended.
    """
    if not segment.is_fresh:
        start = chunk.number * CHUNK_BYTES
        data = segment.memory[start : start + chunk.nbytes].data
        receive_into(link, data)
        return xxhash.xxh3_64_intdigest(data) == expected
    # Written from memory that is in the cache, a page is taken and filled at once, not first filled with zeroes.
    with _bounced(chunk.nbytes) as data:
        receive_into(link, data)
        is_whole = xxhash.xxh3_64_intdigest(data) == expected
        if is_whole:
            segment.put(chunk.number, data)
        return is_whole


_spare_buffers: list[bytearray] = []


@contextmanager
def _bounced(nbytes: int) -> Iterator[memoryview]:
    """A buffer to be used for a moment: one that was used just now, if there is any."""
    try:
        buffer = _spare_buffers.pop()
    except IndexError:
        buffer = bytearray(CHUNK_BYTES)
    yield memoryview(buffer)[:nbytes]
    if len(_spare_buffers) < SPARE_BUFFERS_MAX:
        _spare_buffers.append(buffer)


def fits(seal: Seal, index: bytes, objects: bytes) -> bool:
    """Whether a seal can be one of a shard with this index and these objects."""
    return (
        seal.nbytes >= 0
        and len(seal.chunks) == -(-seal.nbytes // CHUNK_BYTES)
        and tuple(xxhash.xxh3_64_intdigest(note) for note in (index, objects)) == seal.notes
    )


def set_limits(link: socket.socket, stall_s: float = STALL_S) -> None:
    """See to it that nobody waits for ever for one who is gone, be it that his machine lost its power."""
    link.settimeout(None)
    seconds = struct.pack("ll", int(stall_s), int(stall_s % 1 * 1e6))
    # Not Python's timeouts: with them the socket does not block, and sendfile has to.
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
