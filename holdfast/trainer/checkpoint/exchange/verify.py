"""Reads all of a checkpoint and reports which bytes of which file are not those that were written. Needs no torch."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby

import msgspec

from holdfast.trainer.checkpoint.errors import DamagedCheckpoint
from holdfast.trainer.checkpoint.layout.manifest import (
    MANIFEST,
    UNSUMMED_FORMAT,
    CheckpointManifest,
    CheckpointPart,
    ValueEntry,
)
from holdfast.trainer.checkpoint.layout.manifest_checks import decode_index
from holdfast.trainer.checkpoint.storage.folder import Folder, missing_or_cut, read_manifest

BLOCK_BYTES = 8 << 20
"""Read at a time by each thread: enough to keep a disk busy, and nothing beside the job's memory."""


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes `begin` to `end` (exclusive) of a file are not what was written; `what` they hold."""

    file: str
    begin: int
    end: int
    what: str


class VerifiedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Result of verifying a checkpoint, of which `checked_bytes` were read."""

    damage: tuple[Damage, ...]
    checked_bytes: int
    has_unsummed_manifest: bool = False
    """An older version wrote the manifest, without a checksum: only its numbers were checked."""


def verify(folder: Folder, *, threads: int, on_bytes: Callable[[int], None]) -> VerifiedCheckpoint:
    """Read every part and compare every checksum. `on_bytes` gets the bytes read since its last call, from several
    threads.

    Raises CheckpointMismatch if another version wrote it, CheckpointError if it cannot be read, so nothing is known.
    """
    try:
        manifest = read_manifest(folder)
    except DamagedCheckpoint as error:
        size = folder.sizes().get(MANIFEST, 0)
        return VerifiedCheckpoint(
            damage=(Damage(file=MANIFEST, begin=0, end=size, what=str(error)),), checked_bytes=size
        )
    cut = list(_cut(folder, manifest))
    whole = [part for part in manifest.parts if part.name not in {damage.file for damage in cut}]
    with ThreadPoolExecutor(threads) as pool:
        running: list[Future[list[Damage]]] = [pool.submit(_verify_part, folder, part, on_bytes) for part in whole]
        try:
            found = [damage for future in running for damage in future.result()]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return VerifiedCheckpoint(
        damage=(*cut, *found),
        checked_bytes=sum(part.size for part in whole),
        has_unsummed_manifest=manifest.format == UNSUMMED_FORMAT,
    )


def _cut(folder: Folder, manifest: CheckpointManifest) -> Iterator[Damage]:
    sizes, parts = folder.sizes(), {part.name: part for part in manifest.parts}
    for name, problem in missing_or_cut(folder, manifest):
        size, wanted = sizes.get(name, 0), parts[name].size
        yield Damage(file=name, begin=min(size, wanted), end=max(size, wanted), what=problem)


def _verify_part(folder: Folder, part: CheckpointPart, on_bytes: Callable[[int], None]) -> list[Damage]:
    try:
        index = folder.read(part.name, part.index_offset, part.size - part.index_offset)
        entries = decode_index(part, index)
    except DamagedCheckpoint as error:
        on_bytes(part.size)
        return [Damage(file=part.name, begin=part.index_offset, end=part.size, what=str(error))]
    on_bytes(index.nbytes)
    checksums = _Checksums(entries)
    for begin in range(0, part.index_offset, BLOCK_BYTES):
        try:
            block = folder.read(part.name, begin, min(BLOCK_BYTES, part.index_offset - begin))
        except DamagedCheckpoint as error:
            return [Damage(file=part.name, begin=begin, end=part.size, what=str(error))]
        checksums.update(begin, block)
        on_bytes(block.nbytes)
    return list(_joined(part.name, checksums.bad()))


class _Checksums:
    """Checksums of entries that arrive in blocks, in the order of the file."""

    def __init__(self, entries: tuple[ValueEntry, ...]) -> None:
        self._entries = sorted(entries, key=lambda entry: entry.offset)
        self._sums = [0] * len(entries)
        self._next = 0

    def update(self, begin: int, block: memoryview) -> None:
        end = begin + block.nbytes
        for place in range(self._next, len(self._entries)):
            entry = self._entries[place]
            if entry.offset >= end:
                break
            piece = block[max(entry.offset - begin, 0) : entry.offset + entry.nbytes - begin]
            self._sums[place] = zlib.crc32(piece, self._sums[place])
            if entry.offset + entry.nbytes <= end:
                self._next = place + 1

    def bad(self) -> list[tuple[int, ValueEntry]]:
        summed = enumerate(zip(self._entries, self._sums, strict=True))
        return [(place, entry) for place, (entry, crc32) in summed if crc32 != entry.crc32]


def _joined(name: str, bad: list[tuple[int, ValueEntry]]) -> Iterator[Damage]:
    """Join neighbours into one range, since a lost block of a disk damages them together."""
    for _, group in groupby(enumerate(bad), key=lambda numbered: numbered[1][0] - numbered[0]):
        run = [entry for _, (_, entry) in group]
        keys = run[0].key if len(run) == 1 else f"{run[0].key} to {run[-1].key} ({len(run)} entries)"
        yield Damage(file=name, begin=run[0].offset, end=run[-1].offset + run[-1].nbytes, what=keys)
