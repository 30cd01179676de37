"""What ranks noted by a clock that has jumped since is as old as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast_agent.watching.clock_steps import ClockSteps
from holdfast_agent.watching.ledgers import LedgerBook, moment

S = 1_000_000_000
YEAR = 365 * 86_400 * S


class Machine:
    def __init__(self, wall: int = 2000 * S) -> None:
        self.wall, self.steady = wall, 7 * S
        self.clock = ClockSteps(lambda: self.wall, lambda: self.steady)

    def passes(self, seconds: float, jump: int = 0) -> None:
        self.steady += int(seconds * S)
        self.wall += int(seconds * S) + jump
        self.clock.look()

    def age_s(self, noted: int) -> float:
        return (self.wall - self.clock.present(noted)) / S


@pytest.mark.parametrize("jump", [YEAR, -YEAR, 600 * S, -600 * S])
def test_an_age_is_the_same_before_and_after_a_jump_and_when_it_is_undone(jump: int) -> None:
    machine = Machine()
    before = machine.wall
    machine.passes(0.5)
    machine.passes(0.5, jump)
    meanwhile = machine.wall
    assert machine.age_s(before) == 1
    machine.passes(1)
    assert (machine.age_s(before), machine.age_s(meanwhile)) == (2, 1)
    machine.passes(1, -jump)
    after = machine.wall
    machine.passes(1)
    assert machine.age_s(after) == 1
    if jump > 0:
        assert (machine.age_s(before), machine.age_s(meanwhile)) == (4, 3)


def test_a_clock_that_is_corrected_by_little_is_no_jump() -> None:
    machine = Machine()
    before = machine.wall
    machine.passes(1, S // 2)
    assert machine.age_s(before) == 1.5


def test_a_rank_does_not_seem_to_stand_still_because_the_clock_was_put_ahead(tmp_path: Path) -> None:
    ledger = LedgerWriter(tmp_path / "ledger", rank=0, generation=1)
    book = LedgerBook({0: tmp_path / "ledger"})
    noted = book.statuses()[0].changed_at
    assert noted is not None
    ahead = Machine(wall=int(noted.timestamp() * S) + S)
    book = LedgerBook({0: tmp_path / "ledger"}, clock=ahead.clock)
    ahead.passes(1, YEAR)
    status = book.statuses()[0]
    for at in (status.changed_at, status.stepped_at):
        assert at is not None and 0 <= (moment(ahead.wall) - at).total_seconds() < 10
    ledger.close()
