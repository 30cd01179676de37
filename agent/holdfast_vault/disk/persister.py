"""Writing of one step in every few from this node's memory to the disk, at a lower priority than training and without
delaying it.

The vault decides and holds the memory, and a separate process writes (`persist_writer`). It writes one step at a time:
so at most one segment of each rank waits for a slow disk, and steps that become due meanwhile are left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress

import structlog

from holdfast.node.users.job_user import JobUser
from holdfast.node.vault.messages import DamageNotice, NotPersisted, Persisted, PersistTo, SealedStep, ShardName
from holdfast_vault.assignments import Assignment, Assignments, job_of
from holdfast_vault.disk.persist_plan import GatheredStep, PersistTurn, turn_of
from holdfast_vault.disk.persist_task import (
    PersistOutcome,
    PersistTask,
    SealBroken,
    ShardsWritten,
    ShardToWrite,
    StepDropped,
    StepPublished,
    TaskSuperseded,
    encode_task,
    from_lines,
)
from holdfast_vault.notices import Notices
from holdfast_vault.rank_ledgers import RankLedgers
from holdfast_vault.shelf.segments import SealedContents, Segment
from holdfast_vault.shelf.shelf import Shelf
from holdfast_vault.shelf.shelves import Shelves

END_S = 10.0
"""For a process that is killed. Where a mount hangs it ends only with that; it does nothing any more then."""
NO_MEMORY = "its memory was needed for the next step: there is no room for one more of each rank, see memory_bytes"
NOT_KEPT = "not all ranks of this node have kept it"
LEFT_BEHIND = "the job went back to before it"

log = structlog.get_logger(__name__)


class _HeldShard:
    """A shard that stays in memory until it is written."""

    def __init__(self, name: ShardName, shelf: Shelf, segment: Segment, contents: SealedContents) -> None:
        self.name = name
        self._segment = segment
        self.contents = contents
        self._shelf = shelf

    def shard(self) -> ShardToWrite:
        return ShardToWrite(
            rank=self.name.rank,
            descriptor=self._segment.descriptor,
            nbytes=self._segment.nbytes,
            index=self.contents.index,
            objects=self.contents.objects,
            seal=self.contents.seal,
        )

    def let_go(self) -> None:
        self._shelf.let_go(self._segment)


class _StepInWriting:
    """A step that is being written, or was and is waited for."""

    def __init__(self, sealed: SealedStep, held: list[_HeldShard]) -> None:
        self.sealed = sealed
        self.names = {it.name.rank: it.name for it in held}
        self.held = held
        # What is let go of in this moment must not become other memory before the process has its descriptor.
        self.starting_with = list(held)
        self.process: subprocess.Popen[bytes] | None = None
        self.is_ended = False

    def let_go(self) -> None:
        while self.held:
            self.held.pop().let_go()

    @property
    def name(self) -> ShardName:
        return self.names[min(self.names)]


class Persister:
    def __init__(
        self,
        shelves: Shelves,
        assignments: Assignments,
        ledgers: RankLedgers,
        notices: Notices,
        bytes_per_s: float = 0.0,
        user: JobUser | None = None,
    ) -> None:
        """`user` is that of ranks, None if it is ours: the directory is theirs, and links in it must not lead us."""
        self.user = user
        self._shelves = shelves
        self._assignments = assignments
        self._ledgers = ledgers
        self._notices = notices
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._gathered: GatheredStep | None = None
        self._held: dict[ShardName, _HeldShard] = {}
        self._writing: _StepInWriting | None = None
        self._publishing: _StepInWriting | None = None
        self._left_out: SealedStep | None = None
        self._is_closed = False

    def sealed(self, name: ShardName, sealed: SealedStep, before: int | None, to: PersistTo) -> None:
        """Take a step that a rank has sealed, and the one before it (`LastSteps`). This must not wait, because the
        rank's next save waits for it.
        """
        with self._lock:
            assignment = self._assignments.of_job(job_of(name))
            if assignment is None or self._is_closed or name.rank not in assignment.order.ranks:
                return
            if sealed == self._left_out:
                return  # with another rank of this node
            order = assignment.order
            is_busy, is_due = self._writing is not None, order.is_persisted(sealed.step, before)
            self._gathered, what = turn_of(self._gathered, is_busy, name.rank, sealed, order.ranks, is_due)
            match what:
                case PersistTurn.NOT_DUE:
                    return
                case PersistTurn.LEFT_OUT:
                    assert self._writing is not None
                    self._leave_out(name, sealed, f"step {self._writing.sealed.step} is still being written")
                case PersistTurn.WAITS:
                    self._hold(name, sealed)
                case PersistTurn.BEGINS:
                    self._hold(name, sealed)
                    if len(self._held) < len(order.ranks):
                        self._let_go()
                        self._leave_out(name, sealed, LEFT_BEHIND)
                    else:
                        self._begin(assignment, sealed, to)

    def give_way(self) -> bool:
        """Stop writing, because a save needs its memory. Return False if no memory is held for writing."""
        with self._lock:
            step = self._writing
            held = [*self._held.values(), *(step.held if step is not None else ())]
            self._give_up(NO_MEMORY)
            if step is not None and step.held:
                _kill(step)
                step.let_go()
                self._notices.publish(NotPersisted(name=step.name, sealed=step.sealed, reason=NO_MEMORY))
        return bool(held)

    def clear(self) -> None:
        """Start on another job. The step of the previous job that is being written is completed."""
        with self._lock:
            self._let_go()
            self._gathered = self._left_out = None

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._let_go()
            for step in (self._writing, self._publishing):
                if step is not None:
                    _kill(step)  # and not waited for: a mount that hangs lets it end when it will

    # Under the lock:

    def _hold(self, name: ShardName, sealed: SealedStep) -> None:
        if any(held.contents.sealed != sealed for held in self._held.values()):
            self._give_up(NOT_KEPT)
        shelf = self._shelves.of(name)
        segment = shelf.hold(sealed)
        if segment is None:
            return
        contents = segment.contents
        if contents is None:
            shelf.let_go(segment)  # the job left it behind in this moment
            return
        self._held[name] = _HeldShard(name, shelf, segment, contents)

    def _let_go(self) -> None:
        for held in self._held.values():
            held.let_go()
        self._held.clear()

    def _begin(self, assignment: Assignment, sealed: SealedStep, to: PersistTo) -> None:
        held = sorted(self._held.values(), key=lambda it: it.name.rank)
        self._held = {}
        step = _StepInWriting(sealed, held)
        task = self._task(step, to, assignment.order.certified_up_to)
        try:
            threading.Thread(target=self._run, args=(step, self._publishing, task), daemon=True).start()
        except RuntimeError as error:
            step.let_go()
            self._leave_out(step.name, sealed, f"no thread can be started to write it: {error}")
        else:
            self._writing, self._publishing = step, None

    def _task(self, step: _StepInWriting, to: PersistTo, certified_up_to: int | None) -> PersistTask:
        name = step.name
        return PersistTask(
            to=to,
            job=name.job,
            submitted_ms=name.submitted_ms,
            generation=step.sealed.generation,
            step=step.sealed.step,
            world_size=name.world_size,
            shards=tuple(it.shard() for it in step.held),
            ledgers=tuple(self._ledgers.path(name) for name in step.names.values()),
            bytes_per_s=self._bytes_per_s,
            certified_up_to=certified_up_to,
            user=self.user,
        )

    def _give_up(self, reason: str) -> None:
        held = next(iter(self._held.values()), None)
        self._let_go()
        if held is not None:
            self._leave_out(held.name, held.contents.sealed, reason)

    def _leave_out(self, name: ShardName, sealed: SealedStep, reason: str) -> None:
        self._left_out = sealed
        self._notices.publish(NotPersisted(name=name, sealed=sealed, reason=reason))

    # On a thread of the step's own:

    def _run(self, step: _StepInWriting, before: _StepInWriting | None, task: PersistTask) -> None:
        if before is not None:
            _end(before)  # what it waits for is looked at again by the one that comes
        try:
            problem = self._follow(step, task)
        except OSError as error:
            problem = f"no process can be started to write it: {error.strerror}"
        finally:
            self._is_written(step, is_over=True)
        if problem is not None:
            log.error("a step is not on the disk", of=str(step.name), step=step.sealed.step, reason=problem)
            self._notices.publish(NotPersisted(name=step.name, sealed=step.sealed, reason=problem))

    def _follow(self, step: _StepInWriting, task: PersistTask) -> str | None:
        """Have a process do the task. Return what was wrong with the process; None if it ended as it should."""
        command = (sys.executable, "-P", "-m", "holdfast_vault.disk", str(os.getpid()))
        descriptors = [shard.descriptor for shard in task.shards]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=descriptors) as process:
            step.starting_with.clear()
            with self._lock:
                step.process = process
                if self._is_closed or step.is_ended:
                    _kill(step)
            assert process.stdin is not None and process.stdout is not None
            with suppress(BrokenPipeError):
                process.stdin.write(encode_task(task))
                process.stdin.close()
            for outcome in from_lines(process.stdout):
                self._take_outcome(step, outcome)
        if step.is_ended or not process.returncode:
            return None
        return f"the process that wrote it ended with {process.returncode}; see the vault's log"

    def _take_outcome(self, step: _StepInWriting, outcome: PersistOutcome) -> None:
        name, generation = step.name, step.sealed.generation
        # Before the notice: its receiver may have the next step written.
        self._is_written(step, is_over=False)
        match outcome:
            case ShardsWritten():
                log.info("written to the disk", job=name.job, step=step.sealed.step)
            case StepPublished() as published:
                log.info("published", job=name.job, step=published.step, path=published.path)
                self._notices.publish(
                    Persisted(
                        name=name,
                        sealed=SealedStep(generation=generation, step=published.step),
                        path=published.path,
                        nbytes=published.nbytes,
                        took_s=published.took_s,
                        steps=published.steps,
                    )
                )
            case StepDropped(step=number, reason=reason):
                sealed = SealedStep(generation=generation, step=number)
                log.warning("a step is not on the disk", job=name.job, step=number, reason=reason)
                self._notices.publish(NotPersisted(name=name, sealed=sealed, reason=reason))
            case SealBroken(rank=rank, detail=detail):
                self._notices.publish(DamageNotice(name=step.names[rank], sealed=step.sealed, detail=detail))
            case TaskSuperseded(reason=reason):
                log.info("nothing more is written of this generation", job=name.job, reason=reason)

    def _is_written(self, step: _StepInWriting, *, is_over: bool) -> None:
        """Release the memory of a written step: the next step that is due may be written."""
        with self._lock:
            if self._writing is step:
                self._writing = None
                self._publishing = step
                step.let_go()
            if is_over and self._publishing is step:
                self._publishing = None


def _kill(step: _StepInWriting) -> None:
    step.is_ended = True
    if step.process is not None:
        with suppress(ProcessLookupError):
            step.process.kill()


def _end(step: _StepInWriting) -> None:
    _kill(step)
    if step.process is not None:
        with suppress(subprocess.TimeoutExpired):
            step.process.wait(END_S)
