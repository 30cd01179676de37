"""Scenarios are data: they are read with ranges and clear errors, and give the same faults for the same seed."""

from __future__ import annotations

import pytest

from holdfast_proving.scenario.load import ScenarioRefused, load_scenario, read_scenario, shipped
from holdfast_proving.truth.generator import DAY_S, true_faults
from tests.scenes.small_scenario import SMALL

CRASH = '[[faults]]\nname = "x"\neffect = "crash"\nprints = "ecc"\n'


@pytest.mark.parametrize("name", shipped())
def test_shipped_scenarios_can_be_read(name: str) -> None:
    assert load_scenario(name).title


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (CRASH.replace("ecc", "eccc"), "perhaps 'ecc' is meant"),
        (CRASH + "per_day = -1\n", "per_day = -1 must be at least 0"),
        (CRASH + "per_dag = 1\n", "unknown field per_dag"),
        (CRASH + 'place = "planet"\n', "Invalid enum value 'planet'"),
        (CRASH + 'of = "tpu"\n', "there are gpu, train"),
        (CRASH + "same_step = true\n", "place = 'job'"),
        (CRASH + 'at_start = true\nplace = "job"\n', "at_start is for machines"),
        (CRASH + 'place = "rack"\nlasts = "repair"\n', "only machines are repaired"),
        ('[[faults]]\nname = "x"\neffect = "silence"\n', "a silence is of all machines"),
        (CRASH + CRASH, "2 of fault 'x'"),
        ('[[faults]]\nname = "x"\neffect = "alert"\n', "needs a table alert"),
        (CRASH + '[[strikes]]\nkind = "y"\nat_h = 1\n', "no fault: there are x"),
        (CRASH + '[[updates]]\njob = "train"\nat_h = 1\n', "'train', which is no job with a version"),
        (CRASH + 'place = "job"\nof = "train"\nversion = "v9"\n', "'v9' is no version of job 'train'"),
    ],
)
def test_wrong_scenarios_are_refused(more: str, words: str) -> None:
    with pytest.raises(ScenarioRefused, match=words):
        read_scenario(SMALL + more)


def test_jobs_need_machines() -> None:
    with pytest.raises(ScenarioRefused, match="the jobs need 9 nodes"):
        read_scenario(SMALL.replace("nodes = 4", "nodes = 9") + CRASH)


def test_an_unknown_scenario_names_the_known_ones() -> None:
    with pytest.raises(ScenarioRefused, match="mixed"):
        load_scenario("no-such-one")


def test_faults_follow_from_scenario_and_seed_alone() -> None:
    scenario = load_scenario("mixed")
    faults = true_faults(scenario, 7)
    assert faults == true_faults(scenario, 7) != true_faults(scenario, 8)
    assert [fault.number for fault in faults] == list(range(len(faults)))
    assert faults == sorted(faults, key=lambda fault: (fault.since_s, fault.seed))


def test_rates_are_kept() -> None:
    scenario = read_scenario(SMALL.replace("days = 10", "days = 1000") + CRASH + "per_day = 0.5\n")
    faults = true_faults(scenario, 1)
    # Eight machines: 4,000 are expected, with a standard deviation of 63.
    assert 3700 < len(faults) < 4300
    assert max(fault.since_s for fault in faults) < 1000 * DAY_S


def test_a_kind_has_its_faults_whatever_else_there_is() -> None:
    alone = read_scenario(SMALL + CRASH + "per_day = 0.5\n")
    with_others = read_scenario(SMALL + CRASH + "per_day = 0.5\n" + CRASH.replace('"x"', '"y"') + "per_day = 0.5\n")
    times = [fault.since_s for fault in true_faults(alone, 3)]
    assert times == [fault.since_s for fault in true_faults(with_others, 3) if fault.kind.name == "x"]
