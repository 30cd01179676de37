"""Selects the steps that are kept in memory, so that keeping them does not cost too much of a script's time.

Every step is kept as long as that costs less than the limit. Above the limit all ranks change together to one step in
two, four and so on: see `agreement.py`. What a rank does at the steps of a window::

    0 ............. 16: vote | 18 to 31: count the votes, each rank at another step  | 32: the next window
                               in the thread, at some moment from then on               waits for the count

"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.trainer.checkpoint.pace.agreement import Agreed, Agreement
from holdfast.trainer.checkpoint.pace.meters import HostMeter, Meter
from holdfast.trainer.checkpoint.pace.spacing import WINDOW, Limit, Samples, Spacing, is_kept, vote
from holdfast.trainer.phases import phase

NOT_MEASURED = 8
"""The first steps of a process: the vault takes memory for them, and on a device they go by a ring."""
VOTES_AT = WINDOW // 2
CLOSES_AT = VOTES_AT + 2
"""Ranks are hardly more than a step apart, so all have voted by then."""


class KeepPace:
    """The selection of one rank. All ranks of the job must call it for the same steps, in the same order."""

    def __init__(
        self,
        agreement: Agreement | None,
        limit: Limit,
        rank: int = 0,
        meter: Callable[[Samples], Meter] = HostMeter,
        on_change: Callable[[int, Agreed], None] = lambda step, agreed: None,
    ) -> None:
        """`agreement` None: every step is kept. `on_change` is called on rank 0, with the first step that has another
        distance and what was agreed.
        """
        self._agreement = agreement
        self._limit = limit
        self._rank = rank
        self._closes_at = CLOSES_AT + rank % (WINDOW - CLOSES_AT)
        self._make_meter = meter
        self._on_change = on_change
        self._spacing = Spacing()
        self._samples = Samples()
        self._meter: Meter | None = None
        self._calls = 0
        self._last: int | None = None
        self._has_gaps = False
        """The script has left steps out itself since the last vote."""
        self._has_voted = False
        self._has_closed = False

    @property
    def every(self) -> int:
        """Distance of kept steps now: one step in `every` is kept."""
        return self._spacing.every

    def keep(self, step: int, keep: Callable[[], bool]) -> bool:
        """Call `keep` if the step is to be kept; return True if it is kept."""
        if self._agreement is None and self.every == 1:
            return keep()
        self._calls += 1
        if self._calls > NOT_MEASURED:
            self._meter = self._meter or self._make_meter(self._samples)
            self._meter.begin(step)
        is_it = self.is_due(step) and keep()
        if is_it and self._meter is not None:
            self._meter.end()
        return is_it

    def is_due(self, step: int) -> bool:
        """Return True if a step is to be kept, which the script has now."""
        before, self._last = self._last, step
        self._has_gaps |= before is not None and step > before + 1
        if self._agreement is not None and before is not None and before // WINDOW != step // WINDOW:
            self._begin_window(before // WINDOW, step, self._agreement)
        if self._agreement is not None:
            self._come_to(step, self._agreement)
        return is_kept(step, before, self.every)

    def _come_to(self, step: int, agreement: Agreement) -> None:
        """Vote, and have the votes counted, when it is time for that."""
        window, at = divmod(step, WINDOW)
        if at >= VOTES_AT and not self._has_voted:
            self._has_voted = True
            # A script that keeps one step in ten has chosen that, and none of them is left out.
            costs = None if self._has_gaps else self._samples.costs()
            self._has_gaps = False
            mine = vote(costs, self.every, self._limit, is_patient=self._spacing.is_patient)
            agreement.vote(window, mine, costs)
        if at >= self._closes_at and not self._has_closed:
            self._has_closed = True
            agreement.close(window, self.every)

    def _begin_window(self, before: int, step: int, agreement: Agreement) -> None:
        if not self._has_closed:
            agreement.close(before, self.every)
        self._has_voted = self._has_closed = False
        with phase("checkpoint"):
            agreed = agreement.result(before)
        if agreed is None:
            self._agreement = None
            return
        if self._spacing.follow(agreed.every):
            self._samples.start_over()
            if self._rank == 0:
                self._on_change(step, agreed)
