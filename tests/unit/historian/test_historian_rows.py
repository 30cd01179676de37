"""Rows of events: the body as it arrived, its storable part, or a refusal with the reason."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import events
from holdfast.events import ProcessExited, UnreadableEvent
from holdfast_historian.rows import INTEGER_MAX, NUL_STAND_IN, canonical_row, row_of

ID = "019aa0f2-6c00-7000-8000-000000000001"
CAUSE = "019aa0f2-6c00-7000-8000-000000000002"
SUBJECT = "holdfast.v1.evidence.process_exited.gpt.n1"
AT = datetime(2025, 11, 20, 16, 51, 7, 250_000, tzinfo=UTC)


def exited(**fields: Any) -> dict[str, Any]:
    return {
        "type": "process_exited",
        "id": ID,
        "at": "2025-11-20T16:51:07.25Z",
        "source": "agent/n1",
        "job": "gpt",
        "generation": 7,
        "node": "n1",
        "cause": CAUSE,
        "rank": 5,
        "local_rank": 1,
        "exited_at": "2025-11-20T16:51:07.2Z",
    } | fields


def body_of(**fields: Any) -> bytes:
    return msgspec.json.encode(exited(**fields))


def test_an_ordinary_body_is_stored_byte_for_byte() -> None:
    body = body_of(log_tail="step 100\nstep 101\n", loss_of_a_later_version=0.1)
    row = row_of(SUBJECT, body)
    assert row.body is body
    assert row[:10] == (ID, AT, "evidence", "process_exited", "agent/n1", "gpt", 7, "n1", CAUSE, None)


def test_nul_becomes_its_symbol() -> None:
    row = row_of(SUBJECT, body_of(log_tail="a\0b", source="agent\0x", extra={"\0": ["\0"]}))
    stored = msgspec.json.decode(row.body)
    assert stored["log_tail"] == f"a{NUL_STAND_IN}b"
    assert stored["extra"] == {NUL_STAND_IN: [NUL_STAND_IN]}
    assert row.source == f"agent{NUL_STAND_IN}x"


def test_offsets_that_postgres_refuses_become_utc() -> None:
    row = row_of(SUBJECT, body_of(exited_at="2025-11-20T16:51:07+23:30"))
    assert msgspec.json.decode(row.body)["exited_at"] == "2025-11-19T17:21:07Z"


@pytest.mark.parametrize("value", [INTEGER_MAX + 1, -INTEGER_MAX - 1, 10**30, 10**400])
def test_integers_beyond_53_bits_are_refused(value: int) -> None:
    with pytest.raises(UnreadableEvent, match=r"\$\.rank"):
        row_of(SUBJECT, body_of().replace(b'"rank":5', b'"rank":%d' % value))


def test_moments_beyond_the_calendar_are_refused() -> None:
    with pytest.raises(UnreadableEvent, match="calendar"):
        row_of(SUBJECT, body_of(at="0001-01-01T00:00:00+14:00"))


def test_the_subject_must_be_that_of_the_event() -> None:
    with pytest.raises(UnreadableEvent, match="subject"):
        row_of("holdfast.v1.decision.eviction.gpt.n1", body_of())


def test_an_id_must_be_canonical_to_the_last_character() -> None:
    with pytest.raises(UnreadableEvent):
        row_of(SUBJECT, body_of(id=ID + "\n"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\xff\x13random",
        b"[]",
        b"null",
        b'{"type":"no_such_type"}',
        body_of(rank="five"),
        body_of(at=17),
        body_of().replace(b'"gpt"', b'"\\ud800"'),
        body_of().replace(b'"gpt"', b'"\xff"'),
        b"[" * 100_000,
        b"x" * 5_000_000,
    ],
)
def test_messages_that_are_no_events_are_refused(body: bytes) -> None:
    with pytest.raises(UnreadableEvent):
        row_of(SUBJECT, body)


def test_rewriting_drops_unknown_fields_only_when_they_are_unsound() -> None:
    sound = canonical_row(SUBJECT, body_of(later={"a": [1, 2.5, None, True]}))
    assert msgspec.json.decode(sound.body)["later"] == {"a": [1, 2.5, None, True]}
    unsound = canonical_row(SUBJECT, body_of(later="?").replace(b'"?"', b'"\xff"'))
    assert "later" not in msgspec.json.decode(unsound.body)
    assert unsound.id == ID


@given(
    log_tail=st.text(),
    rank=st.integers(0, INTEGER_MAX),
    extra=st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner)),
)
def test_rewriting_never_changes_known_fields(log_tail: str, rank: int, extra: Any) -> None:
    body = body_of(log_tail=log_tail, rank=rank, extra=extra)
    before, after = events.decode(body), events.decode(canonical_row(SUBJECT, body).body)
    assert isinstance(before, ProcessExited)
    assert after == msgspec.structs.replace(before, log_tail=log_tail.replace("\0", NUL_STAND_IN))
