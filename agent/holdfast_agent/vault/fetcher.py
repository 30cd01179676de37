"""Brings shards back to the node that needs them: those it lost with its memory, those that never were here.

One fetch serves all who ask for the same shard (TRANSOM §IV-C.2). It is not paced: the job stands still until then.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

import structlog

from holdfast.backup_orders import VaultAddress
from holdfast.seals import damaged_chunks
from holdfast.vault_wire import Damaged, Fetched, SealedStep, ShardName
from holdfast_agent.vault.assignments import Assignment, Assignments, job_of
from holdfast_agent.vault.chunk_sets import unpacked
from holdfast_agent.vault.discovery import Found, find
from holdfast_agent.vault.notices import Notices
from holdfast_agent.vault.peer_wire import fits
from holdfast_agent.vault.pull import NotFetched, Pull, Shard, whole_of
from holdfast_agent.vault.replicas import holders_of
from holdfast_agent.vault.segments import Contents, Segment
from holdfast_agent.vault.shared_work import SharedWork
from holdfast_agent.vault.shelf import Shelf
from holdfast_agent.vault.shelves import Shelves

ASSIGNMENT_WAIT_S = 2.0
"""A rank may be quicker than the order that says where its shards are."""

_NONE: frozenset[int] = frozenset()

log = structlog.get_logger(__name__)


class Fetcher:
    """What this node gets from others."""

    def __init__(self, shelves: Shelves, assignments: Assignments, notices: Notices) -> None:
        self._shelves = shelves
        self._assignments = assignments
        self._notices = notices
        self._searches: SharedWork[Assignment, Found] = SharedWork()
        self._fetches: SharedWork[tuple[ShardName, SealedStep], None] = SharedWork()
        self._found: tuple[Assignment, Found] | None = None

    def steps(self, name: ShardName, generation: int, at_most: int | None = None) -> Sequence[SealedStep]:
        """What is here or can be had of a rank, newest first.

        The newest, or the newest of those `at_most`, is fetched without being asked for.
        """
        assignment = self._assignments.wait_for(job_of(name), generation, ASSIGNMENT_WAIT_S)
        if assignment is None:
            log.warning("no order says who may have this rank's shards", of=str(name), generation=generation)
            return self._shelves.of(name).steps()
        holders = self._search(assignment).holders(name)
        here = self._shelves.of(name).steps()
        newest = max((each for each in holders if at_most is None or each.step <= at_most), default=None)
        if newest is not None and not self._shelves.of(name).has_whole(newest):
            threading.Thread(target=self._prefetch, args=(name, newest), daemon=True).start()
        return sorted({*holders, *here}, reverse=True)

    def fetch(self, name: ShardName, sealed: SealedStep) -> None:
        """See to it that this shard is on its shelf.

        Raises:
            NotFetched: it cannot be had.
        """
        self._fetches.do((name, sealed), partial(self._fetch, name, sealed))

    def repair(self, name: ShardName, sealed: SealedStep) -> None:
        """Replace what is damaged of a shard that is here.

        Raises:
            NotFetched: it cannot be; the shard is not here any more.
        """
        self._fetches.do((name, sealed), partial(self._repair, name, sealed))

    def _prefetch(self, name: ShardName, sealed: SealedStep) -> None:
        try:
            self.fetch(name, sealed)
        except NotFetched as error:
            log.warning("a shard was not fetched ahead", of=str(name), sealed=str(sealed), reason=str(error))

    def _search(self, assignment: Assignment) -> Found:
        found = self._searches.do(assignment, partial(find, assignment))
        self._found = assignment, found
        for name, cut in found.cuts.items():
            self._shelves.of(name).keep_only(cut)
        return found

    def _sources(self, name: ShardName, sealed: SealedStep) -> tuple[Assignment, Sequence[VaultAddress]]:
        assignment = self._assignments.of_job(job_of(name))
        if assignment is None:
            raise NotFetched("no order says who may have it")
        last = self._found
        sources = last[1].holders(name).get(sealed, ()) if last is not None and last[0] == assignment else ()
        return assignment, sources or self._search(assignment).holders(name).get(sealed, ())

    def _fetch(self, name: ShardName, sealed: SealedStep) -> None:
        shelf = self._shelves.of(name)
        with shelf.holding(sealed) as held:
            if held is not None and not held[0].absent:
                return
            assignment, sources = self._sources(name, sealed)
            started = time.monotonic()
            contents, absent, here = None, _NONE, None
            if held is not None:
                # This node kept the rank's copies before it got the rank, and replicas sent a part of them.
                here, contents = held
                absent = here.absent
            else:
                whole, sources = whole_of(name, sealed, sources, assignment)
                contents = Contents(sealed=sealed, index=whole.index, objects=whole.objects, seal=whole.seal)
                absent = unpacked(whole.absent, whole.seal.nbytes)
            given = self._fill(shelf, name, contents, here, absent, sources, assignment)
        took_s = time.monotonic() - started
        source = given.most_common(1)[0][0].node if given else assignment.order.node
        self._notices.publish(
            Fetched(name=name, sealed=sealed, source=source, nbytes=contents.seal.nbytes, took_s=took_s)
        )

    def _fill(
        self,
        shelf: Shelf,
        name: ShardName,
        contents: Contents,
        here: Segment | None,
        absent: frozenset[int],
        sources: Sequence[VaultAddress],
        assignment: Assignment,
    ) -> Counter[VaultAddress]:
        """Bring a shard to a segment of its own; `here` has all of it but the `absent` chunks, if it has it."""
        seal = contents.seal
        if absent:
            sources = tuple(dict.fromkeys((*sources, *holders_of(assignment, name.rank))))
        try:
            segment = shelf.claim(seal.nbytes)
        except OSError as error:
            raise NotFetched(f"there is no room for {seal.nbytes} bytes: {error.strerror}") from error
        try:
            numbers: Sequence[int] = range(len(seal.chunks))
            if here is not None:
                segment.memory[:] = here.memory
                numbers = damaged_chunks(seal, segment.memory)
            shard = Shard(name, contents.sealed, seal, assignment.order.alike_of(name.rank))
            given = self._pull(shard, segment, numbers, sources, assignment)
        except NotFetched:
            shelf.put_back(segment)
            raise
        if not shelf.seal(segment, contents):
            raise NotFetched("the job has left it behind")
        return given

    def _pull(
        self,
        shard: Shard,
        segment: Segment,
        numbers: Sequence[int],
        sources: Sequence[VaultAddress],
        assignment: Assignment,
    ) -> Counter[VaultAddress]:
        given: Counter[VaultAddress] = Counter()
        tried: set[VaultAddress] = set()
        while True:
            pull = Pull(shard, segment, numbers, sources, assignment, self._notices)
            try:
                return given + pull.run()
            except NotFetched:
                # Others may have been too slow to be found, or have it since; and replicas may have the same.
                tried.update(sources)
                holders = self._search(assignment).holders(shard.name).get(shard.sealed, ())
                others = (*holders, *holders_of(assignment, shard.name.rank))
                sources, numbers = [source for source in others if source not in tried], pull.missing
                if not sources:
                    raise

    def _repair(self, name: ShardName, sealed: SealedStep) -> None:
        shelf = self._shelves.of(name)
        with shelf.holding(sealed) as held:
            if held is None:
                raise NotFetched("it is not here")
            segment, contents = held
            damaged = damaged_chunks(contents.seal, segment.memory)
            has_index = fits(contents.seal, contents.index, contents.objects)
            if has_index and not damaged:
                return
            detail = f"{len(damaged)} of {len(contents.seal.chunks)} chunks fail their checksum"
            self._notices.publish(
                Damaged(name=name, sealed=sealed, detail=detail if has_index else "its index fails its checksum")
            )
            try:
                if has_index:
                    assignment, sources = self._sources(name, sealed)
                    shard = Shard(name, sealed, contents.seal, assignment.order.alike_of(name.rank))
                    self._pull(shard, segment, damaged, sources, assignment)
                    return
            except NotFetched:
                shelf.forget(segment)
                raise
            shelf.forget(segment)
        self._fetch(name, sealed)
