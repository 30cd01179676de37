"""Suites of stop-time checks: their tests, the order of the tests, and the time limit of each. Pure.

The order is that of ByteRobust §4.2 and §4.3: first obvious errors of one device, then connections within a node, then
those between nodes, and last the comparison of all nodes' answers.
"""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.pairs import rounds
from holdfast.symptoms import Symptom, row_of

MEETING = "meeting"
"""Pseudo test: the node has joined the run's store."""

END = "end"
"""Pseudo test: all results of a node are published. The end of its ranks can arrive before its results."""

ALL_GATHER = "all_gather"
SPEED = "speed"
SLOW = "slow"
"""Suite for nodes that made a job slow."""
FULL = "full"
"""Suite for failures that point nowhere, or in two directions."""
ALIGNMENT = ("alignment", "alignment_parallel")

SUITES: dict[str, tuple[str, ...]] = {
    "quick": ("disk", "mounts", "memory", "gemm", "all_to_all", ALL_GATHER, ALIGNMENT[0]),
    "gpu": ("dcgm", "memory", "gemm", "all_to_all"),
    "network": ("dcgm", "all_to_all", ALL_GATHER),
    SLOW: ("dcgm", "memory", "gemm", SPEED, "all_to_all", ALL_GATHER),
    "nan": ("dcgm", "gemm", "all_to_all", ALL_GATHER, *ALIGNMENT),
    FULL: ("disk", "mounts", "dcgm", "memory", "gemm", "all_to_all", ALL_GATHER, *ALIGNMENT, "plugins"),
}

DCGM_LIMITS_S: dict[str, float] = {"eud": 300.0, "1": 60.0, "2": 300.0, "3": 1800.0, "4": 10800.0}
"""Time limit of each run of `dcgmi diag`, by level or test: about twice what NVIDIA's documentation calls usual."""

DCGM_RUNS = ("eud", "2")
"""Runs of the test `dcgm`."""

LIMITS_S: dict[str, float] = {
    MEETING: 20.0,
    "disk": 10.0,
    "mounts": 10.0,
    "dcgm": sum(DCGM_LIMITS_S[run] for run in DCGM_RUNS),
    "memory": 20.0,
    "gemm": 30.0,
    SPEED: 20.0,
    "all_to_all": 30.0,
    ALL_GATHER: 20.0,
    "alignment": 60.0,
    "alignment_parallel": 60.0,
    "plugins": 300.0,
}
"""Time limit of each test in seconds; `all_gather` per round."""

GRACE_S = 5.0
"""Seconds from the last limit until a node's results are known."""

NODES_PER_S_MIN = 100
"""Nodes whose results the services handle at least in a second."""

_BY_ROW: dict[str, str] = {
    Symptom.NAN_VALUE: "nan",
    Symptom.CUDA_ERROR: "gpu",
    Symptom.GPU_UNAVAILABLE: "gpu",
    Symptom.GPU_MEMORY_ERROR: "gpu",
    Symptom.INFINIBAND_ERROR: "network",
    Symptom.JOB_HANG: "network",
}
_BY_SYMPTOM = {"peer_lost": "network"}


class UnknownSuite(ValueError):
    """Unknown suite; the message lists the known ones."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One test, or one round of it. `limit_s`: from its start. `pairs`: nodes by rank; () if each tests alone."""

    test: str
    limit_s: float
    round: int = 0
    pairs: tuple[tuple[int, int], ...] = ()


def suite_for(symptom: str) -> str:
    """Return the suite that looks for the cause of a symptom; `full` if the symptom points nowhere."""
    return _BY_SYMPTOM.get(symptom) or _BY_ROW.get(row_of(symptom), FULL)


def suite_tests(suite: str) -> tuple[str, ...]:
    """Return the tests of a suite. Raises UnknownSuite if there is none of this name."""
    if suite not in SUITES:
        raise UnknownSuite(f"there is no suite {suite!r}; there are {', '.join(SUITES)}")
    return SUITES[suite]


def stages(suite: str, nodes: int, limit_s: float | None = None) -> tuple[Stage, ...]:
    """Return the stages of a run, the same for every node. `limit_s` caps every limit. Raises UnknownSuite."""
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
    """Return the seconds that nodes wait for each other at the start."""
    return _limit(MEETING, limit_s)


def deadline_s(suite: str, nodes: int, limit_s: float | None = None) -> float:
    """Return the time limit of a run in seconds, counted from the start of its ranks. Raises UnknownSuite.
    Limits add up, since a node that uses all of one makes its partners wait. A healthy run takes a fraction of it."""
    tests_s = sum(stage.limit_s for stage in stages(suite, nodes, limit_s))
    return meeting_limit_s(limit_s) + tests_s + _known_within_s(nodes)


def rest_s(suite: str, nodes: int) -> float:
    """Return the seconds to wait for the other nodes once most nodes are done. One that hangs in a test is behind them
    by its limit, and so are its partners, which wait for it. Raises UnknownSuite."""
    return max(LIMITS_S[test] for test in suite_tests(suite)) + _known_within_s(nodes)


def _known_within_s(nodes: int) -> float:
    return GRACE_S + nodes // NODES_PER_S_MIN


def _limit(test: str, limit_s: float | None) -> float:
    return LIMITS_S[test] if limit_s is None else min(LIMITS_S[test], limit_s)
