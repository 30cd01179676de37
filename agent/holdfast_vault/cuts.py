"""Which steps a job has left behind. A rank that goes on from a step says so, wherever copies of its steps may be.

Without it a step that was given up because it was poisoned could come back from another node's memory: of two steps
the newer is taken, and a copy does not show what was decided about it. So a cut is remembered as long as the shards
are, and goes with the answer to whoever asks for them: a node that missed it does not bring the step back.
"""

from __future__ import annotations

import msgspec

from holdfast.node.vault.messages import SealedStep


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """At `at_ns` generation `generation` went on from `kept`, or from none of the steps in memory.

    `behind` are older steps of the same story that a later recovery may go back to.
    """

    generation: int
    at_ns: int
    kept: SealedStep | None
    behind: tuple[SealedStep, ...] = ()


def survives(sealed: SealedStep, cut: Cut | None) -> bool:
    """Whether a step is still part of the job's story, as far as its generation tells."""
    return cut is None or sealed.generation >= cut.generation or sealed in (cut.kept, *cut.behind)


def is_news(cut: Cut, known: Cut | None) -> bool:
    """Whether a cut is newer than the one that is known."""
    return known is None or (cut.generation, cut.at_ns) > (known.generation, known.at_ns)
