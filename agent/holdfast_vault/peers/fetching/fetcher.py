"""Fetching of shards from other nodes: those that were lost with this node's memory, and those that were never here.

One fetch serves all that ask for the same shard (TRANSOM §IV-C.2). It is not paced, because the job waits for it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

import structlog

from holdfast.node.vault.messages import DamageNotice, Fetched, SealedStep, ShardName
from holdfast.node.vault.seals import damaged_chunks, is_seal_of
from holdfast.orders.backup import VaultAddress
from holdfast_vault.assignments import Assignment, Assignments, job_of
from holdfast_vault.cuts import survives
from holdfast_vault.notices import Notices
from holdfast_vault.peers.fetching.discovery import FoundShards, find_shards
from holdfast_vault.peers.fetching.pull import NotFetched, Pull, WantedShard, whole_of
from holdfast_vault.peers.sending.replicas import holders_of
from holdfast_vault.shared_work import SharedWork
from holdfast_vault.shelf.common_chunks import copy_from_shelves
from holdfast_vault.shelf.segments import SealedContents, Segment
from holdfast_vault.shelf.shelf import Shelf
from holdfast_vault.shelf.shelves import Shelves

ASSIGNMENT_WAIT_S = 2.0
"""A rank may ask before the order arrives that names the nodes with its shards."""

log = structlog.get_logger(__name__)


class Fetcher:
    def __init__(self, shelves: Shelves, assignments: Assignments, notices: Notices) -> None:
        self._shelves = shelves
        self._assignments = assignments
        self._notices = notices
        self._searches: SharedWork[Assignment, FoundShards] = SharedWork()
        self._fetches: SharedWork[tuple[ShardName, SealedStep], None] = SharedWork()
        self._found: tuple[Assignment, FoundShards] | None = None

    def steps(self, name: ShardName, generation: int, at_most: int | None = None) -> Sequence[SealedStep]:
        """Return a rank's steps that are here or can be fetched, newest first; fetch the newest (`at_most`) ahead."""
        assignment = self._assignments.wait_for(job_of(name), generation, ASSIGNMENT_WAIT_S)
        if assignment is None:
            log.warning("no order names vaults with shards of this rank", of=str(name), generation=generation)
            shelf = self._shelves.of(name)
            # A copy of which replicas have parts needs an order that names them.
            return [sealed for sealed in shelf.steps() if shelf.has_whole(sealed)]
        found = self._search(assignment).holders(name)
        shelf = self._shelves.of(name)
        # A node that has not learned of this rank's cut yet still offers what the cut left behind.
        holders = [sealed for sealed in found if survives(sealed, shelf.cut)]
        here = shelf.steps()
        newest = max((each for each in holders if at_most is None or each.step <= at_most), default=None)
        if newest is not None and not shelf.has_whole(newest):
            threading.Thread(target=self._prefetch, args=(name, newest, generation), daemon=True).start()
        return sorted({*holders, *here}, reverse=True)

    def elsewhere(self, name: ShardName) -> tuple[SealedStep, ...]:
        """Return a rank's steps that the last search found on other nodes; () if there was none for this job."""
        found = self._found
        return tuple(found[1].holders(name)) if found is not None and found[0].job == job_of(name) else ()

    def fetch(self, name: ShardName, sealed: SealedStep, generation: int) -> None:
        """Bring this shard to its shelf, for a rank of this generation. Raises NotFetched: it cannot be had."""
        self._fetches.do((name, sealed), partial(self._fetch, name, sealed, generation))

    def repair(self, name: ShardName, sealed: SealedStep, generation: int) -> None:
        """Replace what is damaged of a shard that is here. Raises NotFetched: it cannot be; the shard is removed."""
        self._fetches.do((name, sealed), partial(self._repair, name, sealed, generation))

    def _prefetch(self, name: ShardName, sealed: SealedStep, generation: int) -> None:
        try:
            self.fetch(name, sealed, generation)
        except NotFetched as error:
            log.warning("a shard was not fetched ahead", of=str(name), sealed=str(sealed), reason=str(error))

    def _search(self, assignment: Assignment) -> FoundShards:
        found = self._searches.do(assignment, partial(find_shards, assignment))
        self._found = assignment, found
        for name, cut in found.cuts.items():
            self._shelves.of(name).keep_only(cut)
        return found

    def _sources(self, name: ShardName, sealed: SealedStep) -> tuple[Assignment, Sequence[VaultAddress]]:
        assignment = self._assignments.of_job(job_of(name))
        if assignment is None:
            raise NotFetched("no order names the vaults that may have it")
        last = self._found
        sources = last[1].holders(name).get(sealed, ()) if last is not None and last[0] == assignment else ()
        return assignment, sources or self._search(assignment).holders(name).get(sealed, ())

    def _fetch(self, name: ShardName, sealed: SealedStep, generation: int) -> None:
        shelf = self._shelves.of(name)
        with shelf.holding(sealed) as held:
            if held is not None and not held[0].absent:
                return
            if held is not None:
                # This node kept copies of the rank before it got the rank: that order may be on its way.
                self._assignments.wait_for(job_of(name), generation, ASSIGNMENT_WAIT_S)
            assignment, sources = self._sources(name, sealed)
            started = time.monotonic()
            if held is not None:
                contents, is_shared = held[1], True
            else:
                whole, sources = whole_of(name, sealed, sources, assignment)
                contents = SealedContents(sealed=sealed, index=whole.index, objects=whole.objects, seal=whole.seal)
                is_shared = bool(whole.absent)
            if is_shared:
                sources = tuple(dict.fromkeys((*sources, *holders_of(assignment, name.rank))))
            given = self._fill(shelf, name, contents, sources, assignment)
        took_s = time.monotonic() - started
        givers = [source for source, _ in given.most_common(1)] or sources[:1]
        if givers:
            self._notices.publish(
                Fetched(name=name, sealed=sealed, source=givers[0].node, nbytes=contents.seal.nbytes, took_s=took_s)
            )

    def _fill(
        self,
        shelf: Shelf,
        name: ShardName,
        contents: SealedContents,
        sources: Sequence[VaultAddress],
        assignment: Assignment,
    ) -> Counter[VaultAddress]:
        """Bring all chunks of a shard together, from here and from others, and put it on its shelf."""
        seal = contents.seal
        try:
            segment = shelf.claim(seal.nbytes, by_chunks=True)
        except OSError as error:
            raise NotFetched(f"there is no room for {seal.nbytes} bytes: {error.strerror}") from error
        try:
            given = self._gather(
                WantedShard(name, contents.sealed, seal, assignment.order.alike_of(name.rank)),
                segment,
                range(len(seal.chunks)),
                sources,
                assignment,
            )
        except NotFetched:
            shelf.put_back(segment)
            raise
        if not shelf.seal(segment, contents):
            raise NotFetched("the job has left it behind")
        return given

    def _gather(
        self,
        shard: WantedShard,
        segment: Segment,
        numbers: Sequence[int],
        sources: Sequence[VaultAddress],
        assignment: Assignment,
    ) -> Counter[VaultAddress]:
        """Gather the chunks, first from this node's shelves of the rank and its replicas, then from other nodes."""
        names = [assignment.shard_of(rank) for rank in dict.fromkeys((shard.name.rank, *shard.alike))]
        try:
            missing = copy_from_shelves(self._shelves, names, shard.sealed, segment, shard.seal.chunks, numbers)
        except OSError as error:
            raise NotFetched(f"there is no memory for what is here of it: {error.strerror}") from error
        given: Counter[VaultAddress] = Counter()
        while missing:
            pull = Pull(shard, segment, missing, sources, assignment, self._notices)
            try:
                return given + pull.run()
            except NotFetched:
                # Others may have been too slow to be found, or have it since; and replicas may have the same.
                holders = self._search(assignment).holders(shard.name).get(shard.sealed, ())
                everybody = tuple(dict.fromkeys((*sources, *holders, *holders_of(assignment, shard.name.rank))))
                if set(everybody) <= set(sources):
                    raise
                # Also those from before: they may have what the new ones lack.
                given, sources, missing = given + pull.given, everybody, pull.missing
        return given

    def _repair(self, name: ShardName, sealed: SealedStep, generation: int) -> None:
        shelf = self._shelves.of(name)
        with shelf.holding(sealed) as held:
            if held is None:
                raise NotFetched("it is not here")
            if not held[0].absent and self._is_mended(shelf, name, *held):
                return
        self._fetch(name, sealed, generation)

    def _is_mended(self, shelf: Shelf, name: ShardName, segment: Segment, contents: SealedContents) -> bool:
        """Replace the damaged chunks of a shard. False: there is nothing to go by, and it is forgotten."""
        sealed, seal = contents.sealed, contents.seal
        damaged = damaged_chunks(seal, segment.memory)
        has_index = is_seal_of(seal, contents.index, contents.objects)
        if has_index and not damaged:
            return True
        detail = f"{len(damaged)} of {len(seal.chunks)} chunks fail their checksum"
        self._notices.publish(
            DamageNotice(name=name, sealed=sealed, detail=detail if has_index else "its index fails its checksum")
        )
        if not has_index:
            shelf.forget(segment)
            return False
        try:
            assignment, sources = self._sources(name, sealed)
            shard = WantedShard(name, sealed, seal, assignment.order.alike_of(name.rank))
            self._gather(shard, segment, damaged, sources, assignment)
        except NotFetched:
            shelf.forget(segment)
            raise
        return True
