"""Nodes of a slow job on one machine: no link between them is tested, and their products are compared instead."""

from __future__ import annotations

import pytest

from holdfast.events import CollectivesProfiled
from holdfast.events.parts.job import Endpoint
from holdfast.events.parts.samples import ProfiledCalls, RankProfile
from holdfast.ids import named_id
from holdfast.settings.findings.slow import SlowPolicy
from holdfast_analyzer.engines.slow.slow_location import Profiles, hold_of
from tests.scenes.analyzer import START

NODES = 3


def profiles(boot_ids: tuple[str, ...], addresses: tuple[str, ...]) -> Profiles:
    """A job of three ranks whose all_reduce takes much longer than before."""
    calls = ProfiledCalls(
        group="0",
        description="default_pg",
        runs=((0, NODES, 1),),
        operation="all_reduce",
        bytes=1 << 20,
        sequences=(10, 11, 12, 13),
        seconds=(1.0,) * 4,
        before=(5, 6, 7),
        before_s=(0.1,) * 3,
        count=4,
        total_s=4.0,
    )
    return Profiles(
        {
            node: CollectivesProfiled(
                id=named_id(START, "profile", node),
                at=START,
                source=f"agent/node-{node}",
                node=f"node-{node}",
                job="job",
                generation=1,
                asked=named_id(START, "order"),
                ranks=(RankProfile(rank=node, step=7, iterations_s=(2.0,) * 4, in_calls_s=(1.0,) * 4, calls=(calls,)),),
                node_rank=node,
                nnodes=NODES,
                nproc_per_node=1,
                endpoint=Endpoint(address=addresses[node], port=1),
                boot_id=boot_ids[node],
            )
            for node in range(NODES)
        }
    )


@pytest.mark.parametrize(
    ("boot_ids", "addresses", "has_wires"),
    [
        (("a", "a", "a"), ("127.0.0.1",) * 3, False),
        (("a", "b", "c"), ("10.0.0.1", "10.0.0.2", "10.0.0.3"), True),
        # Network namespaces of one machine have links of their own.
        (("a", "a", "a"), ("10.0.0.1", "10.0.0.2", "10.0.0.3"), True),
        (("a", "a", "b"), ("10.0.0.1", "10.0.0.1", "10.0.0.3"), True),
        (("", "", ""), ("127.0.0.1",) * 3, True),
    ],
)
def test_only_wires_are_tested(boot_ids: tuple[str, ...], addresses: tuple[str, ...], has_wires: bool) -> None:
    of = profiles(boot_ids, addresses)
    located = of.locate()
    assert [it.cause for it in located.suspicions] == ["communication" if has_wires else "computation"]
    wanted = hold_of(of, located, SlowPolicy(), 0.3, START)
    assert wanted is not None
    hold, passes = wanted
    assert (bool(passes), hold.compute_ranks) == (has_wires, () if has_wires else (0, 1, 2))
    links = {frozenset(link) for together in passes for link in together}
    assert (frozenset((0, 1)) in links) is (has_wires and not (boot_ids[0] and addresses[0] == addresses[1]))
