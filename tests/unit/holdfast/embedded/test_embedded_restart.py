import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.embedded.processes.restart import GiveUp, Restart, RestartPolicy, RestartRecord, after_exit

POLICY = RestartPolicy(base_s=0.25, cap_s=2.0, ran_well_s=30.0, start_attempts_max=3)


def delays(ends: list[float | None], policy: RestartPolicy = POLICY) -> list[float | None]:
    record, found = RestartRecord(), []
    for ready_s in ends:
        record, action, _ = after_exit(record, ready_s=ready_s, policy=policy)
        found.append(action.delay_s if isinstance(action, Restart) else None)
    return found


def test_the_first_restart_is_immediate_and_later_ones_back_off_to_the_cap() -> None:
    assert delays([1.0] * 7) == [0.0, 0.25, 0.5, 1.0, 2.0, 2.0, 2.0]


def test_a_good_run_clears_the_record() -> None:
    assert delays([1.0, 1.0, 1.0, 30.0, 1.0]) == [0.0, 0.25, 0.5, 0.0, 0.25]


def test_what_was_never_ready_is_given_up() -> None:
    assert delays([None, None, None]) == [0.0, 0.25, None]


def test_what_was_ready_once_is_never_given_up() -> None:
    assert delays([1.0, None, None, None, None]) == [0.0, 0.25, 0.5, 1.0, 2.0]


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6))))
def test_delays_never_pass_the_cap_and_every_decision_has_a_reason(ends: list[float | None]) -> None:
    record = RestartRecord()
    for ready_s in ends:
        record, action, reason = after_exit(record, ready_s=ready_s, policy=POLICY)
        assert reason
        if isinstance(action, GiveUp):
            assert not record.ever_ready
            return
        assert 0 <= action.delay_s <= POLICY.cap_s


@pytest.mark.parametrize("failures", [10, 1_000, 10**9])
def test_the_delay_of_a_child_that_fails_for_ever_stays_finite(failures: int) -> None:
    _, action, _ = after_exit(RestartRecord(failures=failures, ever_ready=True), ready_s=None, policy=POLICY)
    assert action == Restart(delay_s=POLICY.cap_s)
