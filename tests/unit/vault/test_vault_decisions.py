"""What a vault decides without looking at a clock or a socket."""

from __future__ import annotations

import socket
import threading

import msgspec
import pytest

from holdfast.node.frames import receive
from holdfast.node.vault.messages import Answer, BackedUp, DamageNotice, SealedStep, ShardName, answers
from holdfast.orders.backup import BackupOrder
from holdfast_vault.assignments import Assignment, Assignments, JobId, refusal
from holdfast_vault.cuts import Cut, is_news, survives
from holdfast_vault.notices import NoticeQueue, Notices
from holdfast_vault.pacing import PAUSE_S_MAX, Pacing, TokenBucket
from holdfast_vault.peers.sending.backlog import Backlog, WaitingCopy


def at(step: int, generation: int = 1) -> SealedStep:
    return SealedStep(step=step, generation=generation)


def rank(number: int) -> ShardName:
    return ShardName(job="job", submitted_ms=1, world_size=4, rank=number)


def copy(number: int, step: int) -> WaitingCopy:
    return WaitingCopy(rank(number), at(step))


def order(generation: int, submitted_ms: int = 1, job: str = "job") -> BackupOrder:
    return BackupOrder(
        node="a", job=job, submitted_ms=submitted_ms, world_size=4, generation=generation, node_rank=0, nproc_per_node=2
    )


@pytest.mark.parametrize(
    ("sealed", "is_left"),
    [(at(7, 1), False), (at(50, 1), True), (at(51, 1), False), (at(51, 2), False), (at(51, 3), True), (at(1, 4), True)],
)
def test_only_the_step_it_went_on_from_and_later_generations_survive(sealed: SealedStep, is_left: bool) -> None:
    assert survives(sealed, Cut(generation=3, at_ns=5, kept=at(50, 1))) is is_left
    assert survives(sealed, None)


def test_nothing_older_survives_a_job_that_went_on_from_the_disk() -> None:
    cut = Cut(generation=3, at_ns=5, kept=None)
    assert not survives(at(50, 2), cut)
    assert survives(at(50, 3), cut)


def test_the_newest_cut_counts() -> None:
    cut = Cut(generation=3, at_ns=5, kept=None)
    assert is_news(cut, None)
    assert not is_news(cut, cut)
    assert is_news(Cut(generation=3, at_ns=6, kept=None), cut)
    assert is_news(Cut(generation=4, at_ns=1, kept=at(1)), cut)
    assert not is_news(Cut(generation=2, at_ns=9, kept=at(1)), cut)


def test_a_step_is_stayed_with_until_all_ranks_have_sent_it() -> None:
    backlog = Backlog()
    backlog.add(copy(0, 10))
    assert backlog.next() == copy(0, 10)
    backlog.add(copy(1, 10))
    backlog.add(copy(0, 11))
    assert backlog.done(copy(0, 10)) == 0
    assert backlog.next() == copy(1, 10)
    backlog.add(copy(1, 11))
    assert backlog.done(copy(1, 10)) == 0
    assert backlog.next() == copy(0, 11)
    assert backlog.done(copy(0, 11)) == 0
    assert backlog.next() == copy(1, 11)
    assert backlog.done(copy(1, 11)) == 0
    assert backlog.next() is None
    assert backlog.take_dropped() == []


def test_of_what_piled_up_the_newest_that_all_have_is_next() -> None:
    backlog = Backlog()
    for number in (0, 1):
        backlog.add(copy(number, 10))
    assert backlog.next() == copy(0, 10)
    for step in (11, 12, 13, 14):
        backlog.add(copy(0, step))
        if step < 14:
            backlog.add(copy(1, step))
    assert backlog.done(copy(0, 10)) == 0
    assert backlog.next() == copy(1, 10)
    assert backlog.done(copy(1, 10)) == 0
    # Rank 1 has not sealed 14: 13 is what both have.
    assert backlog.next() == copy(0, 13)
    assert set(backlog.take_dropped()) == {copy(0, 11), copy(0, 12), copy(1, 11), copy(1, 12)}
    assert backlog.done(copy(0, 13)) == 2
    assert backlog.next() == copy(1, 13)
    assert backlog.done(copy(1, 13)) == 2
    assert backlog.next() == copy(0, 14)


def test_a_rank_that_lags_is_waited_for_but_not_for_long() -> None:
    backlog = Backlog()
    for number in (0, 1):
        backlog.add(copy(number, 1))
    for number in (0, 1):
        assert backlog.next() == copy(number, 1)
        backlog.done(copy(number, 1))
    backlog.add(copy(0, 2))
    assert backlog.next() == copy(0, 2)
    backlog.done(copy(0, 2))
    backlog.add(copy(0, 3))
    assert backlog.next() is None
    backlog.add(copy(0, 4))
    assert backlog.next() == copy(0, 4)
    # It comes back with what the others have long sent: theirs and its own are then together again.
    backlog.add(copy(1, 4))
    backlog.done(copy(0, 4))
    assert backlog.next() == copy(1, 4)


def test_all_ranks_come_to_their_turn_however_slow_the_network_is() -> None:
    backlog, sent = Backlog(), dict.fromkeys(range(3), 0)
    for step in range(1, 200):
        for number in sent:
            backlog.add(copy(number, step))
        # Time for one copy in each step of three ranks.
        now = backlog.next()
        assert now is not None
        backlog.done(now)
        sent[now.name.rank] += 1
    assert max(sent.values()) - min(sent.values()) <= 1


def test_tokens_let_no_more_through_than_the_rate() -> None:
    bucket, now, total = TokenBucket(100.0, 50, 0.0), 0.0, 0
    assert bucket.wait_s(50, now) == 0.0
    while now < 100.0:
        now += bucket.wait_s(30, now)
        total += 30
    assert total == pytest.approx(100.0 * 100, rel=0.01)
    # What was not used is not saved up beyond the burst.
    assert bucket.wait_s(50, now + 1000) == 0.0
    assert bucket.wait_s(10, now + 1000) == pytest.approx(0.1)


def test_without_a_rate_nothing_waits() -> None:
    assert TokenBucket(0.0, 1, 0.0).wait_s(1 << 40, 0.0) == 0.0


def test_copies_stand_back_while_ranks_talk_but_not_for_ever() -> None:
    is_hot = threading.Event()
    pacing = Pacing(TokenBucket(0.0, 1, 0.0), is_hot.is_set)
    assert pacing.pause_s(1.0) == 0.0
    is_hot.set()
    assert pacing.pause_s(2.0) > 0.0
    assert pacing.pause_s(2.0 + PAUSE_S_MAX / 2) > 0.0
    assert pacing.pause_s(2.0 + PAUSE_S_MAX * 1.01) == 0.0
    assert pacing.pause_s(3.0) > 0.0
    is_hot.clear()
    assert pacing.pause_s(3.001) == 0.0


def test_an_older_order_of_the_same_job_is_refused() -> None:
    present = order(5)
    assert refusal(None, present) is None
    assert refusal(present, order(5)) is None
    assert refusal(present, order(6)) is None
    assert refusal(msgspec.structs.replace(present, number=2), present) is not None, "an old order, brought back"
    assert refusal(msgspec.structs.replace(present, number=2), order(6)) is None
    assert refusal(present, order(1, submitted_ms=2)) is None
    assert "generation 4 is older" in (refusal(present, order(4)) or "")
    assert refusal(order(1, submitted_ms=2), order(9, submitted_ms=1)) is not None
    # It was submitted first and waited for this node until the other was done.
    assert refusal(order(9, submitted_ms=2), order(1, job="other", submitted_ms=1)) is None


def test_an_order_that_is_waited_for_is_found_when_it_comes() -> None:
    assignments, job = Assignments(), JobId("job", 1, 4)
    assignments.put(Assignment(order(1), ""))
    assert assignments.wait_for(job, 2, 0.0) is None
    found: list[Assignment | None] = []
    waiting = threading.Thread(target=lambda: found.append(assignments.wait_for(job, 2, 30.0)))
    waiting.start()
    assignments.put(Assignment(order(3), "token"))
    waiting.join()
    assert found == [Assignment(order(3), "token")]


def backed_up(step: int) -> BackedUp:
    return BackedUp(name=rank(0), sealed=at(step), keeper="b", nbytes=1, took_s=0.1)


def damaged(step: int) -> DamageNotice:
    return DamageNotice(name=rank(0), sealed=at(step), node="b", detail="")


def test_a_follower_who_is_slow_misses_the_oldest_copies_and_no_damage() -> None:
    mailbox = NoticeQueue(waiting_max=2)
    for notice in (damaged(1), backed_up(1), backed_up(2), damaged(2), backed_up(3), damaged(2)):
        mailbox.put(notice)
    assert [mailbox.take() for _ in range(4)] == [damaged(1), backed_up(2), damaged(2), backed_up(3)]
    mailbox.close()
    assert mailbox.take() is None


def told(notices: Notices, count: int) -> list[Answer]:
    """What a follower is told first, who then leaves."""
    ours, theirs = socket.socketpair()
    telling = threading.Thread(target=notices.send_to, args=(theirs,))
    with ours, theirs:
        ours.settimeout(30)
        telling.start()
        heard = [receive(ours, answers)[0] for _ in range(count)]
    telling.join()
    return heard


def test_damage_that_nobody_heard_of_waits_for_the_next_follower() -> None:
    notices = Notices()
    for notice in (damaged(1), backed_up(1), damaged(2), damaged(1)):
        notices.publish(notice)
    assert told(notices, 2) == [damaged(1), damaged(2)]
    # Once told it is told; what a follower left behind is not.
    stuck, theirs = socket.socketpair()
    telling = threading.Thread(target=notices.send_to, args=(theirs,))
    telling.start()
    while not notices._mailboxes:
        pass
    stuck.close()
    notices.publish(damaged(3))
    telling.join()
    theirs.close()
    assert told(notices, 1) == [damaged(3)]
