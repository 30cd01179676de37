"""One line that says where a job stands, redrawn in place on a terminal; elsewhere only what changes is printed."""

from __future__ import annotations

import asyncio
import shutil
import time
from typing import TextIO

from holdfast.cli.output.tables import printable
from holdfast.code.manifest import short
from holdfast.events import (
    AnyEvent,
    Eviction,
    FirstStep,
    GenerationStarted,
    HotUpdate,
    IncidentClosed,
    IncidentOpened,
    JobFinished,
    NodesAwaited,
    Progress,
    Rollback,
    StepNotPersisted,
    StepsMeasured,
    Suspension,
)

DRAW_EVERY_S = 0.5


class StatusLine:
    """Takes a job's events and shows where it stands."""

    def __init__(self, job: str, out: TextIO) -> None:
        self._job = job
        self._out = out
        self._live = out.isatty()
        self._began = time.monotonic()
        self._drawn = False
        self._state = "waiting for nodes"
        self._generation = 0
        self._step = -1
        self._loss: float | None = None
        self._nodes = 0
        self._incident_at: float | None = None

    def stands(self, phase: str, generation: int, nodes: int) -> None:
        """Where the job stands already, for who did not hear how it came there."""
        self._state, self._generation, self._nodes = phase, generation, nodes
        self.say(f"{self._job}: {phase}, generation {generation}, on {nodes} nodes")

    def take(self, event: AnyEvent) -> None:
        """Take in an event of the job."""
        match event:
            case NodesAwaited():
                behind = f", behind job {event.behind}" if event.behind else ""
                self._state = f"waiting for nodes ({event.available} of {event.wanted} are there{behind})"
                self.say(f"{self._job}: {self._state}; it goes on when one registers")
            case GenerationStarted():
                self._generation = event.generation or 0
                self._nodes = len(event.nodes)
                self._state = "starting"
                self.say(f"{self._job}: generation {self._generation} on {', '.join(event.nodes)}: {event.reason}")
            case FirstStep():
                self._state = "training"
                self._step = max(self._step, event.step)
                if self._incident_at is not None:
                    seconds = time.monotonic() - self._incident_at
                    self._incident_at = None
                    self.say(f"{self._job}: training again after {seconds:.2f} s, step {event.step} done")
            case Progress():
                self._step = event.step
            case StepsMeasured():
                losses = [sample.loss for sample in event.samples if sample.loss is not None]
                self._loss = losses[-1] if losses else self._loss
            case IncidentOpened():
                self._incident_at = self._incident_at or time.monotonic()
                self.say(f"{self._job}: incident {event.incident}: {event.reason}")
            case Eviction() | Suspension() | IncidentClosed():
                words = {
                    Eviction: f"{event.node} is evicted",
                    Suspension: "suspended",
                    IncidentClosed: "incident closed",
                }
                self.say(f"{self._job}: {words[type(event)]}: {event.reason}")
            case HotUpdate() | Rollback():
                self.say(f"{self._job}: code version {event.number} ({short(event.version)}): {event.reason}")
            case StepNotPersisted():
                others = f", nor are {event.others} before it" if event.others else ""
                self.say(f"{self._job}: step {event.step} is not on the disk{others}: {event.node}: {event.reason}")
            case JobFinished():
                self._state = event.outcome
                self.say(f"{self._job}: {event.outcome}: {event.reason}")
            case _:
                pass

    def say(self, text: str, keep: str = "") -> None:
        """Print a line of its own; control characters are escaped, except those in `keep`."""
        self.clear()
        self._out.write(f"[holdfast] {printable(text, keep)}\n")
        self._out.flush()

    async def keep_drawing(self) -> None:
        """Redraw until cancelled."""
        while self._live:
            self._draw()
            await asyncio.sleep(DRAW_EVERY_S)

    def clear(self) -> None:
        """Make room for other output."""
        if self._drawn:
            self._out.write("\r\x1b[2K")
            self._drawn = False

    def _draw(self) -> None:
        loss = "" if self._loss is None else f" · loss {self._loss:.4f}"
        step = "" if self._step < 0 else f" · step {self._step}"
        text = (
            f"{self._job} · {self._state} · generation {self._generation} · {self._nodes} nodes{step}{loss}"
            f" · {time.monotonic() - self._began:.0f} s"
        )
        width = shutil.get_terminal_size().columns
        self._out.write("\r\x1b[2K" + printable(text)[: max(1, width - 1)])
        self._out.flush()
        self._drawn = True
