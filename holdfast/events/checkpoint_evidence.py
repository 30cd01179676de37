"""Facts that agents saw about checkpoints."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from holdfast.events.base import Evidence
from holdfast.events.parts.job import KeptFor
from holdfast.events.parts.scalars import Count, Name, Step

KEPT_EVERY_MAX = 1024
"""Kept steps further apart are useless: the disk has newer ones."""


class StepsKept(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """Rank 0 has kept its first step of a generation in its node's memory; published by its agent."""

    step: Step
    kept_for: KeptFor = "same_ranks"


class CheckpointRestored(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """All ranks go on from this step; published by the agent of rank 0."""

    step: Step
    """0: from the beginning."""
    tier: Literal["memory", "disk", "nothing"]
    newest_step: Step = 0
    """Newest step that was found in the memory of any rank, or on disk; 0: none."""
    whole_step: Step = 0
    """Newest of them that all ranks must have had: the newest of all may not have been complete yet."""
    missing_ranks: tuple[Count, ...] = ()
    """The first of the ranks that had no step from `whole_step` on."""


class KeepingSpaced(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """From `step` on all ranks keep one step in `every` in memory; published by the agent of rank 0.

    More than 1: keeping each would cost too much of training's time.
    """

    step: Step
    every: Annotated[int, msgspec.Meta(ge=1, le=KEPT_EVERY_MAX)]
    rank: Count | None = None
    """The first rank that asked for it; None: it costs less by now."""
    keep_s: float = 0.0
    """Seconds that keeping a step costs that rank, and that its steps take without it."""
    step_s: float = 0.0


class ShardDamaged(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes of a checkpoint differ from those that were sealed; another copy is used. Published by the node's agent."""

    rank: Count
    step: Step
    held_by: Name
    """Node in whose memory they were."""
    detail: str


class StepNotPersisted(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A step that was due for the disk is not there; earlier ones are. By the node's agent, at most every 30 s."""

    step: Step
    reason: str
    others: Count = 0
    """Further steps that were left out since the last such event."""


class KeepingInterrupted(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """A node's ranks keep no steps in memory: its vault is lost with its successor, or refuses a save. By its agent,
    once for each backup order.
    """

    step: Step
    """The newest step that another node has of all its ranks."""
    not_kept: Step | None = None
    """The step that was refused."""
    reason: str


class CopiesRefused(Evidence, frozen=True, kw_only=True, omit_defaults=True):
    """Two vaults do not accept each other: the node's steps have no copy. By its agent, once for each reason."""

    keeper: Name
    reason: str
