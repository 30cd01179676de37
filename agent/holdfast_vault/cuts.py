"""Cuts: the steps that a job has abandoned. A rank that continues from a step announces its cut to every vault that may
have copies of its steps.

Without it an abandoned, poisoned step could come back from another node's memory, because of two steps the newer one is
taken. So a cut is remembered as long as the shards are, and goes with every answer about them: a node that missed the
cut does not bring the step back.
"""

from __future__ import annotations

import msgspec

from holdfast.node.vault.messages import SealedStep


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The time `at_ns` at which `generation` went on from `kept` (None: no step). `behind`: older steps to recover."""

    generation: int
    at_ns: int
    kept: SealedStep | None
    behind: tuple[SealedStep, ...] = ()


def survives(sealed: SealedStep, cut: Cut | None) -> bool:
    """Return True if, judged by its generation, a step is still part of the job's history."""
    return cut is None or sealed.generation >= cut.generation or sealed in (cut.kept, *cut.behind)


def is_news(cut: Cut, known: Cut | None) -> bool:
    return known is None or (cut.generation, cut.at_ns) > (known.generation, known.at_ns)
