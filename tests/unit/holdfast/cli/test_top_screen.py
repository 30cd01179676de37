"""The tables of `holdfast top`: what they show, and that they fit on a screen however large the cluster is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from holdfast.cli.doctor.finding import Finding, Severity
from holdfast.cli.output.overview import IncidentLine, JobLine, Overview
from holdfast.cli.top.cluster_snapshot import Details, JobDetail, Snapshot, TopIncident, TopNode
from holdfast.cli.top.screen import fitted, headline, lines, more_text, plain

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
OPEN = "01a22207-7fd9-7e0f-a27c-2b8055f481ff"

SMALL = Snapshot(
    at=NOW,
    overview=Overview(
        nodes={"active": 2, "lost": 1, "standby": 1},
        jobs=(
            JobLine(
                job="gpt",
                phase="starting",
                generation=3,
                incident=OPEN,
                incident_number=3,
                last_step=120,
                step_s=0.163,
                kept_every=8,
            ),
            JobLine(job="new", phase="claiming", generation=0, incident=None, last_step=None),
        ),
        open_incidents=(
            IncidentLine(incident=OPEN, job="gpt", opened_at=NOW, symptom="node_lost", summary="no sign", attempts=1),
        ),
    ),
    details=Details(
        jobs={"gpt": JobDetail(nodes=2, loss=2.30412, ettr=0.9377, incidents=1, lost_steps=None)},
        nodes=(
            TopNode(node="node-2", state="lost", reason="no heartbeat for 6.5 s"),
            TopNode(node="node-0", state="active", job="gpt", alerts=("gpu_temperature 0000:3b:00",)),
        ),
        incidents=(
            TopIncident(
                number=3,
                incident=OPEN,
                job="gpt",
                opened_at=NOW - timedelta(seconds=9),
                symptom="node_lost",
                outcome="open",
                summary="no sign\x1b[2J of node-2",
                phases={"detect": 6.5, "decide": 0.01, "wait for nodes": 2.49},
            ),
        ),
    ),
    findings=(
        Finding(kind="node", about="node-2", what="it is lost", cure="start its agent"),
        Finding(kind="clock", severity=Severity.WARNING, about="NATS", what="its clock is late", cure="NTP"),
    ),
)


def test_what_an_ended_incident_lost_is_unknown_in_words_where_nothing_shows_it() -> None:
    (open_one,) = SMALL.details.incidents
    ended = msgspec.structs.replace(open_one, outcome="recovered")
    for incident, shown in ((open_one, "-"), (ended, "unknown"), (msgspec.structs.replace(ended, lost_steps=0), "0")):
        text = plain(msgspec.structs.replace(SMALL, details=Details(incidents=(incident,))))
        (row,) = [line for line in text.splitlines() if "node_lost" in line and "no sign" in line]
        assert row.split("no sign")[0].split()[-1] == shown


def test_what_a_pipe_gets_has_everything_in_plain_lines() -> None:
    text = plain(SMALL)
    head, *rest = text.splitlines()
    assert head == ("12:00:00 UTC · 2 jobs · nodes: 2 active, 1 lost, 1 standby · 1 spare · 1 open incident")
    rows = [" ".join(line.split()) for line in rest]
    assert "gpt starting 120 0.163 s/step one step in 8 2.3041 93.8 % unknown 2 3 -" in rows
    assert "new claiming - - - - - - - - -" in rows
    assert any("detect 6.5, wait for nodes 2.5" in row and row.startswith("3 gpt 01-01 11:59:51") for row in rows)
    assert "wrong node-2 it is lost start its agent" in rows
    assert "node-0 active gpt gpu_temperature 0000:3b:00 -" in rows
    assert "... and 2 more nodes" in rows
    assert "\x1b" not in text and r"\x1b[2J" in text


def test_what_does_not_answer_is_named() -> None:
    broken = msgspec.structs.replace(SMALL, details=Details(), overview=Overview(problems=("the database is away",)))
    assert "the database is away" in plain(broken) and "nodes: none yet" in headline(broken)


@pytest.mark.parametrize(("height", "width"), [(24, 80), (50, 200), (8, 40), (3, 20), (1, 1)])
def test_it_fits_on_any_screen_and_counts_what_it_leaves_out(height: int, width: int) -> None:
    many = tuple(TopNode(node=f"node-{it}", state="active", job="gpt", reason="granted to gpt") for it in range(200))
    jobs = tuple(
        JobLine(job=f"job-{it}", phase="running", generation=1, incident=None, last_step=1) for it in range(30)
    )
    details = msgspec.structs.replace(SMALL.details, nodes=many, incidents=SMALL.details.incidents * 20)
    overview = msgspec.structs.replace(SMALL.overview, nodes={"active": 1000}, jobs=jobs)
    shown = fitted(msgspec.structs.replace(SMALL, overview=overview, details=details), height)
    texts = [[*lines(it, width), *([more_text(it)] if it.more else [])] for it in shown]
    assert 1 + sum(len(table) + 1 for table in texts) <= height
    assert all(len(line) <= width for it in shown for line in lines(it, width))
    there = {it.title: len(it.rows) + it.more for it in shown}
    assert there == {title: total for title, total in EXPECTED.items() if title in there}
    if height >= 24:
        assert there == EXPECTED
        assert "... and 9" in more_text(shown[-1])


EXPECTED = {"jobs": 30, "incidents": 20, "complaints of the doctor": 2, "nodes": 1000}
