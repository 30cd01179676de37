"""The production analyzer in the simulated world: what it finds, and that quiet evidence decides nothing."""

from __future__ import annotations

import pytest

from holdfast.events import BadNumber, Event, Eviction, FailSlowLocated, FailSlowRelieved, HangFound, SuspectsTested
from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.scenario.load import ScenarioRefused, read_scenario

JOB = """
title = "one of each"
days = 0.07
analyzer = "engines"
machines = [{ name = "gpu", count = 9 }]
[[jobs]]
name = "train"
nodes = 6
step_s = 2.0
mesh = "dp=3,tp=2"
"""


def fault(effect: str, at_h: float, place: str, more: str, name: str = "") -> str:
    name = name or f"{effect}_{place.replace('-', '_')}"
    kind = f'[[faults]]\nname = "{name}"\neffect = "{effect}"\n{more}\n'
    return f'{kind}[[strikes]]\nkind = "{name}"\nat_h = {at_h}\nplace = "{place}"\n'


def run(faults: str, *, every_tick: bool = False, seed: int = 1, days: float | None = None) -> Cluster:
    return Cluster(read_scenario(JOB + faults), seed, every_tick=every_tick).run(days)


def found(cluster: Cluster, *kinds: type[Event]) -> list[Event]:
    return [event for _, event in cluster.log if isinstance(event, kinds)]


MIXED = (
    fault("hang", 0.15, "gpu-1", 'form = "GPU error"')
    + fault("slow", 0.35, "gpu-2", 'lasts = "while"\nlasts_h = 0.05\nslowdown = 1.6')
    + fault("slow", 0.6, "gpu-3", 'lasts = "repair"\nslowdown = 1.8\nform = "link"')
    + fault("bad_numbers", 1.1, "gpu-4", 'lasts = "repair"\nagain_h = 0.02\nform = "norm nan"\nfound_by_checks = 1.0')
)


def decisions(cluster: Cluster) -> list[tuple[str, str | None, tuple[str, ...]]]:
    """Return who decided what about whom. Ids follow from messages, so jobs that test suspects have other names: they
    come last, since nothing orders what two jobs do at the same time."""
    named = (HangFound, FailSlowLocated, FailSlowRelieved, BadNumber)
    decided = [event for _, event in cluster.log if event.source == "controller" or isinstance(event, named)]
    by_job = sorted(decided, key=lambda event: isinstance(event, SuspectsTested) or "retest" in (event.job or ""))
    return [(event.type, event.node, tuple(getattr(event, "nodes", ()))) for event in by_job]


def test_quiet_evidence_decides_nothing() -> None:
    """With every step and every second of progress published, as agents do, the same is found and decided."""
    sparse, full = (run(MIXED, every_tick=every) for every in (False, True))
    assert decisions(sparse) == decisions(full)
    # Also the machine that is slow for three minutes: a restart of this job takes less than it costs.
    assert len(found(sparse, Eviction)) == 3
    # Tests name both slow machines: no rounds of stacks follow.
    assert len(found(sparse, HangFound, FailSlowLocated, FailSlowRelieved, BadNumber)) == 4
    evictions, in_full = ([at for at, event in it.log if isinstance(event, Eviction)] for it in (sparse, full))
    assert evictions == pytest.approx(in_full, abs=10.0)


@pytest.mark.parametrize(("form", "after"), [("loss nan", 0), ("loss jump", 2), ("norm nan", 9), ("norm jump", 9)])
def test_bad_numbers_are_found_after_as_many_steps_as_the_settings_say(form: str, after: int) -> None:
    cluster = run(fault("bad_numbers", 0.3, "gpu-4", f'form = "{form}"'), days=0.02)
    ((at_s, number),) = [(at, event) for at, event in cluster.log if isinstance(event, BadNumber)]
    (showing,) = cluster.ledger.showings
    assert number.certified == number.step - 11
    assert number.quantity == {"loss": "loss", "norm": "grad_norm"}[form.partition(" ")[0]]
    assert 2.0 * after <= at_s - showing.at_s <= 2.0 * (after + 1) + 0.1


@pytest.mark.parametrize("form", ["norm nan", "loss jump"])
def test_a_bad_batch_is_no_fault(form: str) -> None:
    cluster = run(fault("bad_numbers", 0.3, "gpu-4", f'is_false = true\nform = "{form}"'), days=0.02)
    assert len(cluster.ledger.showings) == 1
    assert not found(cluster, BadNumber)


def test_slowness_from_the_first_step_on_is_a_decline() -> None:
    """The tracker of paces knows no other pace of this run; its throughput is compared with earlier runs."""
    lame = fault("slow", 0.32, "gpu-5", 'lasts = "repair"\nslowdown = 1.5')
    crash = fault("crash", 0.31, "gpu-2", 'prints = "killed"')
    cluster = run(lame + crash)
    located = found(cluster, FailSlowLocated)
    assert [event.nodes for event in located if isinstance(event, FailSlowLocated)] == [("gpu-5",)]


def test_hidden_slowness_is_located_by_stacks() -> None:
    hidden = fault("slow", 0.3, "gpu-1", 'lasts = "repair"\nslowdown = 4.0\nform = "hidden"')
    cluster = run(hidden, days=0.02)
    voted = [event for event in found(cluster, FailSlowLocated) if isinstance(event, FailSlowLocated) and event.rounds]
    assert [set(event.one_of) >= {"gpu-1"} for event in voted] == [True]
    assert all(len(event.one_of) <= 2 for event in voted)


def test_forms_and_meshes_are_checked() -> None:
    with pytest.raises(ScenarioRefused, match="form = 'cut'; there are process stopped, "):
        read_scenario(JOB + fault("hang", 1, "gpu-1", 'form = "cut"'))
    with pytest.raises(ScenarioRefused, match="has 8 ranks, and the job has 6"):
        read_scenario(JOB.replace("dp=3", "dp=4") + fault("hang", 1, "gpu-1", ""))
