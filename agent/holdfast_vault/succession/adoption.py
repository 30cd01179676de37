"""The shards that a successor inherits, taken over at once and checked afterwards.

Whatever leaves a shelf (to a rank, another vault, the disk) is compared with its seal on the way. So a successor goes
on at once, and compares the rest of what it has beside its work.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from holdfast.node.vault.messages import DamageNotice, SealedStep, ShardName
from holdfast.node.vault.seals import chunk_hash
from holdfast_vault.notices import Notices
from holdfast_vault.shelf.segments import SealedContents, Segment
from holdfast_vault.shelf.shelf import Shelf
from holdfast_vault.succession.succession_records import InheritedShard

log = structlog.get_logger(__name__)


def segments_of(name: ShardName, shards: Iterable[InheritedShard]) -> list[Segment]:
    """Return segments of these shards, which have their memory already."""
    segments = []
    for descriptor, nbytes, absent, contents in shards:
        try:
            segment = Segment(str(name), nbytes, absent, descriptor=descriptor)
        except OSError as error:
            log.error("a shard is not taken over", of=str(name), step=contents.sealed.step, reason=error.strerror)
            continue
        segment.contents = contents
        segments.append(segment)
    return segments


def drop_damaged(shelf: Shelf, name: ShardName, steps: Iterable[SealedStep], notices: Notices) -> None:
    """Compare shards with their seals; drop those that differ. Runs in its own thread, not at a low priority: see
    `holdfast_vault.shelf.stocking.settle`.
    """
    for sealed in steps:
        with shelf.holding(sealed) as held:
            if held is None or not (damaged := _damaged(*held)):
                continue
            detail = f"{damaged} of {len(held[1].seal.chunks)} chunks fail their checksum"
            log.error("a shard that was taken over is damaged", of=str(name), step=sealed.step, reason=detail)
            shelf.forget(held[0])
        notices.publish(DamageNotice(name=name, sealed=sealed, detail=detail))


def _damaged(segment: Segment, contents: SealedContents) -> int:
    chunks = enumerate(contents.seal.chunks)
    return sum(chunk_hash(segment.memory, number) != seal for number, seal in chunks if number not in segment.absent)
