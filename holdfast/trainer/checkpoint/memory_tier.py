"""The newest steps of a job in the memory of its nodes: each rank keeps its own, all agree when they come back.

A step counts only if every rank's vault has it sealed by the same generation: what one rank has of a step that another
lost was never a state of the job.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from holdfast.node.frames import WireError
from holdfast.node.vault.messages import Former, PersistTo, SealedStep, ShardName, Steps
from holdfast.trainer.checkpoint import environment
from holdfast.trainer.checkpoint.environment import Scratch
from holdfast.trainer.checkpoint.errors import StepsAbsent
from holdfast.trainer.checkpoint.layout.recipe import PartPlan
from holdfast.trainer.device import BESIDE, MODE_VARIABLE, SHADOWS, WITHIN, StepSkipped, has_accelerator
from holdfast.trainer.phases import phase
from holdfast.trainer.report import CHECKPOINT_RESTORED, STEPS_KEPT, ReportTooLong, ReportValue, report
from holdfast.trainer.vault_client.client import BrokenSeal, MemoryRefused, Shard, VaultClient

if TYPE_CHECKING:
    from holdfast.events.parts.job import KeptFor
    from holdfast.trainer.checkpoint.pace.device_meter import GateWait
    from holdfast.trainer.device.copies import DeviceCopies

VAULT_VARIABLE = "HOLDFAST_VAULT"
STEPS_SHARED_MAX = 8
_STEP_BITS = 40
NEVER_WHOLE_MAX = 2
"""Number of the newest steps that only some ranks may have kept: a rank can be two ahead of one that is copying."""
RESTARTED_WITHIN_S = 5.0
"""A vault that ended is started again by its agent; with it the copies on other nodes are within reach."""
TRAINING_WAITS_S = 2.0
"""Longest wait of a save for a vault that ended. Meanwhile no rank gets more than a step ahead, because collectives
keep them together: what the other vaults hold still makes up a whole step."""
WAITING_SHARE = 1 / 10
"""Largest share of its time for which a job waits for vaults that end again and again."""
_POLL_S = 0.01
RANKS_REPORTED_MAX = 64

AllGather = Callable[[torch.Tensor], list[torch.Tensor]]

log = logging.getLogger("holdfast.trainer.checkpoint")


class MemoryTier:
    """One rank's part. Without a vault nothing is kept and nothing is found, and training goes on."""

    def __init__(
        self,
        name: ShardName | None,
        generation: int,
        persist_to: PersistTo | None = None,
        *,
        is_waited_for: bool = False,
        is_reported: bool = True,
    ) -> None:
        """`name` None: this process is no rank of a job of Holdfast's. `persist_to`: where the vault brings steps.
        `is_waited_for`: saves are copied while the rank waits. `is_reported`: the job can go on from what is kept.
        """
        directory = os.environ.get(VAULT_VARIABLE)
        self._directory = Path(directory) if directory and name is not None else None
        self._name = name
        self._generation = generation
        self._persist_to = persist_to
        self._is_waited_for = is_waited_for
        self._is_reported = is_reported
        self._client: VaultClient | None = None
        self._copies = None if is_waited_for else self._beside_training()
        self._waits_from = 0.0
        self._warned = ""
        self.has_newer = False
        """Any rank had steps above the limit at the last call of `common`."""
        self.found = FoundSteps()
        """Steps that all ranks had at the last call of `common`."""
        self._has_kept = False
        self._of_some: set[SealedStep] = set()
        self._all_answered = True
        self._certified_up_to: int | None = None

    @property
    def has_vault(self) -> bool:
        """True if a vault was started for this process."""
        return self._directory is not None

    def keep(
        self,
        step: int,
        state: dict[str, Any],
        plan: Callable[[], PartPlan] | None = None,
        kept_for: Callable[[], KeptFor] | None = None,
    ) -> bool:
        """Keep the state as it is now; False if it is not kept, which is logged once for each reason.

        `plan` returns what of it this rank would write to a disk; with None the vault writes nothing. `kept_for`
        returns which jobs can restore it.
        """
        client = self._connected()
        while client is not None:
            try:
                client.save(step, state, plan)
            except StepSkipped:
                return False
            except MemoryRefused as error:
                self._warn_once(f"step {step} is not kept in memory: {error}")
                return False
            except WireError as error:
                self._lose(error)
                client = self._restarted()
            else:
                self._report_first(step, kept_for)
                return True
        return False

    def common(self, all_gather: AllGather, at_most: int | None) -> list[SealedStep]:
        """Return the steps that all ranks have, newest first; all of them must call it, and get the same answer."""

        def may_be(sealed: SealedStep) -> bool:
            return at_most is None or sealed.step <= at_most

        # Other nodes may have another release: its ranks gather this shape, and read the first number of the first row.
        mine = torch.full((1 + STEPS_SHARED_MAX, 2), -1, dtype=torch.int64)
        here = self._steps(at_most)
        mine[0] = torch.tensor((int(here is not None), _packed(here.newest_made if here else None)))
        steps = sorted(here.sealed if here else (), key=lambda sealed: (may_be(sealed), sealed), reverse=True)
        for row, sealed in enumerate(steps[:STEPS_SHARED_MAX], start=1):
            mine[row] = torch.tensor((sealed.generation, sealed.step))
        everyone = [rows.tolist() for rows in all_gather(mine)]
        self._all_answered = all(did_answer for (did_answer, _), *_ in everyone)
        newest_made = [_unpacked(made) for (_, made), *_ in everyone]
        found = [{SealedStep(generation=g, step=s) for g, s in rows if s >= 0} for _, *rows in everyone]
        self.has_newer = not all(map(may_be, set.union(*found)))
        self._of_some = set(filter(may_be, set.union(*found)))
        self.found = found_steps([set(filter(may_be, steps)) for steps in found], newest_made)
        return sorted(filter(may_be, set.intersection(*found)), reverse=True)

    def sealed(self) -> tuple[SealedStep, ...] | None:
        """Return this rank's own steps, newest first, also those on other nodes; None if the vault does not answer."""
        here = self._steps(None)
        return None if here is None else here.sealed

    def may_come_back(self, unusable: Sequence[SealedStep]) -> bool:
        """Return True if ranks may have steps again that they kept: then `start_over` refuses, whatever is allowed."""
        return bool(unusable or (self._of_some and not self._all_answered))

    def start_over(
        self, unusable: Sequence[SealedStep], scratch: Scratch = Scratch.UNLESS_WHOLE, former: str = ""
    ) -> None:
        """Start from scratch: `unusable` are steps that all ranks have, some of which cannot be used. `former`: why
        those that were kept with another number of ranks are no use.

        Raises StepsAbsent on all ranks if that would throw away what may still be had, or what the job once had.
        """
        steps = sorted(sealed.step for sealed in self._of_some)
        why = ""
        if former:
            why = former if scratch is not Scratch.ALLOWED else ""
        elif unusable:
            why = f"steps {steps} are in memory, but they cannot be used, the logs of the ranks say why"
        elif steps and not self._all_answered:
            why = f"steps {steps} are in memory, but the vault of another rank does not answer"
        elif steps and scratch is not Scratch.ALLOWED and len(steps) > NEVER_WHOLE_MAX:
            why = f"steps {steps} are in the memory of some ranks only"
        elif scratch is Scratch.REFUSED:
            why = "this job has made checkpoints, and none is left in memory that all ranks have"
        if why:
            raise StepsAbsent(
                f"{why}; none is on disk, and starting from scratch unasked would throw the run away. "
                f"{environment.SCRATCH_CURE}"
            )
        if steps:
            log.warning("steps %s are in the memory of some ranks only, none is on disk: starting from scratch", steps)

    def load(self, sealed: SealedStep, *, to_device: bool = False) -> dict[str, Any]:
        """Return the state given to `keep` at this step; raises BrokenSeal, MemoryRefused or WireError without it.

        `to_device`: what lay on an accelerator comes back there, if it has the memory until the state is let go.
        """
        try:
            return self._awaited().restore(sealed, to_device=to_device)
        except WireError as error:
            # The next vault of this node has it from another one.
            self._lose(error)
            return self._awaited().restore(sealed, to_device=to_device)

    def former(self) -> Former:
        """Return what this node has of the job from when it had another number of ranks."""
        if self._directory is None or self._generation <= 1:
            return Former()
        try:
            return self._awaited().former()
        except (WireError, MemoryRefused) as error:
            self._warn_once(f"no step of another number of ranks can be had from memory: {error}")
            return Former()

    def former_shard(self, sealed: SealedStep) -> Shard:
        """Return such a step; raises BrokenSeal, MemoryRefused or WireError without it."""
        return self._awaited().former_shard(sealed)

    def report_restored(self, step: int, tier: Literal["memory", "disk", "nothing"], on_disk: int = 0) -> None:
        """Report the step that the job goes on from, and what there was; `on_disk` is the newest step on a disk."""
        if self._name is not None and self._name.rank == 0:
            report_or_warn(
                CHECKPOINT_RESTORED,
                step=step,
                tier=tier,
                newest_step=max(self.found.newest, on_disk, step),
                whole_step=max(self.found.whole, on_disk, step),
                missing_ranks=self.found.missing[:RANKS_REPORTED_MAX],
            )

    def go_on_from(self, sealed: SealedStep | None, *, from_disk: bool = False) -> None:
        """Drop all other steps: all ranks continue from this one (None: from none that is in memory)."""
        client = self._connected()
        if client is None:
            return
        try:
            client.keep_only(sealed, from_disk=from_disk)
        except WireError as error:
            self._lose(error)

    def certified_up_to(self) -> int | None:
        """Return the newest certified step known here: of the steps on a disk, the newest up to it must stay."""
        client = self._connected()
        try:
            up_to = client.certified_up_to() if client is not None else None
        except WireError as error:
            self._lose(error)
            up_to = None
        # A vault that is away or new knows of none, but a certified step stays certified.
        self._certified_up_to = max((it for it in (up_to, self._certified_up_to) if it is not None), default=None)
        return self._certified_up_to

    def _steps(self, at_most: int | None) -> Steps | None:
        """Return the steps that the vault has; None if it does not answer."""
        if self._directory is None:
            return Steps(sealed=())
        for _ in range(2):
            try:
                return self._awaited().kept(at_most)
            except WireError as error:
                self._lose(error)
            except MemoryRefused as error:
                self._warn_once(f"no step can be had from memory: {error}")
                return None
        return None

    def _awaited(self) -> VaultClient:
        """Return the vault; raises MemoryRefused without one. A later generation waits for it to come back."""
        client = self._connected_within(RESTARTED_WITHIN_S if self._generation > 1 else 0)
        if client is None:
            raise MemoryRefused("there is no vault")
        return client

    def _restarted(self) -> VaultClient | None:
        """Return the vault that takes the place of one that ended; None if it does not come soon, or ends too often."""
        began = time.monotonic()
        with phase("checkpoint"):
            client = self._connected_within(TRAINING_WAITS_S if began >= self._waits_from else 0)
        ended = time.monotonic()
        self._waits_from = max(self._waits_from, ended + (ended - began) / WAITING_SHARE)
        return client

    def _connected_within(self, wait_s: float) -> VaultClient | None:
        until = time.monotonic() + wait_s
        while (client := self._connected()) is None and self._directory is not None and time.monotonic() < until:
            time.sleep(_POLL_S)
        return client

    def _connected(self) -> VaultClient | None:
        if self._client is not None or self._directory is None or self._name is None:
            return self._client
        try:
            self._client = VaultClient(
                self._directory,
                self._name,
                self._generation,
                self._persist_to,
                self._copies,
                is_waited_for=self._is_waited_for,
            )
        except (WireError, MemoryRefused) as error:
            self._warn_once(f"checkpoints are not kept in memory: {error}")
        return self._client

    def gate(self) -> None:
        """Have the accelerator's current stream wait until all that is being copied may be changed."""
        if self._copies is not None:
            self._copies.hold_back()

    def writers_waited_s(self) -> float:
        """Return for how long this process has waited for the copies of saves, but the last; from 0 with each vault."""
        return self._client.writers_waited_s if self._client is not None else 0.0

    def take_gate_wait(self) -> GateWait | None:
        """Return events before and after training waited at the gate since the last call; None: it has not."""
        return self._copies.take_gate_wait() if self._copies is not None else None

    def end_copies(self) -> None:
        """Wait until the step that is being copied from an accelerator is sealed or given up."""
        if self._copies is not None:
            self._copies.wait_sealed()

    def _beside_training(self) -> DeviceCopies | None:
        """Return what copies tensors of an accelerator; None: there is none, or they are to be copied at once."""
        mode = os.environ.get(MODE_VARIABLE, BESIDE)
        if self._directory is None or self._name is None or not has_accelerator():
            return None
        if mode not in (BESIDE, SHADOWS, WITHIN):
            log.warning("%s is %r: known are %s, %s and %s", MODE_VARIABLE, mode, BESIDE, SHADOWS, WITHIN)
        if mode not in (BESIDE, SHADOWS):
            return None
        from holdfast.trainer.device.copies import DeviceCopies

        return DeviceCopies(
            self._directory, self._name, self._generation, self._persist_to, shadows_all=mode == SHADOWS
        )

    def _lose(self, error: WireError) -> None:
        self._warn_once(f"the node's vault is gone, and the checkpoints in its memory: {error}")
        if self._client is not None:
            self._client.close()
            self._client = None

    def _warn_once(self, what: str) -> None:
        if what != self._warned:
            log.warning("%s", what)
            self._warned = what

    def _report_first(self, step: int, kept_for: Callable[[], KeptFor] | None) -> None:
        if self._is_reported and not self._has_kept and self._name is not None and self._name.rank == 0:
            report_or_warn(STEPS_KEPT, step=step, kept_for="same_ranks" if kept_for is None else kept_for())
        self._has_kept = True


class FoundSteps(NamedTuple):
    """Steps in the memory of some ranks. The newest may not have been complete when the job stopped; the one before it
    was, unless a rank is known not to have come so far: `whole`. `missing` ranks have nothing from it on.
    """

    newest: int = 0
    whole: int = 0
    missing: tuple[int, ...] = ()


def _packed(made: SealedStep | None) -> int:
    """Return a generation and step as one number; below 2**40: none is known, or a release that tells none."""
    return 0 if made is None else made.generation << _STEP_BITS | made.step


def _unpacked(packed: int) -> SealedStep | None:
    generation, step = packed >> _STEP_BITS, packed & ((1 << _STEP_BITS) - 1)
    return SealedStep(generation=generation, step=step) if generation > 0 else None


def found_steps(by_rank: Sequence[Collection[SealedStep]], newest_made: Sequence[SealedStep | None] = ()) -> FoundSteps:
    """Return the newest steps, given those of each rank, and the newest that each has made, where that is known.

    A rank can be two ahead of one whose node is busy with copying, and then the step between was never whole.
    """
    newest_first = sorted(set[SealedStep]().union(*by_rank), reverse=True)
    if len(newest_first) < 2:
        return FoundSteps(newest=newest_first[0].step if newest_first else 0)
    newest = newest_first[0]
    # What a rank made in an earlier generation shows nothing: it may have been on another node since.
    reached = [made for made in newest_made if made is not None and made.generation == newest.generation]
    whole = next((each for each in newest_first[1:] if all(each <= made for made in reached)), None)
    if whole is None:
        return FoundSteps(newest=newest.step)
    missing = tuple(rank for rank, steps in enumerate(by_rank) if not any(step >= whole for step in steps))
    return FoundSteps(newest.step, whole.step, missing)


def report_or_warn(kind: str, **fields: ReportValue) -> None:
    """Report; training goes on if that is not possible."""
    try:
        report(kind, **fields)
    except (OSError, ReportTooLong) as error:
        log.warning("%s is not reported: %s", kind, error)


UNUSABLE = (BrokenSeal, MemoryRefused, WireError)
"""Reasons why a shard cannot be read: another copy, or an older step, must serve."""
