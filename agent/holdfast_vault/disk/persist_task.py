"""Messages between a vault and the process that writes a step to the disk for it.

The vault sends one task and the memory of its shards as descriptors. The process reports what it did, one line per
event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.node.users.job_user import JobUser
from holdfast.node.vault.messages import PersistTo
from holdfast.node.vault.seals import Seal


class ShardToWrite(msgspec.Struct, frozen=True, kw_only=True):
    """The shard of one rank; see `holdfast_vault.shelf.segments`."""

    rank: int
    descriptor: int
    nbytes: int
    index: bytes
    objects: bytes
    seal: Seal


class PersistTask(msgspec.Struct, frozen=True, kw_only=True):
    """Task to write these shards of a step. The node with rank 0 also publishes the complete steps. On the disk the
    newest step up to `certified_up_to` stays: the job would go back to it after bad numbers.
    """

    to: PersistTo
    job: str
    submitted_ms: int
    generation: int
    step: int
    world_size: int
    shards: tuple[ShardToWrite, ...]
    ledgers: tuple[str, ...] = ()
    bytes_per_s: float = 0.0
    certified_up_to: int | None = None
    user: JobUser | None = None
    """The user of ranks, who writes it; None: the vault's."""


class _TaggedOutcome(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    pass


class ShardsWritten(_TaggedOutcome, frozen=True, kw_only=True, tag="written"):
    """The shards are on the disk; their memory is not needed any more."""


class StepPublished(_TaggedOutcome, frozen=True, kw_only=True, tag="published"):
    """A step can be restored from now on, one of `steps`. `took_s` is how long writing and waiting took."""

    step: int
    path: str
    nbytes: int
    took_s: float
    steps: tuple[int, ...]


class StepDropped(_TaggedOutcome, frozen=True, kw_only=True, tag="dropped"):
    """The step, written by this node or by all, is of no use and was removed."""

    step: int
    reason: str


class SealBroken(_TaggedOutcome, frozen=True, kw_only=True, tag="spoiled"):
    """A rank's shard is not what was sealed: damaged in this node's memory."""

    rank: int
    detail: str


class TaskSuperseded(_TaggedOutcome, frozen=True, kw_only=True, tag="over"):
    """A newer generation has the checkpoints: nothing more is to be written."""

    reason: str


PersistOutcome = ShardsWritten | StepPublished | StepDropped | SealBroken | TaskSuperseded

encode_task = msgspec.msgpack.Encoder().encode
decode_task = msgspec.msgpack.Decoder(PersistTask).decode
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PersistOutcome).decode


def to_line(outcome: PersistOutcome) -> bytes:
    return _encode(outcome) + b"\n"


def from_lines(lines: Iterable[bytes]) -> Iterator[PersistOutcome]:
    """Decode the outcomes as they arrive. The last line of a killed process may be incomplete and is left out."""
    for line in lines:
        if line.endswith(b"\n"):
            yield _decode(line)
