"""What a writer knows of its outbox is all of it, or it reads again."""

from __future__ import annotations

from holdfast.bus import Message
from holdfast.store.unpublished import KNOWN_MAX, READ_AGAIN_S, Unpublished


def _message(number: int) -> tuple[int, Message]:
    return number, Message(id=str(number), subject="s", body=b"")


ONE, TWO, THREE = map(_message, (1, 2, 3))


def _read(unpublished: Unpublished, *found: tuple[int, Message], limit: int = 10) -> None:
    unpublished.read(unpublished.reading(), found, limit)


def test_messages_are_known_from_their_commit_until_they_are_published() -> None:
    unpublished = Unpublished()
    assert unpublished.first(10) is None, "an earlier process may have left some"
    _read(unpublished, TWO)
    for emitted in ([THREE], [ONE]):
        unpublished.emitting()
        assert unpublished.first(10) == [TWO, THREE][: 1 + (emitted == [ONE])], "its commit may fail"
        unpublished.committed(emitted)
    assert unpublished.first(2) == [ONE, TWO], "in the order of their positions"
    unpublished.published([1, 2, 7])
    assert unpublished.first(10) == [THREE]


def test_nothing_is_known_after_a_commit_that_may_have_happened() -> None:
    unpublished = Unpublished()
    _read(unpublished)
    unpublished.emitting()
    unpublished.failed()
    assert unpublished.first(10) is None
    _read(unpublished, ONE)
    assert unpublished.first(10) == [ONE]
    unpublished.changed()
    assert unpublished.first(10) is None


def test_a_reading_that_may_have_missed_a_commit_is_not_taken_for_all() -> None:
    unpublished = Unpublished()
    unpublished.emitting()
    across = unpublished.reading()
    unpublished.committed([ONE])
    unpublished.read(across, [], 10)
    assert unpublished.first(10) is None
    before = unpublished.reading()
    unpublished.emitting()
    unpublished.committed([TWO])
    unpublished.read(before, [ONE], 10)
    assert unpublished.first(10) is None
    during = unpublished.reading()
    unpublished.emitting()
    unpublished.read(during, [ONE, TWO], 10)
    assert unpublished.first(10) is None
    unpublished.failed()
    before = unpublished.reading()
    unpublished.changed()
    unpublished.read(before, [ONE, TWO], 10)
    assert unpublished.first(10) is None
    _read(unpublished, ONE, TWO, limit=2)
    assert unpublished.first(10) is None, "there may be more"


def test_it_reads_again_after_a_while_and_does_not_hold_many() -> None:
    now = 0.0
    unpublished = Unpublished(lambda: now)
    _read(unpublished, ONE)
    now = READ_AGAIN_S - 0.1
    assert unpublished.first(10) == [ONE]
    now = READ_AGAIN_S
    assert unpublished.first(10) is None
    _read(unpublished)
    unpublished.emitting()
    unpublished.committed([_message(number) for number in range(KNOWN_MAX + 1)])
    assert unpublished.first(10) is None
