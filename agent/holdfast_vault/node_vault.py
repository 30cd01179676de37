"""The vault of a node without its connections: its shards, and the work for its ranks, its agent and other vaults."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Collection
from pathlib import Path

import structlog

from holdfast.node.users.job_user import JobUser
from holdfast.node.vault.messages import Assign, PersistTo, SealedStep, Serve, ShardName
from holdfast.node.vault.seals import CHUNK_BYTES
from holdfast.orders.backup import BackupOrder
from holdfast.settings.network import NetworkPolicy
from holdfast_vault.assignments import Assignment, Assignments, JobId, job_of
from holdfast_vault.cuts import Cut
from holdfast_vault.disk.persister import Persister
from holdfast_vault.interruptions import Interruptions
from holdfast_vault.last_steps import LastSteps
from holdfast_vault.limits import VaultLimits
from holdfast_vault.notices import Notices
from holdfast_vault.pacing import Pacing, TokenBucket
from holdfast_vault.peers.fetching.fetcher import Fetcher
from holdfast_vault.peers.peer_messages import Hello
from holdfast_vault.peers.peer_server import PeerServer
from holdfast_vault.peers.peer_session import PeerSession
from holdfast_vault.peers.receptions import Receptions
from holdfast_vault.peers.sending.senders import Senders
from holdfast_vault.peers.trust import PeerTrust
from holdfast_vault.rank_ledgers import RankLedgers
from holdfast_vault.shelf.pins import Pins, pins_of
from holdfast_vault.shelf.segments import Segment
from holdfast_vault.shelf.shard_checks import ShardChecks
from holdfast_vault.shelf.shelf import Shelf, ShelfContents
from holdfast_vault.shelf.shelves import FormerShards, Shelves
from holdfast_vault.shelf.wanted_steps import KEPT_MIN
from holdfast_vault.succession.adoption import drop_damaged, segments_of
from holdfast_vault.succession.handover import Handover
from holdfast_vault.succession.succession_records import Inheritance

log = structlog.get_logger(__name__)


class NotTheirs(Exception):
    """A rank asked for the shards of a job that another user has, or that the node does not run."""


class NodeVault:
    """One job's shards at a time, and everything that happens to them."""

    def __init__(
        self,
        directory: Path,
        address: str,
        limits: VaultLimits,
        user: JobUser | None = None,
        network: NetworkPolicy | None = None,
        listening: socket.socket | None = None,
        handover: Handover | None = None,
        ranks_group: int | None = None,
    ) -> None:
        """`user` is that of ranks, None if it is ours, or each job has its own; those are in `ranks_group`.

        `listening` is the socket for other vaults, None for a new one.
        """
        self.trust = PeerTrust(network)
        self._handover = handover
        self._ranks_group = ranks_group
        self._serves: JobId | None = None
        self._owner: tuple[JobId, int] | None = None
        self.notices = Notices()
        self._shelves = Shelves(limits.memory_bytes, limits.memory_steps, self._left, self._changed, self._overwritten)
        self._receptions = Receptions()
        self._assignments = Assignments()
        self.interruptions = Interruptions(self._assignments, self.notices)
        self.ledgers = RankLedgers()
        self.checks = ShardChecks()
        self._last_steps = LastSteps(self._shelves.of)
        bucket = TokenBucket(limits.peer_bytes_per_s, CHUNK_BYTES, time.monotonic())
        self.fetcher = Fetcher(self._shelves, self._assignments, self.notices)
        self._senders = Senders(self._shelves, self.notices, Pacing(bucket, self.ledgers.are_in_collective))
        self.persister = Persister(
            self._shelves, self._assignments, self.ledgers, self.notices, limits.persist_bytes_per_s, user
        )
        self.peers = PeerServer(directory, address, self._token_of, self._serve_peer, self.trust, listening)

    def join(self, name: ShardName, uid: int = os.geteuid(), gid: int = os.getegid()) -> Shelf:
        """Return the shelf of a rank that has come to life on this node; its user is the kernel's word.

        Raises NotTheirs: it is of another job than the agent runs, or the shards belong to another user's job.
        """
        job = job_of(name)
        if self._serves is not None and job != self._serves:
            raise NotTheirs(f"this node serves {_shown(self._serves)}, not {_shown(job)}")
        if self._ranks_group is not None:
            if uid != os.geteuid() and self._owner is not None and self._owner[0] == job and self._owner[1] != uid:
                raise NotTheirs(f"user {uid} is not that of job {job.name}")
            self._owner = job, uid
            self.persister.user = self._user_of(uid, gid, self._ranks_group)
        self._serve_job(job)
        return self._shelves.of(name)

    def serve(self, order: Serve) -> None:
        """Follow the agent, which knows the job that the node runs: a rank of another one must not join."""
        self._serves = JobId(order.job, order.submitted_ms, order.world_size)
        if self._handover is not None:
            self._handover.serves(order)

    def _user_of(self, uid: int, gid: int, group: int) -> JobUser | None:
        """Return the user who writes steps to the disk: a rank must not have the vault write where it may not."""
        if uid == os.geteuid():
            return None
        return JobUser(name=str(uid), uid=uid, gid=gid, home="/", groups=(group,))

    def sealed(self, name: ShardName, sealed: SealedStep, to: PersistTo | None) -> None:
        """Take a rank's sealed step: send it to the keeper, and to the disk if `to` names one."""
        log.debug("sealed", job=name.job, rank=name.rank, step=sealed.step)
        shelf = self._shelves.of(name)
        shelf.newest_made = sealed
        if self._shelves.former is not None and len(shelf.steps()) >= KEPT_MIN:
            self._shelves.drop_former()
        before = self._last_steps.take(name, sealed)
        self._senders.sealed(name, sealed, before)
        if to is not None:
            self.persister.sealed(name, sealed, before, to)

    @property
    def former(self) -> FormerShards | None:
        """Steps here that the job kept while it had another number of ranks; None: there are none."""
        return self._shelves.former

    def go_on(self, name: ShardName, generation: int, sealed: SealedStep | None, *, from_disk: bool = False) -> None:
        """Cut the steps of a rank that continues from `sealed` (None: no step), here and wherever it has copies."""
        shelf = self._shelves.of(name)
        kept = None if from_disk else sealed
        behind = shelf.past_of(sealed, self.fetcher.elsewhere(name))
        cut = Cut(generation=generation, at_ns=time.time_ns(), kept=kept, behind=behind)
        shelf.keep_only(cut)
        self._last_steps.went_on(name, generation, sealed)
        self._senders.went_on(name, cut)

    def certified_up_to(self, name: ShardName) -> int | None:
        """Return the newest certified step of a rank's job that matters for the steps on the disk."""
        assignment = self._assignments.of_job(job_of(name))
        return assignment.order.certified_up_to if assignment is not None else None

    def assign(self, assignment: Assignment) -> str | None:
        """Follow the agent's assignment; if it is an old one, return the reason why not."""
        reason = self._assignments.put(assignment)
        if reason is None:
            self._serve_job(assignment.job)
            if self._handover is not None:
                self._handover.assigned(Assign(order=assignment.order, token=assignment.token))
            self._shelves.pin(pins_of(assignment.order))
            self._senders.assign(assignment)
        return reason

    def adopt(self, inheritance: Inheritance) -> None:
        """Go on with what the vault before had. Its data are compared in the background, and whenever one is used."""
        for name, cut, sent, shards in inheritance.shelves():
            self._serve_job(job_of(name))
            shelf = self._shelves.adopt(name, segments_of(name, shards), cut, sent)
            steps = shelf.steps()
            log.info("steps of the vault before are taken over", of=str(name), steps=[each.step for each in steps])
            threading.Thread(target=drop_damaged, args=(shelf, name, steps, self.notices), daemon=True).start()
        if inheritance.serves is not None:
            self.serve(inheritance.serves)
        if inheritance.assigned is not None:
            self.assign(Assignment(inheritance.assigned.order, inheritance.assigned.token))

    def close(self) -> None:
        self.peers.close()
        self._senders.close()
        self.persister.close()
        self._shelves.close()

    def _changed(self, name: ShardName, contents: ShelfContents) -> None:
        if self._handover is not None:
            self._handover.shelf(name, *contents)

    def _overwritten(self, name: ShardName, segment: Segment) -> None:
        if self._handover is not None:
            self._handover.withdraw(name, segment)

    def _serve_job(self, job: JobId) -> None:
        if self._shelves.serve(job):
            self._shelves.pin(Pins())
            self._receptions.clear()
            self.persister.clear()
            self._last_steps.clear()
            self.ledgers.clear()
            self.peers.end_unknown(lambda hello: (hello.job, hello.submitted_ms) == (job.name, job.submitted_ms))

    def _left(self, names: Collection[ShardName]) -> Collection[ShardName]:
        """Return the ranks whose copies are kept elsewhere by now: the present order does not name them, and all ranks
        of this node have sent a step of this generation. As far as this node can know, other nodes have sent theirs
        too.
        """
        present = self._assignments.present
        if present is None:
            return ()
        order = present.order
        own = {present.shard_of(rank) for rank in order.ranks}
        if not all(self._has_sent(name, order) for name in own):
            return ()
        left = [name for name in names if name not in own and not order.is_kept_here(name.rank)]
        for name in left:
            self._receptions.drop_if_idle(name)
        return left

    def _has_sent(self, name: ShardName, order: BackupOrder) -> bool:
        shelf = self._shelves.of(name)
        # A node without a keeper sends nothing: there the sealed steps alone count.
        through = shelf.sent() if order.keeper is not None else shelf.steps()
        return any(each.generation >= order.generation for each in through)

    def _token_of(self, hello: Hello) -> str | None:
        present = self._assignments.present
        if present is None or (present.order.job, present.order.submitted_ms) != (hello.job, hello.submitted_ms):
            return None
        return present.token or None

    def _serve_peer(self, link: socket.socket, hello: Hello) -> None:
        token = self._token_of(hello)
        if token is not None:
            PeerSession(link, hello, token, self._shelves, self._receptions, self.notices, self._generation).run()

    def _generation(self) -> int:
        present = self._assignments.present
        return present.order.generation if present is not None else 0


def _shown(job: JobId) -> str:
    return f"job {job.name} of {job.world_size} ranks, submitted at {job.submitted_ms} ms"
