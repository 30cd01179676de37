"""Ranks that a line reports as missing."""

import pytest

from holdfast.engines.crash import Diagnosis, diagnose
from holdfast.engines.crash.missing_ranks import missing_ranks
from holdfast.engines.crash.rules import rule_book
from holdfast.engines.crash.scan import LogScan


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("[Rank 0]: Rank 3 failed to pass monitoredBarrier in 30000 ms", (3,)),
        ("[Rank 0]: Ranks 4, 5, 7 failed to pass monitoredBarrier in 30000 ms", (4, 5, 7)),
        ("barrier 'save-40' failed: missing ranks: [5] after 600 s", (5,)),
        ("missing ranks 8-11 after 600 s", (8, 9, 10, 11)),
        ("ranks 1, 4 to 6 and 9 did not arrive", (1, 4, 5, 6, 9)),
        ("UNAVAILABLE: Task /job:jax_worker/replica:0/task:37 heartbeat timeout.", (37,)),
        ("/job:jax_worker/replica:0/task:6", (6,)),
        ("[Rank 0]: rank 3 is ready", ()),
        ("ranks 0-7 have joined", ()),
        ("/job:jax_worker/replica:0/task:6 has connected to coordination service", ()),
    ],
)
def test_missing_ranks_are_read(line: str, ranks: tuple[int, ...]) -> None:
    assert missing_ranks(line) == ranks


def of(log: str) -> Diagnosis:
    scan = LogScan("log", rule_book().line_filter)
    scan.feed(log.encode())
    return diagnose([scan.end()])


def test_one_missing_rank_is_named_and_none_of_several() -> None:
    one = of("RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 30000 ms\n")
    assert one.first_rank == 3
    several = of("RuntimeError: [Rank 0]: Ranks 4, 5 failed to pass monitoredBarrier in 30000 ms\n")
    assert several.first_rank is None and "ranks 4-5" in several.summary
