"""Progress of simulations: a bar on a terminal, a line for each simulation elsewhere; Ctrl-C ends them safely."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from holdfast_proving.judging.scoring import Interrupted

SHOWN_EVERY_S = 0.25


class Watch:
    """Shows the progress of all simulations, and ends them once they are to be interrupted."""

    def __init__(self, total: int, console: Console) -> None:
        self.is_interrupted = False
        self._total = total
        self._over = 0
        self._console = console
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (BarColumn(30), TextColumn("{task.percentage:3.0f} %"), TextColumn("{task.description}"))
            self._bar = Progress(
                *columns, TimeRemainingColumn(), console=console, transient=True, refresh_per_second=1 / SHOWN_EVERY_S
            )
            self._task = self._bar.add_task("", total=float(total))

    def __call__(self, policy: str, seed: int, share: float) -> None:
        if self.is_interrupted:
            raise Interrupted
        if share >= 1.0:
            self._over += 1
        if self._bar is not None:
            done = self._over + (share if share < 1.0 else 0.0)
            self._bar.update(self._task, completed=done, description=f"{policy}, seed {seed}")
        elif share >= 1.0:
            self._console.print(f"{self._over} of {self._total}: {policy}, seed {seed}", highlight=False)

    @contextmanager
    def shown(self) -> Iterator[Watch]:
        """Show it; the first interrupt ends the simulations, a second one the process."""
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            if self._bar is None:
                yield self
            else:
                with self._bar:
                    yield self
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.is_interrupted = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
