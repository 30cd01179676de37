"""Failures of ranks as a person wants to see them: at once, the first one with its last lines, the same error once."""

from __future__ import annotations

import asyncio
import re
import signal
import textwrap
from collections.abc import Callable

from holdfast.engines.log_end import without_stacks
from holdfast.engines.wording import in_ranges
from holdfast.events import ProcessExited
from holdfast.events.parts.ranks import RankException

GATHER_S = 0.3
"""Time after a failure in which others count as part of it: ranks that run the same code fail at the same moment."""
LINES_MAX = 40
"""Lines shown of a traceback, the last ones."""
TAIL_LINES_MAX = 12
"""Lines shown of the output of a rank that raised nothing."""

_OWN_FRAME = re.compile(
    r'\s+File "(?:[^"]*/(?:holdfast_agent/zygote/[^"]*|holdfast/trainer/rank)\.py|<frozen runpy>)", line \d+ in '
)
"""A frame as faulthandler prints it."""
_NUMBER = re.compile(r"\d+")


class RankFailures:
    """The failures of one job. `show` prints a line; `is_shown` tells whether a rank's own output appears anyway."""

    def __init__(self, job: str, show: Callable[[str], None], is_shown: Callable[[int], bool]) -> None:
        self._job = job
        self._show = show
        self._is_shown = is_shown
        self._pending: list[ProcessExited] = []
        self._timer: asyncio.TimerHandle | None = None
        self._seen: set[str] = set()
        """Last lines that the user has seen."""
        self.ranks = 0
        """Number of the job's ranks, 0 if it is not known."""
        self.generation = 0
        """The newest one. A failure in an older one may be reported once that runs."""
        self.source_root = ""
        """Source tree of the job; "": not known."""

    def take(self, event: ProcessExited) -> None:
        """Note a failure, and show it with those that come at the same moment."""
        if event.purpose != "train":
            return
        self._pending.append(event)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self.flush)

    def flush(self) -> None:
        """Show what has come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        events, self._pending = sorted(self._pending, key=lambda event: event.exited_at), []
        groups: dict[tuple[str, str], list[ProcessExited]] = {}
        for event in events:
            groups.setdefault(_kind(event), []).append(event)
        for number, group in enumerate(groups.values()):
            text = f"{self._job}: {self._who(group)} {_what(group[0])}"
            if (group[0].generation or 0) < self.generation:
                text += f" (before generation {self.generation})"
            lines = last_lines(group[0])
            # Those that failed later, in another way, are as a rule the ones that lost their peer.
            if number == 0 and not self.has_shown(lines) and not any(self._is_shown(event.rank) for event in group):
                text += "\n" + textwrap.indent(self.readable(lines), "    ")
            self._show(text)
            self._seen |= {last_lines(event) for event in group}

    def has_shown(self, lines: str) -> bool:
        """Return True if the user has seen these last lines of a rank or a part of them, or there are none."""
        return not lines or any(lines.endswith(seen) for seen in self._seen if seen)

    def readable(self, text: str) -> str:
        """Return the text with paths of the source tree instead of those of its private copy on a node."""
        root = f"{self.source_root}/" if self.source_root else ""
        return re.sub(rf"[^\s\"']*/code/{re.escape(self._job)}/[0-9a-f]{{64}}/", lambda _: root, text)

    def _who(self, group: list[ProcessExited]) -> str:
        ranks, nodes = {event.rank for event in group}, {event.node or "an unknown node" for event in group}
        if len(ranks) == 1:
            return f"rank {group[0].rank} on {group[0].node}"
        count = f"{len(ranks)} of {self.ranks}" if self.ranks else str(len(ranks))
        where = ", ".join(sorted(nodes)) if len(nodes) <= 3 else f"{len(nodes)} nodes"
        return f"ranks {in_ranges(ranks)} ({count}) on {where}"


def last_lines(event: ProcessExited) -> str:
    """Return the end of a rank's output: its traceback, else the end of its output."""
    if event.exception is not None:
        return end_of_output(event.exception.traceback, LINES_MAX)
    return end_of_output(event.log_tail, TAIL_LINES_MAX)


def end_of_output(text: str, lines_max: int = LINES_MAX) -> str:
    """Return the last lines of what a rank printed.

    A process that is aborted prints the stacks of its threads last, and those lead through the process that it was
    forked from: only the innermost frames of the thread that was aborted are kept, those of the script.
    """
    lines = without_stacks(text.rstrip()).splitlines()
    return "\n".join([line for line in lines if not _OWN_FRAME.match(line)][-lines_max:]).strip("\n")


def _kind(event: ProcessExited) -> tuple[str, str]:
    """Return what is equal for failures of the same kind; numbers differ from rank to rank."""
    if event.exception is not None:
        return event.exception.type, _NUMBER.sub("#", event.exception.message)
    return f"{event.exit_code} {event.signal}", event.detail


def _what(event: ProcessExited) -> str:
    """Return what became of a rank, with the verb."""
    if event.exception is not None:
        if _lost_its_peer(event.exception):
            return f"lost the connection to another rank ({event.exception.type})"
        message = event.exception.message.strip()
        return f"failed: {event.exception.type}: {message}" if message else f"failed: {event.exception.type}"
    if event.signal is not None:
        try:
            return f"failed: killed by {signal.Signals(event.signal).name}"
        except ValueError:
            return f"failed: killed by signal {event.signal}"
    how = event.detail or "its process is gone" if event.exit_code is None else f"exit code {event.exit_code}"
    return f"failed: {how}"


def _lost_its_peer(exception: RankException) -> bool:
    """Return True if an exception only shows that another rank is gone."""
    # The rules are read once a rank has failed: most runs need none.
    from holdfast.engines.crash import rule_of_exception

    rule = rule_of_exception(exception.type, exception.message)
    return rule is not None and rule.hand == "cascade"
