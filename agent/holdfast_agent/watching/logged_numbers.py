"""Numbers from a crew's training logs, matched to the ledgers' steps and turned into events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, Protocol

import msgspec

from holdfast.events import NumbersLogged
from holdfast.events.parts.samples import LoggedSample, StepSample
from holdfast.events.parts.scalars import INTEGER_MAX
from holdfast.events.parts.training_quantities import named_tags
from holdfast.fresh_ids import uuid7
from holdfast_agent.plan.node_state import Crew
from holdfast_agent.training_logs.log_reader import LogNews, LogReader, WatchedRanks
from holdfast_agent.training_logs.open_files import FileKey
from holdfast_agent.training_logs.readings import StepReading
from holdfast_agent.training_logs.step_clock import StepClock
from holdfast_agent.training_logs.tags import Tags
from holdfast_agent.watching.ledgers import moment
from holdfast_agent.zygote.wire import Fence

SAMPLES_MAX = 1_000
"""Maximum number of samples in one event."""
FILES_REMEMBERED_MAX = 256
PATHS_MAX = 256
PATH_CHARS_MAX = 1_024
NEVER: Fence = (-1, -1)


class LogsRead(msgspec.Struct, frozen=True, kw_only=True):
    """Read positions in a job's logs; for this order also the number of samples emitted, and paths reported by rank."""

    fence: Fence
    offsets: tuple[tuple[FileKey, int], ...] = ()
    said: int = 0
    paths: dict[str, int] = {}


class Ledgers(Protocol):
    """The part of `LedgerBook` that is needed here."""

    def began_ns(self, rank: int) -> int | None:
        """Return when a rank began its ledger; None if it has not."""
        ...

    def is_read_from_first(self, rank: int) -> bool:
        """Return True if all steps of a rank are seen."""
        ...


class LoggedNumbers:
    """The training logs of the current crew. `ledgers` returns the crew's ledgers."""

    def __init__(self, ledgers: Callable[[], Ledgers], reader: LogReader | None = None) -> None:
        self._reader = reader or LogReader()
        self._ledgers = ledgers
        self._crew: Crew | None = None
        self._watched: WatchedRanks | None = None
        self._clocks: dict[int, StepClock] = {}
        self._tags = Tags()
        self._read = LogsRead(fence=NEVER)
        self._waiting: list[LogNews] = []

    def watch(self, crew: Crew | None, read: LogsRead | None = None) -> None:
        """Read the logs of this crew from now on. `read` holds the remembered positions of its job."""
        before, self._crew = self._crew, crew
        placement = crew.order.placement if crew is not None else None
        if crew is None or placement is None:
            self._watched = None
            self._reader.watch(None)
            return
        is_new = before is None or before.order.fence != crew.order.fence
        if is_new:
            self._clocks.clear()
            self._waiting.clear()
            self._tags = Tags(named_tags(placement.job.tags))
            self._read = read or LogsRead(fence=NEVER)
            if self._read.fence != crew.order.fence:
                self._read = LogsRead(fence=crew.order.fence, offsets=self._read.offsets)
        self._watched = WatchedRanks(
            fence=crew.order.fence,
            pids=crew.pids,
            user=crew.user,
            tags=self._tags,
            paths=self._read.paths,
            folder=placement.job.cwd,
            patterns=placement.job.training_logs,
            first_rank=placement.ranks.start,
        )
        self._reader.watch(self._watched, dict(self._read.offsets) if is_new else None)

    def add_reported(self, rank: int, path: str) -> LogsRead:
        """Add a log that a rank of this crew reported; return the state to remember."""
        if self._watched is not None and len(self._read.paths) < PATHS_MAX:
            self._read = msgspec.structs.replace(self._read, paths=self._read.paths | {path: rank})
            self._watched = msgspec.structs.replace(self._watched, paths=self._read.paths)
            self._reader.watch(self._watched)
        return self._read

    def note_steps(self, samples: Iterable[StepSample]) -> None:
        for sample in samples:
            if sample.rank not in self._clocks:
                self._clocks[sample.rank] = StepClock(from_first=self._ledgers().is_read_from_first(sample.rank))
            self._clocks[sample.rank].add(sample.step, int(sample.ended_at.timestamp() * 1e9))

    def take(self) -> None:
        """Take the numbers read so far. Steps that ended earlier must have been noted before."""
        self._waiting += self._reader.take()

    def take_events(self, common: Mapping[str, Any]) -> tuple[list[NumbersLogged], LogsRead | None]:
        """Return the events for the numbers taken, and the state to remember. `common`: the fields of all events."""
        if not self._waiting:
            return [], None
        events: list[NumbersLogged] = []
        said, offsets = self._read.said, dict(self._read.offsets)
        for news in self._waiting:
            samples = [sample for reading in news.readings if (sample := self._sample(news.rank, reading)) is not None]
            for at in range(0, len(samples), SAMPLES_MAX):
                batch = tuple(samples[at : at + SAMPLES_MAX])
                events.append(
                    NumbersLogged(
                        id=uuid7(),
                        **common,
                        samples=batch,
                        kind="wandb" if news.kind == "wandb" else "tensorboard",
                        path=news.path[:PATH_CHARS_MAX],
                        tags=news.tags,
                        before=said,
                    )
                )
                said += len(batch)
            # Newest last.
            offsets.pop(news.key, None)
            offsets[news.key] = news.offset
        self._waiting.clear()
        kept = tuple(offsets.items())[-FILES_REMEMBERED_MAX:]
        self._read = msgspec.structs.replace(self._read, offsets=kept, said=said)
        return events, self._read

    def _sample(self, rank: int, reading: StepReading) -> LoggedSample | None:
        began_ns, clock = self._ledgers().began_ns(rank), self._clocks.get(rank)
        # Numbers logged before this rank began are from an earlier generation that wrote into the same file.
        if began_ns is None or reading.at_ns < began_ns or clock is None:
            return None
        step = clock.step_at(reading.at_ns)
        if step is None:
            return None
        finite = {name: value for name, value in reading.values.items() if isfinite(value)}
        return LoggedSample(
            rank=rank,
            step=step,
            logged_step=max(-INTEGER_MAX, min(reading.step, INTEGER_MAX)),
            logged_at=moment(reading.at_ns),
            not_finite={name: str(value) for name, value in reading.values.items() if name not in finite},
            **finite,
        )
