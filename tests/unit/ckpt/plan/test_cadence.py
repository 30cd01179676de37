"""How often copies are sent follows what the network carries, without swinging to and fro."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.settings.checkpoint import BACKUP_EVERY_MAX
from holdfast_ckpt.plan.cadence import ROOM_FOR, SETTLING, Load, Pace, adapt, load_of, start

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("every", "took_s", "step_s", "skipped", "load"),
    [
        (1, 0.01, 1.0, 0, Load.ROOMY),
        (1, 0.01, 1.0, 1, Load.LATE),
        (1, 0.01, None, 1, Load.LATE),
        (1, 9.0, None, 0, Load.FITS),
        (1, 0.51, 1.0, 0, Load.LATE),
        (1, 0.50, 1.0, 0, Load.FITS),
        (1, 0.13, 1.0, 0, Load.FITS),
        (4, 0.51, 1.0, 0, Load.FITS),
        (4, 0.50, 1.0, 0, Load.ROOMY),
        (4, 2.01, 1.0, 0, Load.LATE),
    ],
)
def test_what_a_report_says(every: int, took_s: float, step_s: float | None, skipped: int, load: Load) -> None:
    assert load_of(every, took_s, step_s, skipped) is load


def heard(pace: Pace, *loads: Load, node: str = "a", least: int = 1, start: datetime = NOW + SETTLING) -> Pace:
    """The pace after one report a second."""
    for second, load in enumerate(loads):
        pace = adapt(pace, node, load, start + second * SECOND, least)
    return pace


def test_two_late_reports_of_a_node_in_a_row_double_it() -> None:
    assert heard(start(1, NOW), Load.LATE).every == 1
    assert heard(start(1, NOW), Load.LATE, Load.LATE).every == 2
    assert heard(start(1, NOW), Load.LATE, Load.FITS, Load.LATE, Load.ROOMY, Load.LATE).every == 1


def test_one_late_report_each_of_many_nodes_changes_nothing() -> None:
    pace = start(1, NOW)
    for number in range(1000):
        pace = adapt(pace, f"node-{number}", Load.LATE, NOW + SETTLING, 1)
    assert pace.every == 1
    assert adapt(pace, "node-7", Load.LATE, NOW + SETTLING + SECOND, 1).every == 2


def test_after_a_change_reports_are_about_how_it_was() -> None:
    doubled = heard(start(1, NOW), Load.LATE, Load.LATE)
    assert adapt(adapt(doubled, "a", Load.LATE, doubled.since + 0.9 * SETTLING, 1), "a", Load.LATE, NOW, 1) == doubled
    assert heard(doubled, Load.LATE, Load.LATE, start=doubled.since + SETTLING).every == 4


def test_it_ends_somewhere() -> None:
    pace, at = start(1, NOW), NOW
    for _ in range(2000):
        at += SECOND
        pace = adapt(pace, "a", Load.LATE, at, 1)
    assert pace.every == BACKUP_EVERY_MAX


def test_room_counts_only_if_it_lasts_and_all_have_it() -> None:
    late, seconds = start(8, NOW), int(ROOM_FOR.total_seconds())
    assert heard(late, *[Load.ROOMY] * (seconds - 5), start=NOW + SETTLING).every == 8
    assert heard(late, *[Load.ROOMY] * (seconds - 4), start=NOW + SETTLING).every == 4
    tight = adapt(late, "b", Load.FITS, NOW + 30 * SECOND, 1)
    assert adapt(tight, "a", Load.ROOMY, NOW + 89 * SECOND, 1).every == 8
    assert adapt(tight, "a", Load.ROOMY, NOW + 90 * SECOND, 1).every == 4


def test_never_oftener_than_asked_for() -> None:
    assert adapt(start(4, NOW), "a", Load.ROOMY, NOW + ROOM_FOR, least=4).every == 4
    assert adapt(start(7, NOW), "a", Load.ROOMY, NOW + ROOM_FOR, least=4).every == 4


@pytest.mark.parametrize("copy_s", [0.001, 0.02, 0.05, 0.1, 0.126, 0.3, 1.0, 40.0])
def test_on_a_steady_network_it_comes_to_rest(copy_s: float) -> None:
    """Steps of 0.1 s, copies that take always the same: from anywhere, after some minutes nothing changes any more."""
    for first in (1, 64, BACKUP_EVERY_MAX):
        pace, at, changes = start(first, NOW), NOW, []
        for _ in range(1800):
            at += SECOND
            skipped = int(copy_s > pace.every * 0.1)
            after = adapt(pace, "a", load_of(pace.every, copy_s, 0.1, skipped), at, 1)
            if after.every != pace.every:
                changes.append(at)
            pace = after
        assert not changes or changes[-1] < NOW + timedelta(seconds=900)
        assert copy_s <= pace.every * 0.1 / 2
