"""Section `[slow]`: when a job counts as slow, and how the slow machine is located."""

from __future__ import annotations

import msgspec

from holdfast.orders.slow import TEST_S_MAX, TRANSFER_BYTES_MAX
from holdfast.settings.ranges import require_within


class SlowPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a job counts as slow, and how the machine at fault is found."""

    slower_by: float = 0.1
    """Share by which iterations must get longer, and stay so (GREYHOUND: a tenth)."""

    locate: bool = True
    """Whether all nodes are asked how their ranks spend their time, once a job got slow."""

    test: bool = True
    """Whether training is then held for a moment and suspects are tested; `holdfast slow --test` does it by hand."""

    answer_s: float = 2.0
    """Nodes that have not answered by then are judged without."""

    ahead_s: float = 0.3
    """A hold is asked for so long before it begins: by then every node has heard of it."""

    compute_s: float = 0.5
    """Seconds that suspects multiply matrices."""

    pass_s: float = 0.25
    """Seconds for each pass of transfers between nodes; what takes longer counts as that long."""

    transfer_bytes: int = 8 << 20
    """Bytes of each transfer."""

    compute_slower_by: float = 0.25
    """Share by which matrix products take longer on a slow rank than on others."""

    links_slower_by: float = 1.0
    """The same of transfers on a slow link: the shortest of a few differ by more, on a network that others use."""

    vote: bool = True
    """Whether stacks are taken in rounds where collectives and tests name nobody, and the job is still slow."""

    vote_every_s: float = 10.0
    """From one round to the next (ByteRobust §5)."""

    vote_rounds: int = 5
    """Rounds after which the group that was flagged in most of them is named (ByteRobust §5)."""

    def __post_init__(self) -> None:
        require_within(
            self,
            slower_by=(0.01, 10.0, "iterations are not all alike"),
            answer_s=(0.1, 600),
            ahead_s=(0.05, 600, "a word needs time to be heard"),
            compute_s=(0.01, TEST_S_MAX),
            pass_s=(0.01, TEST_S_MAX),
            transfer_bytes=(1, TRANSFER_BYTES_MAX),
            compute_slower_by=(0.01, 100.0),
            links_slower_by=(0.01, 100.0),
            vote_every_s=(0.1, 3600, "a round takes a second"),
            vote_rounds=(1, 100),
        )
