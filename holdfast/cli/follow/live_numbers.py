"""The numbers of a job in the line that `holdfast run` keeps on a terminal. Pure: times are those of events."""

from __future__ import annotations

from collections import deque
from datetime import datetime

from holdfast.cli.output.pace import pace_text
from holdfast.events import (
    AnyEvent,
    FirstStep,
    GenerationStarted,
    IncidentOpened,
    JobFinished,
    ProcessExited,
    Progress,
    StepsMeasured,
)

PACE_OVER = 20
"""Number of reports of progress, one a second, from which the pace is computed."""
ETTR_AFTER_S = 60.0
"""Time from which the share of training is shown: at first it only shows how long a start takes."""


class LiveNumbers:
    """Step, pace, loss, incidents and the share of time in which the job has trained, kept from its events."""

    def __init__(self) -> None:
        self.step = -1
        self._loss: float | None = None
        self._incidents: set[str] = set()
        self._reports: deque[tuple[datetime, int]] = deque(maxlen=PACE_OVER)
        self._began: datetime | None = None
        self._training_since: datetime | None = None
        self._trained_s = 0.0
        self.free_nodes: int | None = None
        """Nodes that could replace one; None: not known."""

    def take(self, event: AnyEvent) -> None:
        self._began = self._began or event.at
        match event:
            case GenerationStarted() | ProcessExited() | JobFinished():
                self._pause(event.at)
            case IncidentOpened():
                self._incidents.add(event.incident or event.id)
            case FirstStep():
                self._training_since = self._training_since or event.at
                self._note(event.at, event.step)
            case Progress():
                self._note(event.at, event.step)
            case StepsMeasured() if event.samples:
                losses = [sample.loss for sample in event.samples if sample.loss is not None]
                self._loss = losses[-1] if losses else self._loss
                self.step = max(self.step, *(sample.step for sample in event.samples), 0)
            case _:
                pass

    def text(self, now: datetime) -> str:
        """Return the numbers that are known, for example ` · step 120 · 0.16 s/step · loss 2.3041`."""
        parts = [f"step {self.step}"] if self.step >= 0 else []
        if pace := pace_text(self._pace_s(), None, None):
            parts.append(pace)
        if self._loss is not None:
            parts.append(f"loss {self._loss:.4f}")
        if (share := self._ettr(now)) is not None:
            parts.append(f"ETTR {100 * share:.1f} %")
        if count := len(self._incidents):
            parts.append(f"{count} incident{'' if count == 1 else 's'}")
        if self.free_nodes is not None:
            parts.append(f"{self.free_nodes} spare")
        return "".join(f" · {part}" for part in parts)

    def _note(self, at: datetime, step: int) -> None:
        # All nodes report: the newest step of the slowest would jump between them.
        if self._reports and step < self._reports[-1][1] and self._training_since is not None:
            return
        self.step = step
        if not self._reports or step > self._reports[-1][1]:
            self._reports.append((at, step))

    def _pause(self, at: datetime) -> None:
        """Note that the job does not train from now on, and that its steps may begin again."""
        if self._training_since is not None:
            self._trained_s += max(0.0, (at - self._training_since).total_seconds())
        self._training_since = None
        self._reports.clear()

    def _pace_s(self) -> float | None:
        if len(self._reports) < 2:
            return None
        (first, from_step), (last, to_step) = self._reports[0], self._reports[-1]
        took_s = (last - first).total_seconds()
        return took_s / (to_step - from_step) if took_s > 0 else None

    def _ettr(self, now: datetime) -> float | None:
        elapsed_s = (now - self._began).total_seconds() if self._began is not None else 0.0
        if elapsed_s < ETTR_AFTER_S:
            return None
        going_s = (now - self._training_since).total_seconds() if self._training_since is not None else 0.0
        return min(1.0, max(0.0, self._trained_s + going_s) / elapsed_s)
