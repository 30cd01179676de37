"""A snapshot as tables: whole for a pipe, cut to the height of a terminal. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.cli.doctor.finding import Severity
from holdfast.cli.output.kept_steps import one_in
from holdfast.cli.output.phases import PHASES, TRAINING
from holdfast.cli.output.step_words import steps_lost
from holdfast.cli.output.tables import cell, printable, render
from holdfast.cli.top.cluster_snapshot import Snapshot, TopIncident

PLAIN_ROWS_MAX = 50
"""Rows of a table in a pipe; `--json` has more."""
_FRAME_LINES = 2
"""Lines around the rows of a table: its headers, and an empty one."""
SPARE = "standby"
WRONG = "wrong"
_GAP = "  "
_SENTENCES = frozenset({"PACE", "PHASES", "SUMMARY", "WHAT", "CURE", "REASON", "WHY", "ALERTS", "NOT AVAILABLE"})
"""Columns that are cut where a line is too long."""
_SENTENCE_MIN = 8


class Section(NamedTuple):
    """A table; `more` of its rows are left out."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: int = 0

    def cut(self, rows_max: int) -> Section:
        """Return the section with its first `rows_max` lines; if rows are left out, the last line counts them."""
        if len(self.rows) <= rows_max and not self.more:
            return self
        kept = self.rows[: max(0, min(rows_max, len(self.rows) + 1) - 1)]
        return self._replace(rows=kept, more=self.more + len(self.rows) - len(kept))

    @property
    def lines(self) -> int:
        """Lines that it takes, each row one."""
        return len(self.rows) + bool(self.more) + _FRAME_LINES if self.rows or self.more else 0


def headline(snapshot: Snapshot) -> str:
    nodes = ", ".join(f"{count} {state}" for state, count in sorted(snapshot.overview.nodes.items())) or "none yet"
    spare = snapshot.overview.nodes.get(SPARE, 0)
    jobs, incidents = len(snapshot.overview.jobs), len(snapshot.overview.open_incidents)
    parts = [
        f"{snapshot.at:%H:%M:%S} UTC",
        f"{jobs} job{'' if jobs == 1 else 's'}",
        f"nodes: {nodes}",
        f"{spare} spare",
        f"{incidents} open incident{'' if incidents == 1 else 's'}",
    ]
    return printable(" · ".join(parts))


def sections(snapshot: Snapshot) -> list[Section]:
    """Return all tables, whole, in the order in which a screen has them."""
    return [_problems(snapshot), _jobs(snapshot), _incidents(snapshot), _findings(snapshot), _nodes(snapshot)]


def plain(snapshot: Snapshot) -> str:
    """Return the snapshot for a pipe."""
    parts = [headline(snapshot)]
    for section in sections(snapshot):
        shown = section.cut(PLAIN_ROWS_MAX)
        if shown.lines:
            parts += ["", render(shown.headers, shown.rows), *([more_text(shown)] if shown.more else [])]
    return "\n".join(parts)


def fitted(snapshot: Snapshot, height: int) -> list[Section]:
    """Return tables that fit on a screen of `height` lines, below the headline. Long tables get the lines that short
    ones leave free."""
    wanted = [section for section in sections(snapshot) if section.lines]
    left, found = height - 1, list[Section]()
    # The shortest first: each may take an equal share of what is left.
    for number, section in enumerate(sorted(wanted, key=lambda section: section.lines)):
        share = left // (len(wanted) - number)
        shown = section if section.lines <= share else section.cut(share - _FRAME_LINES)
        if shown.lines <= share:
            found.append(shown)
            left -= shown.lines
    return sorted(found, key=lambda section: [it.title for it in wanted].index(section.title))


def more_text(section: Section) -> str:
    return f"... and {section.more:,} more {section.title}"


def _problems(snapshot: Snapshot) -> Section:
    return Section("problems", ("NOT AVAILABLE",), tuple((text,) for text in snapshot.problems))


def _jobs(snapshot: Snapshot) -> Section:
    rows = []
    for job in snapshot.overview.jobs:
        detail = snapshot.detail(job)
        lost = steps_lost(detail.lost_steps) if detail.incidents else None
        rows.append(
            (
                job.job,
                job.phase,
                job.last_step,
                job.pace,
                one_in(job.kept_every) if job.kept_every > 1 else None,
                None if detail.loss is None else f"{detail.loss:.4f}",
                None if detail.ettr is None else f"{100 * detail.ettr:.1f} %",
                lost,
                detail.nodes or None,
                job.open_incident,
                str(job.waits) if job.waits else None,
            )
        )
    headers = ("JOB", "PHASE", "STEP", "PACE", "KEEPS", "LOSS", "ETTR", "LOST STEPS", "NODES", "INCIDENT", "WHY")
    return Section("jobs", headers, tuple(rows))


def _incidents(snapshot: Snapshot) -> Section:
    rows = tuple(
        (
            it.number,
            it.job,
            f"{it.opened_at:%m-%d %H:%M:%S}",
            it.symptom,
            it.outcome,
            f"{it.seconds:.1f}",
            _phases(it),
            None if it.outcome == "open" and it.lost_steps is None else steps_lost(it.lost_steps),
            it.summary,
        )
        for it in snapshot.details.incidents
    )
    headers = ("INCIDENT", "JOB", "OPENED", "SYMPTOM", "OUTCOME", "SECONDS", "PHASES", "LOST STEPS", "SUMMARY")
    return Section("incidents", headers, rows)


def _phases(incident: TopIncident) -> str:
    """Return, for example, `detect 0.1, wait for nodes 12.4`; what rounds to nothing is left out."""
    took = [(name, incident.phases.get(name, 0.0)) for name in (*PHASES, TRAINING)]
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in took if seconds >= 0.05)


def _findings(snapshot: Snapshot) -> Section:
    rows = tuple(
        ("wrong" if it.severity is Severity.ERROR else "warning", it.about, it.what, it.cure)
        for it in snapshot.findings
    )
    return Section("complaints of the doctor", ("DOCTOR", "ABOUT", "WHAT", "CURE"), rows)


def _nodes(snapshot: Snapshot) -> Section:
    rows = tuple((it.node, it.state, it.job, ", ".join(it.alerts), it.reason) for it in snapshot.details.nodes)
    more = max(0, snapshot.nodes_total - len(rows))
    return Section("nodes", ("NODE", "STATE", "JOB", "ALERTS", "REASON"), rows, more)


def lines(section: Section, width: int) -> list[str]:
    """Return the table as lines of at most this width, headers first. Sentences give up their room before names do."""
    cells = [section.headers, *([cell(value) for value in row] for row in section.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while over > 0 and (place := _longest_sentence(section.headers, widths)) is not None:
        widths[place] -= 1
        over -= 1
    rows = (zip(line, widths, strict=True) for line in cells)
    texts = (_GAP.join(_shortened(text, room).ljust(room) for text, room in row).rstrip() for row in rows)
    return [_shortened(text, width) for text in texts]


def _longest_sentence(headers: tuple[str, ...], widths: list[int]) -> int | None:
    places = [place for place, header in enumerate(headers) if header in _SENTENCES and widths[place] > _SENTENCE_MIN]
    return max(places, key=lambda place: widths[place], default=None)


def _shortened(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(0, room - 1)] + "…"
