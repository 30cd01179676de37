"""A job's checkpoints: where it can go on from at a start, and what its machines report of them.

Ranks choose the newest step that all of them find, in memory or on the disk, up to the limit of their order. The steps
of one job are on a disk that outlives all machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING, NamedTuple

from holdfast.events import CheckpointSaved, CopiesMeasured, ShardsFetched
from holdfast.orders.backup import BackupOrder
from holdfast_ckpt.plan.lead_time import lead_steps
from holdfast_proving.scenario.scenario import JobPlan
from holdfast_proving.world.memory import Memory

if TYPE_CHECKING:
    from holdfast_proving.world.machine import Machine
    from holdfast_proving.world.training import Run, Training

ON_DISK = 3
"""Steps that stay on the disk, besides the newest certified one."""
SHARD_BYTES = 1 << 30
REPORTED_WITHIN_S = 2.0
CERTIFIED_AFTER = 10
"""Sound steps that must follow before a step is certified, as `[corruption] certified_after_steps`."""
CYCLES_WATCHED = 3
"""Steps to go back to are named, made, copied and certified: so often before numbers go bad."""


def watch_s(step_s: float) -> float:
    """Return how long before bad numbers copies and certified steps are followed one by one."""
    return CYCLES_WATCHED * cycle_steps(step_s) * step_s


def cycle_steps(step_s: float) -> int:
    """Return about how many steps after a step to go back to the next one takes its place."""
    return (lead_steps(step_s) or 1) + CERTIFIED_AFTER + 3


def saved_every(plan: JobPlan) -> int:
    """Return how many steps a job that keeps nothing in memory makes from one step on the disk to the next."""
    return max(1, round(plan.disk_every_s / plan.step_s))


class Restore(NamedTuple):
    """One start of a job: what it went on from, and the truth about what there was."""

    at_s: float
    job: str
    generation: int
    step: int
    tier: str
    at_most: int | None
    made: int
    """Newest sound step of the job's line."""
    whole: int
    """Newest sound step that existed somewhere, in memory or on the disk."""
    newest_whole: int
    """Newest of the steps in memory, or on the disk, that all ranks found, without any limit."""
    was_watched: bool
    """The last run's certified steps and copies were followed for long enough to have one to go back to."""
    lost: tuple[str, ...]
    """Machines of the last run that had lost their memory since."""


class Checkpoints:
    """The checkpoints of one training."""

    def __init__(self, training: Training, machines: Mapping[str, Machine]) -> None:
        self._training = training
        self._machines = machines
        self._agenda = training.agenda
        self.memory = Memory(training, machines)
        self.on_disk: tuple[int, ...] = ()
        self.restores: list[Restore] = []
        self._members: tuple[str, ...] = ()
        """Machines of the run that began last, by node rank."""
        self._due: tuple[int, int] | None = None
        """Generation and step that go to the disk next."""
        self._watched_s: float | None = None
        """Since when every copy of a coming step is reported; None: quiet minutes are left out."""
        self._watched_until_s = 0.0
        self._was_watched = False

    @property
    def _keeps_in_memory(self) -> bool:
        return self._training.plan.keeps == "memory"

    @property
    def newest_on_disk(self) -> int:
        return max(self.on_disk, default=0)

    def submitted(self) -> None:
        """Begin a new life: what was in memory is gone."""
        self.memory.clear()
        self._members = ()

    # --- orders -----------------------------------------------------------------------------------

    def obey(self, order: BackupOrder) -> None:
        """Follow the order of the ckpt coordinator to one machine."""
        if not self._keeps_in_memory:
            return
        self.memory.obey(order.node, order)
        run = self._training.run
        is_on = self._machines[order.node].is_on
        if not is_on or run is None or not run.is_stepping or order.generation != run.generation:
            return
        if order.node_rank == 0:
            self._expect_save(run)
        if self._agenda.seconds < self._watched_until_s and order.coming_step is not None:
            self._report_copy(run, order.node, order.coming_step)

    # --- a run ------------------------------------------------------------------------------------

    def fetch_s(self, run: Run) -> float:
        """Return the time that machines need to fetch what they lack of the step that they will go on from."""
        step, tier, _ = self._choose(run)
        lacks = tier == "memory" and any(self.memory.holder(machine, run, step) != machine for machine in run.up)
        return self._training.plan.copy_s if lacks else 0.0

    def restore(self, run: Run) -> Restore:
        """Return what the run goes on from; leave later steps behind."""
        training, at_s = self._training, self._agenda.seconds
        step, tier, newest = self._choose(run)
        sound = training.newest if training.poisoned_from is None else min(training.newest, training.poisoned_from - 1)
        lost = tuple(machine for machine in self._members if self.memory.is_lost(machine))
        whole = max((it for it in {*self._whole(run), *self.on_disk} if it <= sound), default=0)
        restore = Restore(
            at_s,
            run.job,
            run.generation,
            step,
            tier,
            run.at_most,
            max(0, sound),
            whole,
            newest,
            self._was_watched,
            lost,
        )
        self.restores.append(restore)
        if self._keeps_in_memory:
            self._report_fetches(run, step, tier)
            self.memory.go_on(run, step)
        self.on_disk = tuple(it for it in self.on_disk if it <= step)
        self._members = run.nodes
        return restore

    def began(self, run: Run) -> None:
        """Expect the next step for the disk."""
        self._due = None
        self._expect_save(run)

    def halted(self, run: Run) -> None:
        """Note what is kept of the steps that were made."""
        at_s = self._agenda.seconds if self._watched_s is None else self._watched_s
        self._was_watched = self._agenda.seconds - at_s >= watch_s(self._training.plan.step_s)
        self._watched_s, self._watched_until_s = None, 0.0
        if self._keeps_in_memory:
            self.memory.update(run, run.up)

    def _choose(self, run: Run) -> tuple[int, str, int]:
        """Return step and tier to go on from, and the newest step without a limit."""
        disk, memory = frozenset(self.on_disk), frozenset[int]()
        if self._keeps_in_memory:
            memory = reduce(frozenset.intersection, self.memory.found(run).values())
        allowed = [it for it in memory | disk if run.at_most is None or it <= run.at_most]
        step = max(allowed, default=0)
        tier = "memory" if step in memory else "disk" if step in disk else "nothing"
        return step, tier, max(memory | disk, default=0)

    def _whole(self, run: Run) -> frozenset[int]:
        return self.memory.whole(run.up.values()) if self._keeps_in_memory else frozenset()

    # --- the disk ---------------------------------------------------------------------------------

    def _expect_save(self, run: Run) -> None:
        """Wait for the next step that goes to the disk."""
        every = self._disk_every(run)
        step = every and (self._training.step(run) // every + 1) * every
        if step and self._due != (run.generation, step):
            self._due = (run.generation, step)
            at_s = self._training.when(run, step) + self._training.plan.copy_s
            self._agenda.at(at_s, partial(self._save, run, step))

    def _disk_every(self, run: Run) -> int:
        plan = self._training.plan
        if plan.keeps == "nothing":
            return 0
        if plan.keeps == "disk":
            return saved_every(plan)
        order = self.memory.of(self._members[0]).order
        return order.persist_every if order is not None and order.generation == run.generation else 0

    def _save(self, run: Run, step: int) -> None:
        """Publish a step on the disk, unless the run ended before it was made."""
        training = self._training
        if self._due != (run.generation, step) or training.run is not run:
            return
        if training.step(run) < step:
            if run.is_stepping:
                self._agenda.at(training.when(run, step) + training.plan.copy_s, partial(self._save, run, step))
            return
        if not all(self._machines[machine].is_on for machine in self._members):
            return
        on_disk = sorted({*self.on_disk, step})
        spared = self._certified_on_disk(on_disk)
        self.on_disk = tuple(it for it in on_disk if it in on_disk[-ON_DISK:] or it == spared)
        self._machines[self._members[0]].tell(
            CheckpointSaved,
            job=run.job,
            generation=run.generation,
            step=step,
            path=f"/jobs/{run.job}",
            checkpoint_bytes=SHARD_BYTES * training.plan.nodes,
            took_s=training.plan.copy_s,
            steps=self.on_disk,
        )
        if run.is_stepping:
            self._expect_save(run)

    def _certified_on_disk(self, on_disk: list[int]) -> int | None:
        """Return the newest certified step on the disk, which the order has vaults spare."""
        order = self.memory.of(self._members[0]).order if self._keeps_in_memory else None
        if order is None or order.certified_up_to is None:
            return None
        return max((it for it in on_disk if it <= order.certified_up_to), default=None)

    # --- reports ----------------------------------------------------------------------------------

    def watch(self, run: Run, until_s: float) -> None:
        """Report copies from now on: something will go wrong soon."""
        if not self._keeps_in_memory:
            return
        if self._watched_s is None:
            self._watched_s = self._agenda.seconds
        self._watched_until_s = max(self._watched_until_s, until_s)
        for machine in run.nodes:
            order = self.memory.of(machine).order
            self._report_copy(run, machine, order.coming_step if order is not None else None)

    def _report_copy(self, run: Run, machine: str, coming: int | None) -> None:
        """Have a node report a step that its keeper has, once it has it. None: its first."""
        training = self._training
        order = self.memory.of(machine).order
        step = training.step(run) + max(1, order.every if order else 1) if coming is None else coming
        at_s = training.when(run, step) + training.plan.copy_s
        delay_s = self._machines[machine].noise.uniform(0.0, REPORTED_WITHIN_S)
        self._agenda.at(at_s + delay_s, partial(self._publish_copy, run, machine, coming))

    def _publish_copy(self, run: Run, machine: str, coming: int | None) -> None:
        here = self.memory.of(machine)
        order = here.order
        if not run.is_stepping or machine not in run.up or order is None or order.generation != run.generation:
            return
        if order.keeper is None or not self._machines[order.keeper.node].is_on:
            return
        has_missed = coming is None or not max(run.from_step + 1, here.pins_from) <= coming
        sent = self.memory.sent(run, order, self._training.step(run))
        if not sent:
            return
        self._machines[machine].tell(
            CopiesMeasured,
            job=run.job,
            generation=run.generation,
            step=sent[0],
            ranks=tuple(order.ranks),
            keeper=order.keeper.node,
            backup_bytes=SHARD_BYTES,
            took_s=self._training.plan.copy_s,
            coming_step=None if has_missed or coming not in _pinned(order) else coming,
        )

    def _report_fetches(self, run: Run, step: int, tier: str) -> None:
        if tier != "memory":
            return
        for machine, node_rank in run.up.items():
            holder = self.memory.holder(machine, run, step)
            if holder in (None, machine):
                continue
            per_node = self._training.plan.ranks_per_node
            self._machines[machine].tell(
                ShardsFetched,
                job=run.job,
                generation=run.generation,
                step=step,
                ranks=tuple(range(node_rank * per_node, (node_rank + 1) * per_node)),
                keeper=holder,
                fetched_bytes=SHARD_BYTES,
                took_s=self._training.plan.copy_s,
            )


def _pinned(order: BackupOrder) -> tuple[int | None, ...]:
    return order.coming_step, order.complete_step, order.certified_step
