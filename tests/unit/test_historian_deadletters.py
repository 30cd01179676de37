"""A rejected message is kept whole and reported, once."""

from datetime import UTC, datetime, timedelta

import msgspec
from holdfast_historian.deadletters import Rejected, dead_letter, rejection

from holdfast import events
from holdfast.events import BODY_BYTES_MAX, MessageRejected

NOW = datetime(2025, 11, 20, tzinfo=UTC)


class Delivered(msgspec.Struct):
    subject: str
    body: bytes
    headers: dict[str, str] = {}
    deliveries: int = 1

    async def ack(self) -> None: ...
    async def retry(self, delay_s: float) -> None: ...
    async def drop(self) -> None: ...


def test_the_letter_holds_the_body_and_says_why() -> None:
    letter = dead_letter(
        Rejected.of(Delivered("holdfast.v1.evidence.x._._", b"\x00\xff", deliveries=3), "bad\r\nthing")
    )
    assert letter.subject == "holdfast.v1.deadletter.historian"
    assert letter.body == b"\x00\xff"
    assert letter.headers == {
        "Holdfast-Error": "bad  thing",
        "Holdfast-Subject": "holdfast.v1.evidence.x._._",
        "Holdfast-Deliveries": "3",
        "Holdfast-Body-Bytes": "2",
    }


def test_a_cut_letter_tells_how_long_the_body_was() -> None:
    letter = dead_letter(Rejected.of(Delivered("s", b"x" * 5_000_000), "too long"), cut=True)
    assert len(letter.body) == BODY_BYTES_MAX
    assert letter.headers["Holdfast-Body-Bytes"] == "5000000"


def test_rejecting_again_repeats_the_ids() -> None:
    first = Rejected.of(Delivered("s", b"x", {"Nats-Msg-Id": "a"}), "e")
    again = Rejected.of(Delivered("s", b"x", {"Nats-Msg-Id": "a"}, deliveries=2), "e")
    other = Rejected.of(Delivered("s", b"x", {"Nats-Msg-Id": "b"}), "e")
    assert dead_letter(first).id == dead_letter(again).id != dead_letter(other).id
    assert rejection(first, NOW).id == rejection(again, NOW + timedelta(seconds=9)).id != rejection(other, NOW).id


def test_the_report_is_an_event() -> None:
    report = rejection(Rejected.of(Delivered("s\udc80\0", b"x" * 7), "why\0"), NOW)
    event = events.decode(report.body)
    assert isinstance(event, MessageRejected)
    assert (event.subject, event.error, event.body_bytes) == ("s  ", "why ", 7)
    assert report.headers["Nats-Msg-Id"] == report.id
