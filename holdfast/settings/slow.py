"""Section `[slow]`: when a job counts as slow, and how the slow machine is located."""

from __future__ import annotations

from typing import Annotated

from holdfast.orders.slow import TEST_S_MAX, TRANSFER_BYTES_MAX
from holdfast.settings import Section, Within


class SlowPolicy(Section, frozen=True, kw_only=True):
    """When a job counts as slow, and how the machine at fault is found."""

    slower_by: Annotated[float, Within(0.01, 10.0, "iterations are not all alike")] = 0.1
    """Share by which iterations must get longer, and stay so (GREYHOUND: a tenth)."""

    locate: bool = True
    """Whether all nodes are asked how their ranks spend their time, once a job got slow."""

    test: bool = True
    """Whether training is then held for a moment and suspects are tested; `holdfast slow --test` does it by hand."""

    answer_s: Annotated[float, Within(0.1, 600)] = 2.0
    """Nodes that have not answered by then are judged without."""

    ahead_s: Annotated[float, Within(0.05, 600, "a word needs time to be heard")] = 0.3
    """A hold is asked for so long before it begins: by then every node has heard of it."""

    compute_s: Annotated[float, Within(0.01, TEST_S_MAX)] = 0.5
    """Seconds that suspects multiply matrices."""

    pass_s: Annotated[float, Within(0.01, TEST_S_MAX)] = 0.25
    """Seconds for each pass of transfers between nodes; what takes longer counts as that long."""

    transfer_bytes: Annotated[int, Within(1, TRANSFER_BYTES_MAX)] = 8 << 20
    """Bytes of each transfer."""

    compute_slower_by: Annotated[float, Within(0.01, 100.0)] = 0.25
    """Share by which matrix products take longer on a slow rank than on others."""

    links_slower_by: Annotated[float, Within(0.01, 100.0)] = 1.0
    """The same of transfers on a slow link: the shortest of a few differ by more, on a network that others use."""

    vote: bool = True
    """Whether stacks are taken in rounds where collectives and tests name nobody, and the job is still slow."""

    vote_every_s: Annotated[float, Within(0.1, 3600, "a round takes a second")] = 10.0
    """From one round to the next (ByteRobust §5)."""

    vote_rounds: Annotated[int, Within(1, 100)] = 5
    """Rounds after which the group that was flagged in most of them is named (ByteRobust §5)."""
