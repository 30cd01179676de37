"""What a crew's training logs say, put on the ledgers' count of steps, ready to be said."""

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
"""Samples in one event."""
FILES_REMEMBERED_MAX = 256
PATHS_MAX = 256
PATH_CHARS_MAX = 1_024
NEVER: Fence = (-1, -1)


class LogsRead(msgspec.Struct, frozen=True, kw_only=True):
    """How far the logs of a job have been read; of this order, how many samples were said and what ranks (by number)
    said of paths."""

    fence: Fence
    offsets: tuple[tuple[FileKey, int], ...] = ()
    said: int = 0
    paths: dict[str, int] = {}


class Ledgers(Protocol):
    """What must be known of ledgers, see `LedgerBook`."""

    def began_ns(self, rank: int) -> int | None:
        """When a rank began; None: it did not yet."""
        ...

    def is_read_from_first(self, rank: int) -> bool:
        """Whether all of its steps are seen."""
        ...


class LoggedNumbers:
    """The logs of one crew after the other. `ledgers` gives those of the present one."""

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
        """From now on read the logs of this crew. `read` is what was remembered of its job."""
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
            tags=self._tags,
            paths=self._read.paths,
            folder=placement.job.cwd,
            patterns=placement.job.training_logs,
            first_rank=placement.ranks.start,
        )
        self._reader.watch(self._watched, dict(self._read.offsets) if is_new else None)

    def told_of(self, rank: int, path: str) -> LogsRead:
        """A rank of the present crew says that it writes this log; what to remember."""
        if self._watched is not None and len(self._read.paths) < PATHS_MAX:
            self._read = msgspec.structs.replace(self._read, paths=self._read.paths | {path: rank})
            self._watched = msgspec.structs.replace(self._watched, paths=self._read.paths)
            self._reader.watch(self._watched)
        return self._read

    def saw(self, samples: Iterable[StepSample]) -> None:
        """These steps were completed."""
        for sample in samples:
            if sample.rank not in self._clocks:
                self._clocks[sample.rank] = StepClock(from_first=self._ledgers().is_read_from_first(sample.rank))
            self._clocks[sample.rank].add(sample.step, int(sample.ended_at.timestamp() * 1e9))

    def take(self) -> None:
        """Take what was read up to now; the steps that ended before it must have been seen."""
        self._waiting += self._reader.take()

    def to_say(self, common: Mapping[str, Any]) -> tuple[list[NumbersLogged], LogsRead | None]:
        """The events of what was taken, and what to remember with them. `common`: what all events of the crew share."""
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
            # The newest stand last.
            offsets.pop(news.key, None)
            offsets[news.key] = news.offset
        self._waiting.clear()
        kept = tuple(offsets.items())[-FILES_REMEMBERED_MAX:]
        self._read = msgspec.structs.replace(self._read, offsets=kept, said=said)
        return events, self._read

    def _sample(self, rank: int, reading: StepReading) -> LoggedSample | None:
        began_ns, clock = self._ledgers().began_ns(rank), self._clocks.get(rank)
        # What was logged before this rank began is of an earlier generation that wrote into the same file.
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
