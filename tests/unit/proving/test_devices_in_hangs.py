"""Devices in emulated hangs: which stand out, and what the production analyzer and controller do about them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.engines.hang.idle_devices import idle_devices
from holdfast.engines.hang.stacks.process_state import StateReader
from holdfast.events import Event, Eviction, HangFound
from holdfast_analyzer.engines.hang import hang_answers
from holdfast_proving.emulated_hangs.scenes import Seen, hung_job, observe
from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.scenario.load import read_scenario

OF_DEVICES, OF_HOSTS = ("kernel stuck", "GPU error"), ("process stopped", "deadlock in user code", "data loader stuck")
OTHERS = ("collective skipped", "size mismatch", "link cut", "machine dead", "storage hangs")


def hangs(kind: str) -> Iterator[Seen]:
    found = (hung_job(kind, seed, 32) for seed in range(4))
    return (observe(hung, "launched") for hung in found if hung is not None)


def nodes_of(seen: Seen, *, excused: bool = True) -> set[str]:
    """Machines whose devices stand out. Not `excused`: whatever their ranks do on their hosts."""
    reader, busy = StateReader(), set()
    for process in seen.stacks:
        if excused and process.kind == "rank" and process.rank is not None:
            is_own = reader.read(process).activity.doing == "own"
            busy |= {process.rank} if is_own or process.state == "T" else set()
    node_of = {rank: str(seen.layout.node(rank)) for rank in range(seen.layout.ranks)}
    return {idle.node for idle in idle_devices(seen.activity, busy, node_of)}


@pytest.mark.parametrize("kind", OF_DEVICES)
def test_a_broken_device_stands_out_and_no_other(kind: str) -> None:
    found = [(nodes_of(seen), set(seen.machines)) for seen in hangs(kind)]
    assert len(found) == 4 and sum(nodes == machines for nodes, machines in found) >= 3
    assert all(nodes <= machines for nodes, machines in found)


@pytest.mark.parametrize("kind", [*OF_HOSTS, *OTHERS])
def test_what_is_no_devices_fault_is_laid_on_none(kind: str) -> None:
    seen = list(hangs(kind))
    assert seen and all(nodes_of(one) == set() for one in seen)


@pytest.mark.parametrize("kind", OF_HOSTS)
def test_only_the_stack_explains_a_device_whose_rank_is_busy_on_its_host(kind: str) -> None:
    assert any(nodes_of(one, excused=False) == set(one.machines) for one in hangs(kind))


JOB = """
title = "a device that starts no kernel"
days = 0.03
analyzer = "engines"
machines = [{ name = "gpu", count = 9 }]
[[jobs]]
name = "train"
nodes = 6
step_s = 2.0
mesh = "dp=3,tp=2"
[[faults]]
name = "stuck"
effect = "hang"
form = "kernel stuck"
lasts = "repair"
again_h = 0.0
found_by_checks = 1.0
[[strikes]]
kind = "stuck"
at_h = 0.1
place = "gpu-1"
"""


def decided() -> list[Event]:
    cluster = Cluster(read_scenario(JOB), 1).run()
    return [event for _, event in cluster.log if isinstance(event, HangFound | Eviction)]


def test_its_node_is_tested_at_the_first_hang_and_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    hang, eviction = decided()
    assert isinstance(hang, HangFound) and [(it.node, it.measure) for it in hang.idle] == [("gpu-1", "busy")]
    assert isinstance(eviction, Eviction) and eviction.node == "gpu-1"
    # An analyzer that does not look at devices lets the job hang twice.
    monkeypatch.setattr(hang_answers, "idle_devices", lambda *_: ())
    assert [event.type for event in decided()] == ["hang_found", "hang_found", "eviction"]
