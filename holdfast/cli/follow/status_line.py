"""A line with the state of a job, redrawn in place on a terminal; elsewhere each change is printed."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from holdfast import events
from holdfast.cli.follow.live_numbers import LiveNumbers
from holdfast.cli.follow.rank_output import RankOutput
from holdfast.cli.incident_ids import number_or_id
from holdfast.cli.output.tables import printable
from holdfast.code.manifest import short

if TYPE_CHECKING:
    from rich.live import Live

DRAW_EVERY_S = 0.5

NOT_RESTARTED = ("no_way_to_resume", "no_way_to_grow")
"""Mechanisms that withhold a restart which a person may want, and can have by other means."""

STEPLESS_AFTER_S = 10.0
"""Time from the start of a generation until it is shown as training if it passes collectives without steps."""


class StatusLine:
    """The state of a job, kept from its events and shown to the user."""

    def __init__(self, job: str, out: TextIO) -> None:
        self._job = job
        self._out = out
        self._began = time.monotonic()
        self._live: Live | None = None
        self._state = "waiting for nodes"
        self._generation = 0
        self.numbers = LiveNumbers()
        self.output = RankOutput()
        self._nodes = 0
        self._incident_at: float | None = None
        self._started_at: datetime | None = None
        """When the present generation was started."""
        self.incident_numbers: dict[str, int] = {}
        """Numbers of incidents, by their ids, as far as they are known."""
        self.expects_nodes = False
        """The nodes of the job are about to start."""
        self.is_record_kept = True
        """False in a cluster that ends with the job, and its record with it."""

    def show_state(self, phase: str, generation: int, nodes: int) -> None:
        """Show the present state, for a command that received no events before."""
        self._state, self._generation, self._nodes = phase, generation, nodes
        self.print(f"{self._job}: {phase}, generation {generation}, on {nodes} nodes")

    def take(self, event: events.AnyEvent) -> None:
        """Update the state from an event of the job, and print what the user must know."""
        self.numbers.take(event)
        match event:
            case events.NodesAwaited() if not event.trains_on:
                behind = f", behind job {event.behind}" if event.behind else ""
                self._state = f"waiting for nodes ({event.available} of {event.wanted} are free{behind})"
                if self.expects_nodes:
                    self._state = "starting nodes"
                else:
                    self.print(f"{self._job}: {self._state}; {_what_follows(event)}")
            case events.GenerationStarted():
                self.expects_nodes = False
                self._generation = event.generation or 0
                self._nodes = len(event.nodes)
                self._state = "starting"
                self._started_at = event.at
                self.print(f"{self._job}: generation {self._generation} on {', '.join(event.nodes)}: {event.reason}")
            case events.FirstStep():
                self._state = "training"
                if self._incident_at is not None:
                    seconds = time.monotonic() - self._incident_at
                    self._incident_at = None
                    where = f"step {event.step} done{_start_in_words(event)}"
                    self.print(f"{self._job}: training again after {seconds:.2f} s, {where}")
            case events.Progress() if self._state == "starting" and self._goes_on_without_steps(event):
                self._state = "training, its steps are not seen"
                if self._incident_at is not None:
                    seconds = time.monotonic() - self._incident_at
                    self._incident_at = None
                    self.print(f"{self._job}: goes on {seconds:.0f} s after the failure; its steps are not seen")
            case events.IncidentOpened():
                self._incident_at = self._incident_at or time.monotonic()
                self.print(f"{self._job}: incident {self._incident(event.incident)}: {event.reason}")
            case events.IncidentClosed():
                name = self._incident(event.incident)
                more = f" (`holdfast show {name}`)" if self.is_record_kept else ""
                self.print(f"{self._job}: incident {name} closed: {event.reason}{more}")
            case events.Eviction() | events.Suspension():
                words = {events.Eviction: f"{event.node} is evicted", events.Suspension: "suspended"}
                self.print(f"{self._job}: {words[type(event)]}: {event.reason}")
            case events.Withheld() if event.mechanism in NOT_RESTARTED:
                self.print(f"{self._job}: {event.reason}")
            case events.HotUpdate() | events.Rollback():
                self.print(f"{self._job}: code version {event.number} ({short(event.version)}): {event.reason}")
            case events.StepNotPersisted():
                others = f", nor are {event.others} before it" if event.others else ""
                self.print(f"{self._job}: step {event.step} is not on the disk{others}: {event.node}: {event.reason}")
            case events.CopiesRefused():
                self.print(f"{self._job}: no copies go from {event.node} to {event.keeper}: {event.reason}")
            case events.JobFinished():
                self._state = event.outcome
                self.print(f"{self._job}: {event.outcome}: {event.reason}")
            case _:
                pass

    def _incident(self, incident: str | None) -> str:
        return number_or_id(incident or "", self.incident_numbers.get(incident or ""))

    def _goes_on_without_steps(self, event: events.Progress) -> bool:
        if self._started_at is None or event.generation != self._generation:
            return False
        is_old = (event.at - self._started_at).total_seconds() >= STEPLESS_AFTER_S
        return is_old and all(
            rank.collectives and not rank.steps_done and rank.since_change_s < 1.0 for rank in event.ranks
        )

    def print(self, text: str, keep: str = "") -> None:
        """Print a line; control characters are escaped, except those in `keep`."""
        self.clear()
        end = "\n" if self.output.end_line(on_terminal=self._out.isatty()) else ""
        self._out.write(f"{end}[holdfast] {printable(text, keep)}\n")
        self._out.flush()

    async def keep_drawing(self) -> None:
        """Redraw the line until cancelled; do nothing where there is no terminal."""
        while self._out.isatty():
            # A bar of progress that the script draws has the line.
            if not self.output.is_open:
                self._draw()
            await asyncio.sleep(DRAW_EVERY_S)

    def clear(self) -> None:
        """Erase the line before other output."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        where = ""
        if self._generation:
            where = f" · {self._nodes} node{'' if self._nodes == 1 else 's'} · generation {self._generation}"
        numbers, took_s = self.numbers.text(datetime.now(UTC)), time.monotonic() - self._began
        text = f"{self._job} · {self._state}{numbers}{where} · {took_s:.0f} s"
        if self._live is None:
            # The output of ranks goes to the standard output itself, not through this console.
            console = Console(file=self._out)
            self._live = Live(
                console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        self._live.update(Text(printable(text), no_wrap=True, overflow="ellipsis"), refresh=True)


def _what_follows(event: events.NodesAwaited) -> str:
    if event.at_least is None or event.behind or event.available < event.at_least:
        return f"it continues when {event.at_least} are" if event.at_least else "it continues when one registers"
    return f"it goes on with these if no more come within {event.last_call_s:g} s"


def _start_in_words(event: events.FirstStep) -> str:
    """Return a remark on steps whose number is not the job's."""
    if not event.is_start_known:
        why = event.step_source_name or "no number shows it"
        return f" by this generation's count; the job's own step is unknown: {why}"
    return "; the script began again from the start" if event.step <= 1 else ""
