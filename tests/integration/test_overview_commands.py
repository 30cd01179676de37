"""`holdfast status` and `holdfast top`: on a real database, with the stories of the views' tests."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from click.testing import CliRunner

from holdfast.bus import event_message
from holdfast.bus.nats import connect
from holdfast.cli.main import main
from holdfast.cli.output.overview import Overview, cluster_overview, overview_section
from holdfast.daemon.dead_letters import UnhandledMessage, rejection
from holdfast.events import (
    BusWentBack,
    Inspection,
    MessageRejected,
)
from holdfast.fresh_ids import uuid7
from tests.integration.commands_scene import WAITS, Scene, data, holdfast
from tests.integration.historian_scene import new_database, record
from tests.integration.servers import free_port

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def scene(embedded_postgres: str) -> Scene:
    scene = Scene(asyncio.run(new_database(embedded_postgres, "overview_commands")))
    asyncio.run(scene.set_up())
    return scene


def test_the_overview(scene: Scene, embedded_nats: str) -> None:
    async def with_a_dead_letter() -> tuple[Overview, Overview]:
        bus = await connect(embedded_nats, "test")
        before = await cluster_overview(scene.urls["reader"], embedded_nats)
        junk = UnhandledMessage(consumer="controller", subject="holdfast.v1.x", body=b"\x00junk", error="not JSON")
        letter, _ = rejection(junk, scene.story.at(0), bus.message_bytes_max)
        await bus.publish(letter)
        after = await cluster_overview(scene.urls["reader"], embedded_nats)
        await bus.close()
        return before, after

    rejected = MessageRejected(
        id=uuid7(),
        at=scene.story.at(0),
        source="controller",
        subject="holdfast.v1.x",
        consumer="controller",
        error="not JSON",
        body_bytes=5,
        deliveries=1,
    )
    assert event_message(rejected).subject == "holdfast.v1.evidence.message_rejected._._"
    asyncio.run(record(scene.urls["historian"], [rejected]))
    before, after = asyncio.run(with_a_dead_letter())
    assert after.problems == ()
    assert after.nodes == {"active": 1, "evicted": 1, "standby": 1}
    assert [(job.job, job.phase, job.generation, job.last_step) for job in after.jobs if not job.waits] == [
        ("gpt", "running", 2, 12),
        ("broken", "starting", 1, 0),
    ]
    assert f"Job late {WAITS}" in overview_section(after)
    assert [(line.incident, line.symptom) for line in after.open_incidents] == [(scene.open, "user_exception")]
    assert "Open incident 2 of job broken: " in overview_section(after)
    assert after.dead_letters == (before.dead_letters or 0) + 1
    newest = after.newest_dead_letter
    assert newest is not None
    assert (newest.consumer, newest.subject, newest.error, newest.body_bytes) == (
        *("controller", "holdfast.v1.x", "not JSON", 5),
    )
    assert [rejection.error for rejection in after.rejections] == ["not JSON"]


def test_top_has_jobs_incidents_and_nodes_as_status_and_doctor_have_them(
    scene: Scene, embedded_nats: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No node tells its time here.
    monkeypatch.setattr("holdfast.cli.doctor.reading_bus.LISTEN_S", 0.2)
    hot = {"check": "gpu", "symptom": "gpu_temperature", "device": "0000:3b:00", "confidence": "hint"}
    at = datetime.now(UTC)
    for node, states in (("n2", ("alert",)), ("n3", ("alert", "cleared"))):
        reports = [
            Inspection(id=uuid7(), at=at + timedelta(seconds=late - 9), source="agent", node=node, state=state, **hot)
            for late, state in enumerate(states)
        ]
        asyncio.run(record(scene.urls["historian"], reports))
    found = data(holdfast(scene, "top", "--json", "--nats-url", embedded_nats))
    alerts = {it["node"]: it["alerts"] for it in found["details"]["nodes"]}
    assert alerts == {"n1": [], "n2": ["gpu_temperature 0000:3b:00"], "n3": []}
    jobs = {job["job"]: (job["phase"], job["last_step"]) for job in found["overview"]["jobs"]}
    assert jobs["gpt"] == ("running", 12)
    assert found["details"]["jobs"]["gpt"]["lost_steps"] == 2
    listed = data(holdfast(scene, "incidents", "--json"))
    assert [it["number"] for it in found["details"]["incidents"]] == [it["number"] for it in listed][:20]
    recovered = next(it for it in listed if it["seconds_to_recover"])
    phases = next(it for it in found["details"]["incidents"] if it["number"] == recovered["number"])["phases"]
    assert sum(phases.values()) == pytest.approx(recovered["seconds_to_recover"])
    assert [it["state"] for it in found["details"]["nodes"]] == ["evicted", "active", "standby"]
    assert "controller" in {it["about"] for it in found["findings"]}
    nowhere = f"postgresql://x@127.0.0.1:{free_port()}/x"
    unread = CliRunner().invoke(main, ["top", "--once", "--nats-url", embedded_nats, "--database-url", nowhere])
    assert unread.exit_code == 1 and "cannot reach the database" in unread.stdout
    plain = holdfast(scene, "top", "--nats-url", embedded_nats).stdout
    assert re.search(r"^gpt +running +12 ", plain, re.MULTILINE)


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_top_is_drawn_on_a_terminal_and_leaves_it_as_it_was(scene: Scene, embedded_nats: str, key: bytes) -> None:
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    before = termios.tcgetattr(its)
    command = [sys.executable, "-m", "holdfast.cli", "top", "--nats-url", embedded_nats]
    process = subprocess.Popen(
        [*command, "--database-url", scene.urls["reader"]],
        stdin=its,
        stdout=its,
        stderr=its,
        env=os.environ | {"TERM": "xterm-256color"},
        preexec_fn=partial(_takes_terminal, its),
    )
    screen, is_pressed, until = b"", False, time.monotonic() + 30
    while process.poll() is None and time.monotonic() < until:
        if select.select([ours], [], [], 0.05)[0]:
            screen += os.read(ours, 1 << 16)
        if not is_pressed and b"gpt" in screen and b"n1" in screen:
            is_pressed = True
            assert not termios.tcgetattr(its)[3] & termios.ICANON
            os.write(ours, key)
    while select.select([ours], [], [], 0)[0]:
        screen += os.read(ours, 1 << 16)
    assert is_pressed, screen.decode()[-2000:]
    assert (process.wait(1), termios.tcgetattr(its)) == (0, before)
    # It was drawn on a screen of its own, and that and the cursor are put back.
    assert b"\x1b[?1049h" in screen and screen.index(b"\x1b[?1049h") < screen.rindex(b"\x1b[?1049l")
    assert screen.rindex(b"\x1b[?25h") > screen.rindex(b"\x1b[?25l")
    os.close(ours)
    os.close(its)


def _takes_terminal(terminal: int) -> None:
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def test_the_overview_names_what_the_bus_lost(scene: Scene, embedded_nats: str) -> None:
    now = datetime.now(UTC)
    lost = [
        BusWentBack(id=uuid7(), at=now, source=source, stream="DECISIONS", sequence=7)
        for source in ("controller", "standby")
    ]
    # A node writes the time of its events: this one would be shown until then.
    forged = BusWentBack(id=uuid7(), at=now.replace(year=9000), source="agent/x", stream="FORGED", sequence=7)
    asyncio.run(record(scene.urls["historian"], [*lost, forged]))
    text = overview_section(asyncio.run(cluster_overview(scene.urls["reader"], embedded_nats)))
    assert "The bus lost messages of stream DECISIONS" in text
    assert "2 publishers published theirs again" in text
    assert "FORGED" not in text


def test_the_overview_names_what_does_not_answer(scene: Scene, embedded_nats: str) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    overview = asyncio.run(cluster_overview(f"postgresql://x@{nowhere}/x", f"nats://{nowhere}"))
    assert overview.dead_letters is None
    assert [problem.split(":")[0] for problem in overview.problems] == [
        f"cannot reach the database at {nowhere.split(':')[0]}",
        "the bus does not answer",
    ]
    half = asyncio.run(cluster_overview(f"postgresql://x@{nowhere}/x", embedded_nats))
    assert half.dead_letters is not None
    assert len(half.problems) == 1
