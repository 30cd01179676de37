"""Which tests a run of stop-time checks has, in which order, and how long each may take. Pure.

The order is that of ByteRobust §4.2 and §4.3: first what finds obvious errors of one device, then connections within a
node, then those between nodes, and last what compares the answers of all nodes.
"""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.pairs import rounds
from holdfast.symptoms.rows import ROWS
from holdfast.symptoms.table_one import TableOne

MEETING = "meeting"
"""Not a test of its own: every node comes to the run's store and says that it is there."""

END = "end"
"""Not a test either: all results of a node have been said. Its ranks' own end may be heard before its results."""

ALL_GATHER = "all_gather"
SPEED = "speed"
SLOW = "slow"
"""The suite for nodes that made a job slow."""
ALIGNMENT = ("alignment", "alignment_parallel")

SUITES: dict[str, tuple[str, ...]] = {
    "quick": ("disk", "mounts", "memory", "gemm", "all_to_all", ALL_GATHER, ALIGNMENT[0]),
    "gpu": ("dcgm", "memory", "gemm", "all_to_all"),
    "network": ("dcgm", "all_to_all", ALL_GATHER),
    SLOW: ("dcgm", "memory", "gemm", SPEED, "all_to_all", ALL_GATHER),
    "nan": ("dcgm", "gemm", "all_to_all", ALL_GATHER, *ALIGNMENT),
    "full": ("disk", "mounts", "dcgm", "memory", "gemm", "all_to_all", ALL_GATHER, *ALIGNMENT, "plugins"),
}
"""The tests of each suite, in the order in which they run."""

LIMITS_S: dict[str, float] = {
    MEETING: 20.0,
    "disk": 10.0,
    "mounts": 10.0,
    "dcgm": 600.0,
    "memory": 20.0,
    "gemm": 30.0,
    SPEED: 20.0,
    "all_to_all": 30.0,
    ALL_GATHER: 20.0,
    "alignment": 60.0,
    "alignment_parallel": 60.0,
    "plugins": 300.0,
}
"""How long each test may take; `all_gather` in each of its rounds."""

GRACE_S = 5.0
"""From the end of the last limit until a node's results are known."""

_BY_ROW = {
    TableOne.NAN_VALUE: "nan",
    TableOne.CUDA_ERROR: "gpu",
    TableOne.GPU_UNAVAILABLE: "gpu",
    TableOne.GPU_MEMORY_ERROR: "gpu",
    TableOne.INFINIBAND_ERROR: "network",
    TableOne.JOB_HANG: "network",
}
_BY_SYMPTOM = {"peer_lost": "network"}


class UnknownSuite(ValueError):
    """No suite of this name; the message has those that there are."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One test, or one round of it. `limit_s` is how long it may take once it has begun.

    `pairs` are the nodes that meet, by node rank; without them each node is on its own.
    """

    test: str
    limit_s: float
    round: int = 0
    pairs: tuple[tuple[int, int], ...] = ()


def suite_for(symptom: str) -> str:
    """The suite that looks for the cause of a symptom; `full` where nothing points anywhere."""
    row = ROWS.get(symptom)
    return _BY_SYMPTOM.get(symptom) or (_BY_ROW.get(row, "full") if row else "full")


def suite_tests(suite: str) -> tuple[str, ...]:
    """The tests of a suite.

    Raises:
        UnknownSuite: there is none of this name.
    """
    if suite not in SUITES:
        raise UnknownSuite(f"there is no suite {suite!r}; there are {', '.join(SUITES)}")
    return SUITES[suite]


def stages(suite: str, nodes: int, limit_s: float | None = None) -> tuple[Stage, ...]:
    """What every node of a run goes through, in this order. `limit_s` bounds every limit that is above it.

    Raises:
        UnknownSuite: there is none of this name.
    """
    planned: list[Stage] = []
    for test in suite_tests(suite):
        limit = _limit(test, limit_s)
        if test != ALL_GATHER:
            planned.append(Stage(test=test, limit_s=limit))
            continue
        for number, pairs in enumerate(rounds(nodes), start=1):
            planned.append(Stage(test=test, limit_s=limit, round=number, pairs=pairs))
    return tuple(planned)


def meeting_limit_s(limit_s: float | None = None) -> float:
    """How long nodes wait for each other at the beginning."""
    return _limit(MEETING, limit_s)


def deadline_s(suite: str, nodes: int, limit_s: float | None = None) -> float:
    """How long a run may take from the moment when its ranks run: what has not answered by then does not.

    Limits add up because a node that used all of one makes its partners wait. A healthy run takes a small part of it.

    Raises:
        UnknownSuite: there is none of this name.
    """
    return meeting_limit_s(limit_s) + sum(stage.limit_s for stage in stages(suite, nodes, limit_s)) + GRACE_S


def _limit(test: str, limit_s: float | None) -> float:
    return LIMITS_S[test] if limit_s is None else min(LIMITS_S[test], limit_s)
