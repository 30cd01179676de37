"""A rejected message is kept whole and reported, once."""

from datetime import UTC, datetime, timedelta

import msgspec
from holdfast_historian.deadletters import rejection, without_tail

from holdfast import events
from holdfast.events import MessageRejected

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
    letter, _ = rejection(Delivered("holdfast.v1.evidence.x._._", b"\x00\xff", deliveries=3), "bad\r\nthing", NOW)
    assert letter.subject == "holdfast.v1.deadletter.historian"
    assert letter.body == b"\x00\xff"
    assert letter.headers == {
        "Nats-Msg-Id": letter.id,
        "Holdfast-Error": "bad thing",
        "Holdfast-Subject": "holdfast.v1.evidence.x._._",
        "Holdfast-Deliveries": "3",
    }


def test_rejecting_again_repeats_the_ids() -> None:
    def ids(delivery: Delivered, now: datetime) -> list[str]:
        return [message.id for message in rejection(delivery, "e", now)]

    first = ids(Delivered("s", b"x", {"Nats-Msg-Id": "a"}), NOW)
    assert ids(Delivered("s", b"x", {"Nats-Msg-Id": "a"}, deliveries=2), NOW + timedelta(seconds=9)) == first
    assert not set(first) & set(ids(Delivered("s", b"x", {"Nats-Msg-Id": "b"}), NOW))


def test_the_report_is_an_event() -> None:
    _, report = rejection(Delivered("s\udc80\0", b"x" * 7), "why\0", NOW)
    event = events.decode(report.body)
    assert isinstance(event, MessageRejected)
    assert (event.subject, event.error, event.body_bytes) == ("s  ", "why ", 7)
    assert report.headers["Nats-Msg-Id"] == report.id


def test_a_letter_without_room_loses_its_tail_only() -> None:
    letter, _ = rejection(Delivered("s", b"x" * 1_048_576), "e", NOW)
    cut = without_tail(letter)
    assert letter.body.startswith(cut.body)
    assert (cut.id, cut.headers["Holdfast-Body-Bytes"]) == (letter.id, "1048576")
