"""What the views say in words: rejected messages, reasons, and what logs and output have shown."""

from __future__ import annotations

import pytest

from holdfast.events import (
    BadNumber,
    DeadlinePassed,
    LogSignature,
    MessageRejected,
    MfuDeclined,
    NumbersLogged,
    TelemetryMeasured,
    ThroughputMeasured,
)
from holdfast.events.parts.devices import DeviceActivity, PortActivity
from holdfast.events.parts.ranks import RankException
from holdfast.events.parts.samples import LoggedSample
from tests.integration.historian_scene import (
    INCIDENTS,
    TIMELINE,
    Story,
    assert_phases_add_up,
    database,
    one,
    query,
    record,
)

pytestmark = pytest.mark.integration


urls = database("historian_words")


async def test_rejected_messages_are_listed(urls: dict[str, str]) -> None:
    story = Story("rejected")
    story.say(
        MessageRejected,
        1,
        job=None,
        subject="holdfast.v1.x",
        consumer="controller",
        error="no",
        body_bytes=7,
        deliveries=1,
    )
    await record(urls["historian"], story.events)
    row = await one(urls, "select * from historian.dead_letters where subject = 'holdfast.v1.x'")
    assert (row["consumer"], row["error"], row["body_bytes"], row["deliveries"]) == ("controller", "no", 7, 1)


async def test_words_for_a_script_that_raises_and_a_deadline(urls: dict[str, str]) -> None:
    story = Story("words")
    story.submit()
    raised = RankException(type="ValueError", message="bad batch\nsecond line", traceback="Traceback ...")
    died = story.kill(1, step=-1)
    story.open(2, died, failed_step=-1)
    story.say(type(died), 2.5, rank=0, local_rank=0, exit_code=1, exited_at=story.at(2.5), exception=raised)
    story.say(DeadlinePassed, 3, awaited="first_step", waited_s=900.04, missing_nodes=("n1", "n2"))
    await record(urls["historian"], story.events)
    incident = await one(urls, INCIDENTS, "words")
    what = [event["what"] for event in await query(urls["reader"], TIMELINE, str(incident["incident"]))]
    assert what == [
        "rank 1 was killed by signal 9, before any step",
        "killed: rank 1 on n2 was killed by signal 9",
        "rank 0 raised ValueError: bad batch, before any step",
        "waited 900.0 s for first_step (missing: n1, n2)",
    ]


async def test_what_logs_and_output_say_and_the_pace(urls: dict[str, str]) -> None:
    story = Story("signals", nodes=("n1",))
    story.submit()
    logged = {"rank": 0, "logged_at": story.at(1), "step": 4}
    samples = (
        LoggedSample(logged_step=500, loss=1.5, mfu=0.4, **logged),  # type: ignore[arg-type]
        LoggedSample(logged_step=600, not_finite={"loss": "nan"}, **logged),  # type: ignore[arg-type]
    )
    story.say(
        NumbersLogged, 1, node="n1", samples=samples, kind="wandb", path="/run-a.wandb", tags={"loss": "train/loss"}
    )
    bad = {"step": 4, "rank": 0, "quantity": "loss", "kind": "nan", "certified": 2}
    story.say(BadNumber, 2, told_by="wandb", tag="train/loss", logged_step=600, **bad)
    story.say(LogSignature, 3, rank=1, signature="traceback", stream="err", lines=("Traceback",), count=7)
    story.say(LogSignature, 4, rank=1, signature="traceback", stream="err", lines=("Traceback",))
    story.say(ThroughputMeasured, 5, step=9, step_s=0.25, tokens_per_s=4096.0, mfu=0.412)
    story.say(ThroughputMeasured, 6, step=10, step_s=0.25)
    story.say(MfuDeclined, 7, step=99, since_step=50, share_left=0.65, step_s=0.4, symptom="mfu_decline")
    await record(urls["historian"], story.events)
    rows = await query(urls["reader"], "select * from historian.logged_numbers where job = $1", "signals")
    assert [(row["step"], row["logged_step"], row["loss"], row["mfu"], row["not_finite"]) for row in rows] == [
        (4, 500, 1.5, 0.4, None),
        (4, 600, None, None, '{"loss": "nan"}'),
    ]
    rows = await query(urls["reader"], "select * from historian.throughput where job = $1 order by at", "signals")
    assert [(row["step_s"], row["tokens_per_s"], row["mfu"], row["is_logged"]) for row in rows] == [
        (0.25, 4096.0, 0.412, False),
        (0.25, None, None, False),
    ]
    said = await query(
        urls["reader"],
        "select summary as what from historian.events where job = $1 and at > $2 order by at",
        "signals",
        story.at(0.5),
    )
    assert [row["what"] for row in said] == [
        "2 readings of /run-a.wandb",
        "loss of rank 0 is nan at step 4, certified up to step 2 (train/loss at 600 of a wandb log)",
        "rank 1 printed: Traceback (7 such lines)",
        "rank 1 printed: Traceback",
        "a step takes 0.250 s, 4096 tokens/s, MFU 41.2 %",
        "a step takes 0.250 s",
        "training at 65 % of its pace since step 50",
    ]


async def test_activity_of_devices_and_ports_is_a_row_each(urls: dict[str, str]) -> None:
    story = Story("devices", nodes=("n1",))
    devices = (
        DeviceActivity(device="0000:3b:00", rank=4, busy_share=0.5, tensor_share=0.0, link_sent_bytes_per_s=2e9),
        DeviceActivity(device="0000:3c:00"),
    )
    ports = (PortActivity(port="mlx5_0:1", sent_bytes_per_s=1e9),)
    story.say(TelemetryMeasured, 1, node="n1", ranks=(), interval_s=5.0, devices=devices, ports=ports)
    # As agents of earlier releases publish it.
    story.say(TelemetryMeasured, 2, node="n1", ranks=(), interval_s=5.0)
    await record(urls["historian"], story.events)
    first, second = await query(
        urls["reader"], "select * from historian.device_activity where job = 'devices' order by device"
    )
    assert (first["node"], first["rank"], first["busy_share"], first["tensor_share"]) == ("n1", 4, 0.5, 0.0)
    assert (first["link_sent_bytes_per_s"], first["link_received_bytes_per_s"]) == (2e9, None)
    assert (second["device"], second["rank"], second["busy_share"]) == ("0000:3c:00", None, None)
    port = await one(urls, "select * from historian.port_activity where job = 'devices'")
    assert (port["port"], port["sent_bytes_per_s"], port["received_bytes_per_s"]) == ("mlx5_0:1", 1e9, None)


async def test_phases_of_all_these_incidents_add_up(urls: dict[str, str]) -> None:
    assert await assert_phases_add_up(urls["reader"]) >= 1
