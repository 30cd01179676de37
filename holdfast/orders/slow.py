"""Profiles and tests of a job that got slow. The analyzer writes it, the agents of the job's nodes answer."""

from __future__ import annotations

from typing import Annotated

import msgspec

from holdfast.events.parts.job import Endpoint
from holdfast.events.parts.samples import SlowStage
from holdfast.events.parts.scalars import Count, Id, Moment, Name, Step
from holdfast.orders.base import Order

TEST_S_MAX = 30.0
TRANSFER_BYTES_MAX = 1 << 30
TestSeconds = Annotated[float, msgspec.Meta(ge=0, le=TEST_S_MAX)]


class SlowTests(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tests to run while training is held (GREYHOUND §4.3): matrix products, or transfers between nodes.

    Every rank holds before it begins a step after `after_step`, and continues at `until` at the latest, whatever
    happens to the analyzer.
    """

    after_step: Step
    held_by: Moment
    """Time by which every rank should be held."""
    until: Moment
    compute_ranks: tuple[Count, ...] = ()
    """Ranks that multiply matrices for `compute_s`, all at the same time."""
    compute_s: TestSeconds = 0.0
    passes: tuple[tuple[tuple[Count, Count], ...], ...] = ()
    """Passes of transfers, each of pairs (sender, receiver) of node ranks. They begin once all ranks are held."""
    passes_at: Moment | None = None
    """Start of the first pass. Each takes `pass_s`, so that passes never overlap."""
    pass_s: TestSeconds = 0.0
    endpoints: dict[Count, Endpoint] = {}
    transfer_bytes: Annotated[int, msgspec.Meta(ge=0, le=TRANSFER_BYTES_MAX)] = 0


class SlowOrder(Order, frozen=True, kw_only=True, omit_defaults=True):
    """A profile of the last `iterations` of a job's ranks, tests of its nodes, or the end of these (`is_over`).

    Each stage of one `id` is carried out once, and not after `until`.
    """

    kind = "slow"
    writer = "analyzer"
    addressee = "job"

    id: Id
    job: Name
    generation: Count
    until: Moment
    iterations: Count = 16
    tests: SlowTests | None = None
    is_over: bool = False

    @property
    def stage(self) -> SlowStage:
        """Stage of the location of a slow node that this order belongs to."""
        if self.is_over:
            return "over"
        return "profile" if self.tests is None else "transfers" if self.tests.passes else "hold"

    @property
    def message_id(self) -> str:
        """Id by which the bus drops a second copy: key, id and stage."""
        return f"{self.key}-{self.id}-{self.stage}"
