"""Messages between vaults of different nodes over TCP, framed by `holdfast.node.frames`.

A connection begins with the handshake (see `handshake.py`). After it, the side that opened the connection sends
requests, and the other side answers them in order. The bytes of a chunk follow their `ChunkHeader` in either direction,
outside of any message, so that they go from memory to the network and into memory without a copy (see
`chunk_transfer.py`). The chunks of an offer are acknowledged one by one, so that the sender can keep a window of them
on the way.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from holdfast.events.parts.scalars import Count, Name
from holdfast.node.vault.messages import Refused, SealedStep, ShardName
from holdfast.node.vault.seals import CHUNK_BYTES, Seal
from holdfast.settings.checkpoint import REPLICAS_MAX
from holdfast_vault.cuts import Cut

SEAL_WAIT_S = 1.0
"""Seconds that a replica waits for a step that a rank has not sealed yet: ranks are less than a step apart."""
LANGUAGE = 2
"""Version of this protocol. Vaults of different versions do not exchange anything."""
NONCE_BYTES = 32
MAC_BYTES = 32
GREETING_BYTES_MAX = 1024
"""Limit for messages before the other side has proved that it belongs to the job."""

Alike = Annotated[tuple[Count, ...], msgspec.Meta(max_length=REPLICAS_MAX)]
Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Mac = Annotated[bytes, msgspec.Meta(min_length=MAC_BYTES, max_length=MAC_BYTES)]


class _PeerMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Hello(_PeerMessage, frozen=True, kw_only=True, tag="hello"):
    """First message of the side that opened the connection: its node, and the job that it asks for."""

    node: Name
    job: Name
    submitted_ms: Count
    generation: Count
    nonce: Nonce
    speaks: Count = 0
    """`LANGUAGE` of the sender."""


class Challenge(_PeerMessage, frozen=True, kw_only=True, tag="challenge"):
    """Nonce of the side that was called."""

    nonce: Nonce


class Proof(_PeerMessage, frozen=True, kw_only=True, tag="proof"):
    """Proof that the caller knows the job's token."""

    mac: Mac


class Admitted(_PeerMessage, frozen=True, kw_only=True, tag="welcome"):
    """Proof of the side that was called; the end of the handshake."""

    mac: Mac
    speaks: Count = 0


class Distrusted(_PeerMessage, frozen=True, kw_only=True, tag="distrusted"):
    """Refusal of a caller without a certificate that names its node; the end of the handshake."""

    reason: str


class Offer(_PeerMessage, frozen=True, kw_only=True, tag="offer"):
    """Offer of a shard. Answered by `Want`, `Kept` (it is there already) or `Refused`."""

    name: ShardName
    sealed: SealedStep
    index: bytes
    objects: bytes
    seal: Seal
    mac: Mac
    """Voucher for the shard: see `handshake`."""
    absent: bytes = b""
    """Chunks that a replica sends in its place: see `chunk_sets`."""


class Want(_PeerMessage, frozen=True, kw_only=True, tag="want"):
    """Request for the chunks of an offer from this one on."""

    first: Count


class ChunkHeader(_PeerMessage, frozen=True, kw_only=True, tag="chunk"):
    """Header of a chunk: `nbytes` of data follow."""

    number: Count
    nbytes: Annotated[int, msgspec.Meta(ge=1, le=CHUNK_BYTES)]


class Good(_PeerMessage, frozen=True, kw_only=True, tag="good"):
    """Acknowledgement: this chunk of the offer matches its checksum. The last one is answered by `Kept` instead."""

    number: Count


class Again(_PeerMessage, frozen=True, kw_only=True, tag="again"):
    """Request to repeat a chunk of the offer that fails its checksum."""

    number: Count


class Kept(_PeerMessage, frozen=True, kw_only=True, tag="kept"):
    """Acknowledgement: all chunks of the offered shard are here and match their checksums."""


class GoOn(_PeerMessage, frozen=True, kw_only=True, tag="go_on"):
    """Notice of the steps that a rank has abandoned. Answered by `Understood`."""

    name: ShardName
    cut: Cut


class Understood(_PeerMessage, frozen=True, kw_only=True, tag="understood"):
    """Acknowledgement of `GoOn`: the vault no longer offers the abandoned steps."""


class AskHashes(_PeerMessage, frozen=True, kw_only=True, tag="ask_hashes"):
    """Request for the hashes of the chunks `first`, `first` + `every`, ... of a shard. Answered by `Hashes`, after
    `SEAL_WAIT_S` at most if the step is not sealed yet.
    """

    name: ShardName
    sealed: SealedStep
    first: Count
    every: Annotated[int, msgspec.Meta(ge=1)]


class Hashes(_PeerMessage, frozen=True, kw_only=True, tag="hashes"):
    """Requested hashes; () if the vault does not have all of that step."""

    hashes: tuple[int, ...]


class AskHeld(_PeerMessage, frozen=True, kw_only=True, tag="ask_held"):
    """Request for the steps of these ranks that the vault has. Answered by `Held`."""

    names: tuple[ShardName, ...]


class RankSteps(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Steps of one rank that a vault has, newest first."""

    name: ShardName
    sealed: tuple[SealedStep, ...] = ()
    cut: Cut | None = None
    coming: SealedStep | None = None
    chunks: int = 0
    """Chunks of `coming` that have arrived."""


class Held(_PeerMessage, frozen=True, kw_only=True, tag="held"):
    """Answer to `AskHeld`, one entry for each rank of the request."""

    shards: tuple[RankSteps, ...]


class AskWhole(_PeerMessage, frozen=True, kw_only=True, tag="ask_whole"):
    """Request for all of a shard but its data. Answered by `Whole` or `Refused`."""

    name: ShardName
    sealed: SealedStep


class Whole(_PeerMessage, frozen=True, kw_only=True, tag="whole"):
    """A shard without its data, and its voucher."""

    index: bytes
    objects: bytes
    seal: Seal
    mac: Mac
    absent: bytes = b""
    """Chunks that this vault does not have: see `chunk_sets`."""


class AskWhich(_PeerMessage, frozen=True, kw_only=True, tag="ask_which"):
    """Request for the chunks with these hashes in this rank's step or an `alike` one's. Answered by `Which`."""

    name: ShardName
    sealed: SealedStep
    hashes: tuple[int, ...]
    alike: Alike = ()


class Which(_PeerMessage, frozen=True, kw_only=True, tag="which"):
    """Numbers of the chunks that the vault has: see `chunk_sets`."""

    chunks: bytes


class AskChunk(_PeerMessage, frozen=True, kw_only=True, tag="ask_chunk"):
    """Request for one chunk. Answered by `ChunkHeader` and the bytes, or by `Lacks`. The same chunk of an `alike` rank,
    a replica of this one, is as good if it has this hash.
    """

    name: ShardName
    sealed: SealedStep
    number: Count
    hash: int
    alike: Alike = ()
    is_repeated: bool = False
    """The chunk arrived damaged before: compare it with its checksum before sending it."""


class Lacks(_PeerMessage, frozen=True, kw_only=True, tag="lacks"):
    """Answer to `AskChunk`: the vault does not have this chunk."""

    number: Count


Ask = Offer | ChunkHeader | GoOn | AskHashes | AskHeld | AskWhich | AskWhole | AskChunk
Reply = Want | Good | Again | Kept | Understood | Hashes | Held | Which | Whole | ChunkHeader | Lacks | Refused

greetings = msgspec.msgpack.Decoder(Hello | Proof)
greeting_replies = msgspec.msgpack.Decoder(Challenge | Admitted | Refused | Distrusted)
asks: msgspec.msgpack.Decoder[Ask] = msgspec.msgpack.Decoder(Ask)
replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
