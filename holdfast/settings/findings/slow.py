"""Section `[slow]`: conditions for a job to count as slow, and the search for the slow machine."""

from __future__ import annotations

from typing import Annotated

from holdfast.orders.slow import TEST_S_MAX, TRANSFER_BYTES_MAX
from holdfast.settings import Section, Within


class SlowPolicy(Section, frozen=True, kw_only=True):
    """Conditions for a job to count as slow, and the search for the machine at fault."""

    slower_by: Annotated[float, Within(0.01, 10.0, "iterations are not all alike")] = 0.1
    """Share by which iterations must get longer, and stay so (GREYHOUND: a tenth)."""

    locate: bool = True
    """Profile the ranks on all nodes once a job got slow."""

    test: bool = True
    """Then hold training for a moment and test suspects; `holdfast slow --test` does it by hand."""

    answer_s: Annotated[float, Within(0.1, 600)] = 2.0
    """Time for nodes to answer; the result is formed without those that are late."""

    ahead_s: Annotated[float, Within(0.05, 600, "an order needs time to reach all nodes")] = 0.3
    """Lead time of a hold, in which its order reaches every node."""

    compute_s: Annotated[float, Within(0.01, TEST_S_MAX)] = 0.5
    """Time for which suspects multiply matrices."""

    pass_s: Annotated[float, Within(0.01, TEST_S_MAX)] = 0.25
    """Time for each pass of transfers between nodes; a longer transfer counts as this long."""

    transfer_bytes: Annotated[int, Within(1, TRANSFER_BYTES_MAX)] = 8 << 20
    """Bytes of each transfer."""

    compute_slower_by: Annotated[float, Within(0.01, 100.0)] = 0.25
    """Share by which matrix products take longer on a slow rank than on others."""

    links_slower_by: Annotated[float, Within(0.01, 100.0)] = 1.0
    """Share by which transfers take longer on a slow link; higher, since even the shortest of a few transfers vary on a
    shared network."""

    vote: bool = True
    """Take rounds of stacks if collectives and tests name no machine and the job is still slow."""

    vote_every_s: Annotated[float, Within(0.1, 3600, "a round takes a second")] = 10.0
    """Interval of rounds (ByteRobust §5)."""

    vote_rounds: Annotated[int, Within(1, 100)] = 5
    """Rounds after which the group that was flagged in most of them is named (ByteRobust §5)."""
