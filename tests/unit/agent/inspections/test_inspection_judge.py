"""What follows from readings: alerts, their end, and checks that cannot look."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.settings.inspections import InspectionPolicy
from holdfast_agent.inspections.check import Check, Reading, Trouble, unreadable
from holdfast_agent.inspections.judge import SIGHT, TIMES_MAX, CheckState, InspectionReport, judge

START = datetime(2026, 1, 1, tzinfo=UTC)
AGAIN_S = 300.0
DOWN = Trouble(device="eth0", kind="link", detail="the link is down")
WELL = Reading(seen={"eth0": "up"})


def check(**fields: object) -> Check:
    common: dict[str, object] = {"name": "network", "source": "here", "interval_s": 30.0, "confidence": "tolerate"}
    return Check(read=lambda: WELL, **{**common, **fields})  # type: ignore[arg-type]


def told(of: Check, *readings: Reading, every_s: float = 30.0) -> list[list[InspectionReport]]:
    """What is said of each reading."""
    state, said = CheckState(), []
    for number, reading in enumerate(readings):
        state, now = judge(of, state, reading, START + timedelta(seconds=every_s * number), AGAIN_S)
        said.append(list(now))
    return said


def states(said: list[list[InspectionReport]]) -> list[list[str]]:
    return [[one.state for one in now] for now in said]


def bad(*troubles: Trouble) -> Reading:
    return Reading(troubles=troubles or (DOWN,))


def test_a_tolerated_trouble_is_said_at_each_look_until_it_is_over() -> None:
    said = told(check(), WELL, bad(), bad(), WELL, WELL)
    assert states(said) == [[], ["alert"], ["alert"], ["cleared"], []]
    assert said[1][0].confidence == "tolerate" and said[1][0].device == "eth0" and said[1][0].kind == "link"


def test_two_misses_in_a_row_are_needed_where_the_check_says_so() -> None:
    assert states(told(check(misses=2), bad(), WELL, bad(), bad(), WELL)) == [[], [], [], ["alert"], ["cleared"]]


def test_a_trouble_that_was_never_said_is_not_cleared() -> None:
    assert states(told(check(misses=3), bad(), bad(), WELL)) == [[], [], []]


def test_a_trouble_that_comes_and_goes_counts_once_per_interval_however_often_it_is_read() -> None:
    said = told(check(slow_interval_s=2.0), bad(), WELL, bad(), WELL, bad(), bad(), WELL, every_s=6.0)
    assert states(said) == [["alert"], [], [], [], [], ["alert"], []]
    assert states(told(check(slow_interval_s=2.0), bad(), WELL)) == [["alert"], ["cleared"]]


def test_an_eviction_is_asked_for_again_only_now_and_then() -> None:
    readings = [bad()] * 22
    said = told(check(confidence="evict"), *readings)
    assert [number for number, now in enumerate(said) if now] == [0, 10, 20]


def test_a_hint_is_said_once() -> None:
    assert states(told(check(confidence="hint"), bad(), bad(), bad())) == [["alert"], [], []]


def test_a_trouble_that_gets_worse_is_said_at_once() -> None:
    hint = Trouble(device="eth0", kind="link", confidence="hint")
    evict = Trouble(device="eth0", kind="link", confidence="evict")
    said = told(check(confidence="hint"), bad(hint), bad(evict), bad(evict))
    assert [[one.confidence for one in now] for now in said] == [["hint"], ["evict"], []]


def test_no_reading_is_not_good_health() -> None:
    said = told(check(), bad(), unreadable("the file is gone"), WELL)
    assert states(said) == [["alert"], ["broken"], ["cleared", "cleared"]]
    assert [(one.device, one.kind) for one in said[2]] == [("eth0", "link"), ("", SIGHT)]


def test_a_device_that_cannot_be_looked_at_stays_as_it_was_and_others_do_not() -> None:
    other = Trouble(device="eth1", kind="link")
    partly = Reading(unread={"eth0": "no answer"})
    said = told(check(), bad(DOWN, other), partly)
    assert [(one.state, one.device, one.kind) for one in said[1]] == [
        ("cleared", "eth1", "link"),
        ("broken", "eth0", SIGHT),
    ]


def test_that_it_cannot_look_is_said_once_and_is_no_alert() -> None:
    said = told(check(confidence="evict"), *[unreadable("no right to")] * 3, WELL)
    assert states(said) == [["broken"], [], [], ["cleared"]]
    assert {one.confidence for now in said for one in now} == {"hint"} and said[0][0].detail == "no right to"


def test_devices_that_are_gone_altogether_clear_nothing() -> None:
    assert states(told(check(), bad(), Reading(absent="no card"))) == [["alert"], []]


def test_each_flap_is_an_alert_and_none_is_cleared() -> None:
    flap = Trouble(device="eth0", kind="flap", is_momentary=True, times=2)
    storm = Trouble(device="eth0", kind="flap", is_momentary=True, times=50)
    said = told(check(), bad(flap), WELL, bad(storm), WELL)
    assert states(said) == [["alert", "alert"], [], ["alert"] * TIMES_MAX, []]
    assert said[0][0].is_momentary


def test_a_burst_of_the_same_is_one_alert() -> None:
    line = Trouble(device="0000:3b:00", kind="xid 119", confidence="evict", lines=("a line",), is_momentary=True)
    of = check(name="kernel", interval_s=2.0, quiet_s=30.0)
    said = told(of, bad(line, line), *[bad(line)] * 20, every_s=2.0)
    assert [number for number, now in enumerate(said) if now] == [0, 15]
    assert said[0][0].lines == ("a line", "a line")


MILD = Trouble(device="0000:3b:00", kind="pcie", confidence="tolerate", lines=("mild",), is_momentary=True)
FATAL = Trouble(device="0000:3b:00", kind="pcie", confidence="evict", symptom="s", lines=("fatal",), is_momentary=True)


@pytest.mark.parametrize("order", [(MILD, FATAL), (FATAL, MILD)])
def test_a_fatal_fault_is_reported_beside_a_milder_one_of_the_same_kind(order: tuple[Trouble, ...]) -> None:
    of = check(name="kernel", interval_s=2.0, quiet_s=30.0)
    state, (report,) = judge(of, CheckState(), bad(*order), START, AGAIN_S)
    assert (report.confidence, report.symptom, set(report.lines)) == ("evict", "s", {"mild", "fatal"})
    assert [trouble.confidence for trouble in state.struck.values()] == ["evict"]


def test_a_fatal_fault_is_reported_soon_after_a_milder_one_and_a_milder_one_is_not() -> None:
    of = check(name="kernel", interval_s=2.0, quiet_s=30.0)
    said = told(of, bad(MILD), bad(FATAL), bad(MILD), bad(FATAL), every_s=2.0)
    assert [[one.confidence for one in now] for now in said] == [["tolerate"], ["evict"], [], []]


def test_equal_flaps_of_one_reading_are_all_reported() -> None:
    flap = Trouble(device="eth0", kind="flap", is_momentary=True)
    assert states(told(check(), bad(flap, flap))) == [["alert", "alert"]]


def test_what_happened_and_speaks_against_the_node_is_not_forgotten() -> None:
    lost = Trouble(device="0000:3b:00", kind="xid 79", confidence="evict", is_momentary=True)
    state, _ = judge(check(), CheckState(), bad(lost), START, AGAIN_S)
    state, _ = judge(check(), state, WELL, START + timedelta(hours=1), AGAIN_S)
    assert list(state.struck) == [("0000:3b:00", "xid 79")]


def test_what_is_said_is_bounded() -> None:
    much = Trouble(detail="x" * 100_000, lines=("y" * 100_000,) * 1000)
    (said,) = told(check(), bad(much))[0]
    assert len(said.detail) <= 2000 and sum(map(len, said.lines)) <= 20_000


@pytest.mark.parametrize("name", ["network_s", "switch_s", "gpu_s", "kernel_s"])
def test_intervals_are_those_of_byterobust(name: str) -> None:
    table_3 = {"network_s": 30, "switch_s": 30, "gpu_s": 10, "kernel_s": 2}
    assert getattr(InspectionPolicy(), name) == table_3[name]
    assert InspectionPolicy().switch_misses == 2
