"""Reader of the ranks' ledgers: their current status and completed steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from math import isfinite
from pathlib import Path

import structlog

from holdfast.events.parts.samples import StepSample
from holdfast.events.parts.scalars import INTEGER_MAX
from holdfast.events.parts.step_source import StepSource
from holdfast.node.ledger.ledger_layout import LedgerError, LedgerSnapshot, Source, StepRecord
from holdfast.node.ledger.ledger_reader import LedgerReader
from holdfast_agent.plan.node_state import RankStatus
from holdfast_agent.watching.clock_steps import ClockSteps

log = structlog.get_logger(__name__)

STEP_SOURCES: dict[Source, StepSource] = {
    Source.NONE: "",
    Source.SCRIPT: "script",
    Source.FRAMEWORK: "framework",
    Source.RESTORED: "restored",
    Source.LOG: "log",
    Source.OPTIMIZER: "optimizer",
}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LedgerBook:
    """One crew's readable ledgers. `steps_read` gives the steps per rank that an earlier agent has already taken."""

    def __init__(
        self, paths: dict[int, Path], steps_read: Mapping[int, int] | None = None, clock: ClockSteps | None = None
    ) -> None:
        self._paths = paths
        self._read_before = dict(steps_read or {})
        self._readers: dict[int, LedgerReader] = {}
        self._unreadable: set[int] = set()
        self._clock = clock or ClockSteps()

    def statuses(self) -> dict[int, RankStatus]:
        found: dict[int, RankStatus] = {}
        self._clock.look()
        for rank, reader in self._open_readers():
            try:
                found[rank] = _status(reader.snapshot(), self._clock)
            except LedgerError as error:
                self._give_up(rank, error)
        return found

    def new_samples(self) -> tuple[list[StepSample], int]:
        """Return the steps completed since the last call, and the number of steps missed."""
        samples: list[StepSample] = []
        missed = 0
        for rank, reader in self._open_readers():
            try:
                steps, lost = reader.new_steps()
            except LedgerError as error:
                self._give_up(rank, error)
                continue
            missed += lost
            samples.extend(_sample(rank, step) for step in steps)
        return samples, missed

    def began_ns(self, rank: int) -> int | None:
        """Return the creation time of a rank's ledger in Unix ns; None if there is none yet."""
        reader = self._readers.get(rank)
        return None if reader is None else int(reader.created_ns)

    def is_read_from_first(self, rank: int) -> bool:
        """Return True if this book reads a rank's steps from the first one on."""
        return not self._read_before.get(rank)

    def steps_read(self) -> dict[int, int]:
        return self._read_before | {rank: reader.steps_read for rank, reader in self._readers.items()}

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _open_readers(self) -> Iterable[tuple[int, LedgerReader]]:
        for rank, path in self._paths.items():
            if rank in self._unreadable:
                continue
            if rank not in self._readers:
                try:
                    self._readers[rank] = LedgerReader(path, self._read_before.get(rank, 0))
                except FileNotFoundError:
                    continue
                except LedgerError as error:
                    self._give_up(rank, error)
                    continue
            yield rank, self._readers[rank]

    def _give_up(self, rank: int, error: LedgerError) -> None:
        log.error("a ledger cannot be read", rank=rank, reason=str(error))
        self._unreadable.add(rank)


def moment(unix_ns: int) -> datetime:
    """Convert Unix nanoseconds to a time."""
    return _EPOCH + timedelta(microseconds=unix_ns // 1000)


def _status(snapshot: LedgerSnapshot, clock: ClockSteps) -> RankStatus:
    changed_ns = max(snapshot.changed_ns, snapshot.collective.entered_ns, snapshot.collective.left_ns)
    return RankStatus(
        step=_bounded(snapshot.step),
        steps_done=snapshot.steps_done,
        is_numbered=snapshot.is_numbered,
        first=None if snapshot.first is None else _bounded(snapshot.first),
        step_source=STEP_SOURCES[snapshot.source],
        step_source_name=snapshot.source_name,
        is_start_known=snapshot.is_start_known,
        phase=snapshot.phase_name,
        phase_since=moment(snapshot.phase_started_ns),
        first_step_at=moment(snapshot.first_step_ns) if snapshot.first_step_ns else None,
        # Else every rank seems to make no progress for as long as the clock was put ahead.
        changed_at=moment(clock.present(changed_ns)),
        stepped_at=moment(clock.present(snapshot.step_started_ns)),
        collectives=min(snapshot.collective.entered, INTEGER_MAX),
        in_flight=snapshot.collective.in_flight,
        collective=snapshot.collective.name,
        has_ended=snapshot.exit_code is not None,
    )


def _sample(rank: int, step: StepRecord) -> StepSample:
    read = {"loss": step.loss, "grad_norm": step.grad_norm}
    not_finite = {name: str(number) for name, number in read.items() if number is not None and not isfinite(number)}
    return StepSample(
        rank=rank,
        step=_bounded(step.step),
        ended_at=moment(step.ended_ns),
        duration_s=step.duration_ns / 1e9,
        loss=None if "loss" in not_finite else step.loss,
        grad_norm=None if "grad_norm" in not_finite else step.grad_norm,
        tokens=None if step.tokens is None else max(0, min(step.tokens, INTEGER_MAX)),
        not_finite=not_finite,
    )


def _bounded(step: int) -> int:
    # Scripts number their steps freely; a number beyond the range of events would invalidate the whole event.
    return max(-1, min(step, INTEGER_MAX))
