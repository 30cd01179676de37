"""The production services in the simulated world: one seed is one history, and quiet half seconds decide nothing."""

from __future__ import annotations

import msgspec

from holdfast.events import Event, FailSlowLocated, FailSlowOnset, IncidentOpened
from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.scenario.load import load_scenario, read_scenario
from tests.scenes.small_scenario import SMALL

OF_SERVICES = ("controller", "standby")


def decisions(cluster: Cluster) -> list[tuple[float, Event]]:
    return [(at, event) for at, event in cluster.log if event.source in OF_SERVICES]


def test_one_seed_is_one_history() -> None:
    scenario = load_scenario("mixed")
    one, again, other = (Cluster(scenario, seed).run(2.0) for seed in (1, 1, 2))
    assert one.log == again.log
    assert one.log != other.log


def test_quiet_half_seconds_decide_nothing() -> None:
    """Asked every half second, as in production, the services decide the same at the same times."""
    scenario = load_scenario("mixed")
    faults = tuple(msgspec.structs.replace(kind, per_day=120 * kind.per_day) for kind in scenario.faults)
    scenario = msgspec.structs.replace(scenario, faults=faults)
    sparse, dense = (Cluster(scenario, 5, every_tick=ticks).run(0.04) for ticks in (False, True))
    assert len(decisions(sparse)) > 100
    assert decisions(sparse) == decisions(dense)


def test_all_time_has_a_cause() -> None:
    cluster = Cluster(load_scenario("mixed"), 3).run(3.0)
    for training in cluster.trainings:
        assert abs(training.book.total_s - (3.0 * 86400 - 30.0)) < 30.0
        assert all(seconds > -1.0 for seconds in training.book.spent_s.values()), training.book.spent_s


def test_a_job_completes() -> None:
    faults = '[[faults]]\nname = "x"\neffect = "crash"\nprints = "killed"\nper_day = 1\n'
    scenario = read_scenario(SMALL.replace("nodes = 4", "nodes = 4, steps = 20000") + faults)
    cluster = Cluster(scenario, 1).run()
    assert [training.is_complete for training in cluster.trainings] == [True]
    assert any(isinstance(event, IncidentOpened) for _, event in cluster.log)


def test_no_machine_is_named_before_it_is_known_that_the_job_is_slow() -> None:
    slow = '[[faults]]\nname = "x"\neffect = "slow"\nlasts = "repair"\nslowdown = 2.0\n'
    strike = '[[strikes]]\nkind = "x"\nat_h = 0.5\nplace = "gpu-1"\n'
    cluster = Cluster(read_scenario(SMALL.replace("nodes = 4", "nodes = 4, step_s = 15.0") + slow + strike), 1).run(0.1)
    kinds = FailSlowOnset | FailSlowLocated
    found = {type(event): at_s for at_s, event in reversed(cluster.log) if isinstance(event, kinds)}
    assert 1800.0 + 5 * 30.0 <= found[FailSlowOnset] <= found[FailSlowLocated]
