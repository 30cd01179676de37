"""Reader of the ranks' collective rings: iterations continuously, profiles on request."""

from __future__ import annotations

from pathlib import Path

import structlog

from holdfast.engines.slow.device_times import with_device_times
from holdfast.engines.slow.period import IterationClock
from holdfast.engines.slow.sent_profiles import calls_of, profile_of
from holdfast.events.parts.samples import IterationSample, RankProfile
from holdfast.events.parts.traces import RankTrace
from holdfast.node.collectives.ring_path import ring_path
from holdfast.node.collectives.ring_reader import RingError, RingReader
from holdfast.node.ledger.ledger_layout import LedgerError, StepRecord
from holdfast.node.ledger.ledger_reader import LedgerReader

log = structlog.get_logger(__name__)


class IterationBook:
    """The iterations of one rank, from the ring beside `ledger`, which may not exist yet. All ranks that train together
    have the same pace.
    """

    def __init__(self, rank: int, ledger: Path) -> None:
        self._rank = rank
        self._path = ring_path(ledger)
        self._clock = IterationClock(rank)
        self._reader: RingReader | None = None
        self._unreadable = False

    def new_iterations(self) -> list[IterationSample]:
        """Return the iterations that ended since the last call."""
        if self._unreadable:
            return []
        try:
            if self._reader is None:
                self._reader = RingReader(self._path)
            records, _ = self._reader.new_records()
            groups = self._reader.groups()
        except OSError:
            # Not created yet, or no descriptors are left for now.
            return []
        except RingError as error:
            log.error("a ring of collectives cannot be read", rank=self._rank, reason=str(error))
            self._unreadable = True
            return []
        observed = map(self._clock.observe, calls_of(self._rank, records, groups))
        return [
            IterationSample(
                rank=self._rank,
                iteration=found.iteration,
                duration_s=found.duration_s,
                pattern=found.pattern,
                in_calls_s=found.in_calls_s,
            )
            for found in observed
            if found is not None
        ]

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def profile(rank: int, ledger: Path, last: int, device: RankTrace | None = None) -> RankProfile:
    """Profile the last `last` iterations of a rank by its ring and its device's flight recorder. What cannot be read is
    named in the profile's `unread`.
    """
    try:
        reader = RingReader(ring_path(ledger))
        try:
            records, _ = reader.records()
            groups = list(reader.groups())
        finally:
            reader.close()
        if device is not None:
            records, groups = with_device_times(records, groups, device)
        return profile_of(rank, _steps(ledger), records, groups, last)
    except (OSError, RingError) as error:
        return RankProfile(rank=rank, unread=str(error))


def _steps(ledger: Path) -> list[StepRecord]:
    """Return the steps that the ledger still has."""
    try:
        reader = LedgerReader(ledger)
        try:
            steps, _ = reader.new_steps()
            return steps
        finally:
            reader.close()
    except (OSError, LedgerError):
        return []
