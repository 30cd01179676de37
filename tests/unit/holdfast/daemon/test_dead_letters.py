"""A message that cannot be handled is kept whole and reported, once."""

from datetime import UTC, datetime, timedelta

from holdfast import events
from holdfast.daemon.dead_letters import HEADERS_BYTES_MAX, UnhandledMessage, rejection
from holdfast.events import MessageRejected

NOW = datetime(2025, 11, 20, tzinfo=UTC)
LIMIT = 1 << 20


def unhandled(**changes: object) -> UnhandledMessage:
    fields: dict[str, object] = {"consumer": "historian", "subject": "s", "body": b"x", "error": "e"}
    return UnhandledMessage(**(fields | changes))  # type: ignore[arg-type]


def test_the_letter_holds_the_body_and_says_why() -> None:
    letter, _ = rejection(
        unhandled(subject="holdfast.v1.evidence.x._._", body=b"\x00\xff", error="bad\r\nthing", deliveries=3),
        NOW,
        LIMIT,
    )
    assert letter.subject == "holdfast.v1.deadletter.historian"
    assert letter.body == b"\x00\xff"
    assert letter.headers == {
        "Nats-Msg-Id": letter.id,
        "Holdfast-Error": "bad thing",
        "Holdfast-Subject": "holdfast.v1.evidence.x._._",
        "Holdfast-Deliveries": "3",
        "Holdfast-Body-Bytes": "2",
    }


def test_the_letter_of_an_order_does_not_hold_the_secrets_of_its_job() -> None:
    letter, report = rejection(unhandled(subject="$KV.desired.node.n1", body=b"A_SECRET"), NOW, LIMIT)
    assert letter.body == b""
    assert letter.headers["Holdfast-Body-Bytes"] == "8"
    assert b"SECRET" not in report.body


def test_rejecting_again_repeats_the_ids() -> None:
    def ids(it: UnhandledMessage, now: datetime) -> list[str]:
        return [message.id for message in rejection(it, now, LIMIT)]

    first = ids(unhandled(message_id="a"), NOW)
    assert ids(unhandled(message_id="a", deliveries=2), NOW + timedelta(seconds=9)) == first
    assert not set(first) & set(ids(unhandled(message_id="b"), NOW))


def test_the_report_is_an_event() -> None:
    _, report = rejection(unhandled(subject="s\udc80\0", body=b"x" * 7, error="why\0"), NOW, LIMIT)
    event = events.decode(report.body)
    assert isinstance(event, MessageRejected)
    assert (event.subject, event.error, event.body_bytes) == ("s  ", "why ", 7)
    assert report.headers["Nats-Msg-Id"] == report.id


def test_a_letter_without_room_loses_its_tail_only() -> None:
    letter, _ = rejection(unhandled(body=b"x" * LIMIT), NOW, LIMIT)
    assert len(letter.body) == LIMIT - HEADERS_BYTES_MAX
    assert letter.headers["Holdfast-Body-Bytes"] == str(LIMIT)
