"""Judgement does not depend on the order of messages, their repetition, or the deaths of services.

The same faults with and without chaos: nothing is complained of that is not without it, and it costs little.
"""

from __future__ import annotations

import msgspec
import pytest

from holdfast_proving.inside.chaotic_service import ChaoticService
from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.judging.judges import judge
from holdfast_proving.judging.trial import oracle_of
from holdfast_proving.scenario.load import load_scenario
from holdfast_proving.scenario.scenario import ChaosPlan

CHAOS = ChaosPlan(crashes=0.005, outages_per_day=6.0)
COST_SHARE, COST_S = 1.1, 400.0
"""Lost time under chaos: restarts wait for late messages, and for services that come back."""


@pytest.mark.parametrize(("scenario", "seed"), [("trial", 1), pytest.param("doubts", 2, marks=pytest.mark.long)])
def test_chaos_changes_no_judgement(scenario: str, seed: int) -> None:
    loaded, oracle = load_scenario(scenario), oracle_of(scenario, seed)
    calm = Cluster(loaded, seed).run()
    wild = Cluster(msgspec.structs.replace(loaded, chaos=CHAOS), seed).run()
    services = (wild.controller, wild.standby)
    assert sum(service.deaths for service in services if isinstance(service, ChaoticService)) > 0
    known = {complaint.wrong for complaint in judge(calm, oracle)}
    assert [complaint for complaint in judge(wild, oracle) if complaint.wrong not in known] == []
    for ours, theirs in zip(wild.trainings, calm.trainings, strict=True):
        assert ours.book.lost_s < COST_SHARE * theirs.book.lost_s + COST_S


def test_one_seed_is_one_history_under_chaos() -> None:
    loaded = msgspec.structs.replace(load_scenario("doubts"), chaos=CHAOS)
    one, again, calm = (Cluster(it, 1).run(0.2) for it in (loaded, loaded, load_scenario("doubts")))
    assert one.log == again.log != calm.log
