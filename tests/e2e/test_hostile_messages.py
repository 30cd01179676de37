"""Hostile and broken messages on every kind of subject disturb no running job, and can be looked at."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hostile
import pytest
from cluster import Cluster
from records import check_record, check_steps

from holdfast.orders.base import UnreadableOrder
from holdfast.orders.node import NodeOrder

pytestmark = pytest.mark.e2e


def test_on_streams_they_end_as_dead_letters_whole_and_counted(holdfast: Cluster) -> None:
    url = holdfast.info.nats_url
    job = holdfast.run()
    job.until_step(10)
    before, restarts = job.pids(), _restarts(holdfast)
    known = holdfast.query("select count(*) as letters from historian.dead_letters")[0]["letters"]
    kept_before = Counter(hostile.dead_letters(url))
    messages = list(hostile.stream_messages(job.name, holdfast.members(job)[0]))
    hostile.send(url, messages)

    def counted() -> bool:
        rows = holdfast.query("select consumer, subject from historian.dead_letters where consumer = 'historian'")
        return len(rows) >= len(messages)

    holdfast.until("the historian has recorded every rejection", counted)
    job.until_step(job.step() + 20)
    assert job.pids() == before
    assert _restarts(holdfast) == restarts

    # Everything else is handled as before.
    rank = job.kill_rank(1)
    job.until_step(rank.step + 5, generation=2)
    job.finish()
    check_record(holdfast, job)
    check_steps(holdfast, job)
    assert len(holdfast.incidents(job)) == 1

    kept = Counter(hostile.dead_letters(url)) - kept_before
    lost = Counter(message.body for message in messages) - kept
    assert not lost, f"not kept whole: {[body[:80] for body in lost]}"
    overview = holdfast.status()["overview"]
    assert overview["dead_letters"] == sum(kept.values()) + sum(kept_before.values())
    rows = holdfast.query("select consumer, subject, error, body_bytes from historian.dead_letters")
    assert len(rows) - known == sum(kept.values())
    assert {row["subject"] for row in rows} >= {message.subject for message in messages}
    assert max(row["body_bytes"] for row in rows) > hostile.LONG_EVENT_BYTES
    assert all(row["error"] for row in rows)


def test_orders_that_cannot_be_read_are_put_right(holdfast: Cluster) -> None:
    url = holdfast.info.nats_url
    job = holdfast.run()
    job.until_step(10)
    before = job.pids()
    node = holdfast.members(job)[1]
    order = NodeOrder.decode(hostile.desired_of(url, node))
    for message in hostile.order_messages(node):
        known = len(hostile.dead_letters(url))
        hostile.send(url, [message])
        holdfast.until("it is a dead letter", lambda known=known: len(hostile.dead_letters(url)) > known)
    holdfast.until("the true order is back", lambda: _order(url, node) == order)
    job.until_step(job.step() + 10)
    assert job.pids() == before
    rank = job.kill_rank(2)
    job.until_step(rank.step + 5, generation=2)
    job.finish()
    check_record(holdfast, job)


FAR = 10**9


@pytest.mark.parametrize(
    "forgery",
    [
        {"epoch": FAR, "generation": 1000},
        pytest.param({"generation": FAR, "placement": None}, marks=pytest.mark.long),
    ],
    ids=["epoch", "generation, no ranks"],
)
def test_an_order_that_the_controller_did_not_sign_changes_nothing(holdfast: Cluster, forgery: dict[str, Any]) -> None:
    url = holdfast.info.nats_url
    job = holdfast.run()
    job.until_step(10)
    before, restarts = job.pids(), _restarts(holdfast)
    node = holdfast.members(job)[1]
    order = NodeOrder.decode(hostile.desired_of(url, node))
    known = len(hostile.dead_letters(url))
    hostile.send(url, [hostile.forged(order, **forgery)])
    holdfast.until("it is a dead letter", lambda: len(hostile.dead_letters(url)) > known)
    assert hostile.dead_letters(url)[-1] == b"", "it may hold secrets of the job"
    holdfast.until("the true order is back", lambda: _order(url, node) == order)
    job.until_step(job.step() + 10)
    assert (job.pids(), job.generation()) == (before, 1)

    job.finish()
    assert _restarts(holdfast) == restarts
    check_record(holdfast, job)
    assert not holdfast.incidents(job)
    assert not holdfast.events(job, "order_refused")


def test_what_no_stream_keeps_disturbs_nobody(holdfast: Cluster) -> None:
    job = holdfast.run()
    job.until_step(10)
    before, restarts, nodes = job.pids(), _restarts(holdfast), holdfast.nodes().keys()
    hostile.send(holdfast.info.nats_url, list(hostile.passing_messages(job.name)) * 3)
    answers = hostile.ask(holdfast.info.nats_url, list(hostile.request_messages()))
    assert not [answer for answer in answers if answer["accepted"]]
    assert all(answer["message"] for answer in answers)
    job.until_step(job.step() + 20)
    assert job.pids() == before
    assert _restarts(holdfast) == restarts
    assert holdfast.nodes().keys() == nodes
    printed = len(job.printed_steps())
    job.until("its output goes on", lambda: len(job.printed_steps()) > printed)
    job.finish()
    check_record(holdfast, job)


GOOD_SUBJECT = b"holdfast.v1.evidence.progress._._"
GOOD_HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"


MALFORMED = {
    "no colon": (GOOD_SUBJECT, b"NATS/1.0\r\nno colon here\r\n\r\n"),
    "no header block": (GOOD_SUBJECT, b"\xff\xfe\x00\r\n\r\n"),
    "bytes in the status": (GOOD_SUBJECT, b"NATS/1.0 \xff\xff\xff\r\n\r\n"),
    "bytes in a value": (GOOD_SUBJECT, b"NATS/1.0\r\nA: \xff\r\n\r\n"),
    "a heartbeat": (GOOD_SUBJECT, b"NATS/1.0 100 Idle Heartbeat\r\n\r\n"),
    "bytes in the subject": (GOOD_SUBJECT + b"\xff\xfe", GOOD_HEADERS),
}


def test_what_no_client_library_would_send_holds_up_nothing(holdfast: Cluster) -> None:
    url = holdfast.info.nats_url
    job = holdfast.run()
    job.until_step(5)
    restarts = _restarts(holdfast)
    for name, (subject, headers) in MALFORMED.items():
        body = b"nobody's event " + name.encode()
        hostile.send_raw(url, subject, headers, body)
        holdfast.until(f"{name}: it is a dead letter", lambda body=body: body in hostile.dead_letters(url))
    rank = job.kill_rank(1)
    job.until_step(rank.step + 5, generation=2)
    job.finish()
    check_record(holdfast, job)
    assert _restarts(holdfast) == restarts


def _restarts(cluster: Cluster) -> dict[str, int]:
    return {name: child.restarts for name, child in cluster.children().items()}


def _order(url: str, node: str) -> NodeOrder | None:
    try:
        return NodeOrder.decode(hostile.desired_of(url, node))
    except UnreadableOrder:
        return None
