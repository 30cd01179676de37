"""Days that get partitions, and for how long."""

from datetime import UTC, date, datetime, timedelta

import pytest

from holdfast_historian.partitions import (
    PartitionPolicy,
    day_of,
    days_ahead,
    expired,
    missing,
    oldest_kept,
)

NOW = datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC)
TODAY = NOW.date()


def days(*offsets: int) -> list[date]:
    return [TODAY + timedelta(days=offset) for offset in offsets]


def test_a_partition_name_gives_its_day() -> None:
    assert day_of("events_2025_12_31") == TODAY
    for foreign in ("events_default", "events", "events_2025_02_30", "events_2025_12_31_old"):
        assert day_of(foreign) is None


def test_the_days_ahead_cross_the_year() -> None:
    assert days_ahead(NOW, PartitionPolicy()) == [date(2025, 12, 31), date(2026, 1, 1), date(2026, 1, 2)]


def test_a_clock_far_off_makes_no_partition() -> None:
    wanted = [date(1, 1, 1), *days(-61, -60, -1, 0, 7, 8), date(9999, 12, 31)]
    assert missing(wanted, frozenset(days(0)), NOW, PartitionPolicy()) == days(-60, -1, 7)


def test_days_past_keeping_get_no_partition() -> None:
    policy = PartitionPolicy(keep_days=3)
    assert missing(days(-4, -3), frozenset(), NOW, policy) == days(-3)
    assert expired(frozenset(days(-3)), NOW, policy) == []


def test_old_days_expire_only_when_asked_for() -> None:
    existing = frozenset(days(-40, -8, -7, -6, -2, 0, 1))
    assert expired(existing, NOW, PartitionPolicy()) == []
    assert expired(existing, NOW, PartitionPolicy(keep_days=7)) == days(-40, -8)
    assert oldest_kept(existing, NOW, PartitionPolicy(keep_days=7)) == datetime(2025, 12, 24, tzinfo=UTC)


@pytest.mark.parametrize("limits", [{"keep_days": 0}, {"ahead_days": 0}, {"ahead_days": 9}])
def test_contradictory_limits_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        PartitionPolicy(**limits)


def test_a_clock_that_jumps_a_year_ahead_drops_nothing_for_two_days() -> None:
    policy, existing = PartitionPolicy(keep_days=7), frozenset(days(*range(-40, 3)))
    for passed in range(4):
        now = NOW + timedelta(days=365 + passed)
        existing |= frozenset(days_ahead(now, policy))
        assert bool(expired(existing, now, policy)) is (oldest_kept(existing, now, policy) is not None) is (passed >= 2)
