"""The assignment of this node's vault: the newest backup order that its agent handed over."""

from __future__ import annotations

import threading
from typing import NamedTuple

from holdfast.node.vault.messages import ShardName
from holdfast.orders.backup import BackupOrder
from holdfast_vault.peers.trust import PeerTrust


class JobId(NamedTuple):
    """A submission of a job in one size: what shards of different ranks have in common."""

    name: str
    submitted_ms: int
    world_size: int


class Assignment(NamedTuple):
    """An order, and how the vaults of the job know each other."""

    order: BackupOrder
    token: str
    """The job's; "": it has none, and its vaults do not talk."""
    trust: PeerTrust = PeerTrust()

    @property
    def job(self) -> JobId:
        return JobId(self.order.job, self.order.submitted_ms, self.order.world_size)

    def shard_of(self, rank: int) -> ShardName:
        name, submitted_ms, world_size = self.job
        return ShardName(job=name, submitted_ms=submitted_ms, world_size=world_size, rank=rank)


def job_of(name: ShardName) -> JobId:
    return JobId(name.job, name.submitted_ms, name.world_size)


def refusal(present: BackupOrder | None, new: BackupOrder) -> str | None:
    """Return why a new order does not replace the present one; None if it does. Between different jobs the later
    arrival wins, because a job submitted earlier may have waited for its nodes.
    """
    if present is None or present.job != new.job:
        return None
    if new.age >= present.age:
        return None
    return (
        f"order {new.number} of generation {new.generation} is older than order {present.number} of generation "
        f"{present.generation} of job {present.job}, which this vault goes by"
    )


class Assignments:
    """The present assignment, for all threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._present: Assignment | None = None

    @property
    def present(self) -> Assignment | None:
        """The newest; None before the first."""
        return self._present

    def put(self, new: Assignment) -> str | None:
        """Replace the present one; return the reason if the new one is older."""
        with self._changed:
            reason = refusal(self._present.order if self._present else None, new.order)
            if reason is None:
                self._present = new
                self._changed.notify_all()
            return reason

    def of_job(self, job: JobId) -> Assignment | None:
        present = self._present
        return present if present is not None and present.job == job else None

    def wait_for(self, job: JobId, generation: int, timeout_s: float) -> Assignment | None:
        """Return this job's, of this generation or a later one; None if none comes in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_of(job, generation), timeout_s)
            return self._present if self._is_of(job, generation) else None

    def wait_until_frozen(self, job: JobId, timeout_s: float) -> None:
        """Wait for an order of this job that names a frozen step; return as well if the job is another, or in time."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_unfrozen(job), timeout_s)

    def _is_unfrozen(self, job: JobId) -> bool:
        present = self.of_job(job)
        return present is not None and present.order.frozen_step is None

    def _is_of(self, job: JobId, generation: int) -> bool:
        present = self.of_job(job)
        return present is not None and present.order.generation >= generation
