"""Which tests tell who of the suspects is slow, and what their results say."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.engines.slow.slow_findings import (
    Pass,
    SlowNodeLink,
    SlowSuspects,
    Suspicion,
    Transfer,
    TransferTime,
    ValidationPlan,
    ValidationResults,
)
from holdfast.engines.slow.validation import judge_validation, plan_validation, ring_passes, tree_passes
from holdfast.topology import Mesh, Topology

TOPOLOGY = Topology(Mesh.parse("pp=2,dp=8,tp=2"), 2)
SIZES = [2, 3, 4, 5, 6, 7, 8, 15, 16, 31, 32, 100, 1023, 1024]


def suspicion(cause: str, ranks: tuple[int, ...], kind: str = "dp") -> Suspicion:
    assert cause in ("computation", "communication")
    return Suspicion(
        cause="computation" if cause == "computation" else "communication",
        ranks=ranks,
        group=str(ranks),
        kind=kind,
        ratio=2.0,
        reason="test",
    )


def located(*found: Suspicion) -> SlowSuspects:
    return SlowSuspects(suspicions=found, reason="test")


def links(passes: tuple[Pass, ...]) -> list[tuple[int, int]]:
    return [(transfer.sender, transfer.receiver) for together in passes for transfer in together]


def assert_no_rank_twice(passes: tuple[Pass, ...]) -> None:
    for together in passes:
        ranks = [rank for transfer in together for rank in (transfer.sender, transfer.receiver)]
        assert len(ranks) == len(set(ranks))


@pytest.mark.parametrize("size", SIZES)
def test_a_ring_is_tested_in_two_passes_or_three(size: int) -> None:
    passes = ring_passes(range(size))
    assert len(passes) == 2 + size % 2
    assert sorted(links(passes)) == sorted((rank, (rank + 1) % size) for rank in range(size))
    assert_no_rank_twice(passes)


@pytest.mark.parametrize("size", SIZES)
def test_a_tree_is_tested_in_four_passes_at_most(size: int) -> None:
    passes = tree_passes(range(size))
    assert len(passes) <= 4
    assert sorted(links(passes)) == sorted((rank, (rank - 1) // 2) for rank in range(1, size))
    assert_no_rank_twice(passes)


def test_the_ranks_of_a_group_are_tested_and_not_their_places() -> None:
    assert links(ring_passes((3, 7, 11))) == [(3, 7), (7, 11), (11, 3)]
    assert links(tree_passes((3, 7, 11))) == [(7, 3), (11, 3)]
    assert ring_passes((3,)) == tree_passes((3,)) == ()


def test_groups_of_one_kind_are_tested_side_by_side() -> None:
    mesh = TOPOLOGY.mesh
    one = plan_validation(located(suspicion("communication", tuple(mesh.group_of(0, "dp")))), TOPOLOGY)
    all_of_them = [suspicion("communication", tuple(ranks)) for ranks in mesh.groups("dp")]
    plan = plan_validation(located(*all_of_them), TOPOLOGY)
    assert len(plan.passes) == len(one.passes) == 6
    assert len(links(plan.passes)) == len(mesh.groups("dp")) * len(links(one.passes))
    assert_no_rank_twice(plan.passes)


@pytest.mark.parametrize("nnodes", [6, 12, 48])
def test_at_most_half_of_the_links_end_at_one_node(nnodes: int) -> None:
    """Else a node with a bad cable makes slow links the usual ones."""
    topology = Topology.of(nnodes, 1, None)
    groups = [suspicion("communication", (0, 1, 2), "dp"), suspicion("communication", (1, 3), "tp")]
    plan = plan_validation(located(*groups), topology)
    assert {(0, 1), (1, 2), (2, 0), (1, 3), (3, 1)} <= set(links(plan.passes))
    ends = [node for link in links(plan.passes) for node in link]
    assert max(map(ends.count, ends)) * 2 < len(links(plan.passes))
    assert_no_rank_twice(plan.passes)
    slow = [1.0 if 1 in link else 0.1 for link in links(plan.passes)]
    times = zip(links(plan.passes), slow, strict=True)
    results = ValidationResults(
        transfers=tuple(TransferTime(sender=one, receiver=other, seconds=took_s) for (one, other), took_s in times)
    )
    assert judge_validation(results, topology).nodes == (1,)


def test_groups_that_share_ranks_are_tested_one_after_another() -> None:
    mesh = TOPOLOGY.mesh
    plan = plan_validation(
        located(
            suspicion("communication", tuple(mesh.group_of(0, "dp"))),
            suspicion("communication", tuple(mesh.group_of(0, "pp")), kind="pp"),
        ),
        TOPOLOGY,
    )
    assert_no_rank_twice(plan.passes)
    assert Transfer(sender=0, receiver=16) in plan.passes[-1] or Transfer(sender=16, receiver=0) in plan.passes[-1]
    assert len(links(plan.passes)) == len(set(links(plan.passes)))


def test_a_suspect_computes_beside_more_who_are_none() -> None:
    plan = plan_validation(located(suspicion("computation", (5,))), TOPOLOGY)
    assert 5 in plan.compute_ranks
    assert len(plan.compute_ranks) >= 3
    # Of its own stage, on other nodes: whoever shares its node may be as slow.
    assert 4 not in plan.compute_ranks
    assert all(rank < 16 for rank in plan.compute_ranks)
    assert plan.passes == ()


def test_many_suspects_are_outnumbered() -> None:
    plan = plan_validation(located(suspicion("computation", tuple(range(12)))), TOPOLOGY)
    assert len(plan.compute_ranks) > 24


def test_nobody_is_tested_who_is_not_under_suspicion() -> None:
    assert plan_validation(SlowSuspects(reason="test"), TOPOLOGY) == ValidationPlan()


def test_the_rank_that_computes_slowly_is_named() -> None:
    results = ValidationResults(compute_s={rank: (1.3 if rank == 5 else 1.0 + 0.01 * (rank % 3),) for rank in range(9)})
    verdict = judge_validation(results, TOPOLOGY)
    assert verdict.slow_ranks == (5,)
    assert verdict.nodes == (2,)
    assert verdict.reason == "rank 5 computes slowly"
    assert "1.29 times" in verdict.evidence[0]


def test_who_is_disturbed_for_a_moment_is_not_named_and_who_is_slow_is() -> None:
    """Turn by turn: all take longer in the third, and ranks 0 and 1 are disturbed in two turns each."""
    usual = (1.0, 1.1, 3.0, 1.0, 1.05)
    turns = dict.fromkeys(range(2, 8), usual)
    turns |= {0: (4.0, 1.1, 3.0, 1.0, 2.0), 1: (1.0, 2.0, 9.0, 1.0, 1.0), 8: tuple(1.4 * took_s for took_s in usual)}
    verdict = judge_validation(ValidationResults(compute_s=turns), TOPOLOGY, 0.25)
    assert verdict.slow_ranks == (8,)
    assert "1.40 times what its peers take, longer in 5 of 5 turns" in verdict.evidence[0]
    # A mean over the same time would have named them, too.
    assert sum(turns[0]) > 1.25 * sum(usual) and sum(turns[1]) > 1.25 * sum(usual)


def test_a_rank_that_is_a_little_slow_beside_much_slower_ones_is_not_named() -> None:
    # Measured on a busy machine: node 1 had a twentieth of a processor, so its ranks came through one turn.
    took_s = {
        0: (0.0101, 0.0116, 0.0114, 0.0102, 0.0095),
        1: (0.0128, 0.0148, 0.0166, 0.0115, 0.0152),
        2: (0.105,),
        3: (0.135,),
    }
    assert judge_validation(ValidationResults(compute_s=took_s), TOPOLOGY).slow_ranks == (2, 3)
    alone = {rank: took_s[rank] for rank in (0, 1)}
    assert judge_validation(ValidationResults(compute_s=alone), TOPOLOGY).slow_ranks == (1,)


@pytest.mark.parametrize(("disturbed_s", "ratio"), [(30.0, 1.5), (30.0, 3.9), (1000.0, 2.0)])
def test_a_disturbance_of_the_only_turn_of_a_rank_hides_no_slow_rank(disturbed_s: float, ratio: float) -> None:
    took_s = dict.fromkeys(range(2, 8), (1.0,) * 5) | {0: (disturbed_s,), 1: (ratio,) * 5}
    verdict = judge_validation(ValidationResults(compute_s=took_s), TOPOLOGY)
    assert verdict.slow_ranks == (0, 1)
    assert "little" not in "".join(verdict.evidence)


def test_the_evidence_about_a_rank_that_is_only_a_little_slower_is_true() -> None:
    waited = dict.fromkeys(range(8), (0.2,) * 5)
    results = ValidationResults(
        compute_s=dict.fromkeys(range(2, 8), (1.2,) * 5) | {0: (30.2,) * 5, 1: (1.6,) * 5},
        compute_waited_s=waited,
        on_shared_machines=frozenset(waited),
    )
    verdict = judge_validation(results, TOPOLOGY)
    assert verdict.slow_ranks == (0,)
    (of_rank,) = (line for line in verdict.evidence if line.startswith("GEMM on rank 1 "))
    assert "1.40 times what its peers take, longer in 5 of 5 turns" in of_rank
    assert of_rank.endswith("this is little compared with the slowest rank")
    (of_peer,) = (line for line in verdict.evidence if line.startswith("GEMM on rank 2 "))
    assert "takes as long as on its peers" in of_peer


def test_links_of_a_rank_that_is_only_a_little_slower_name_no_node() -> None:
    """Node 1 is a little slower, and so are its links, beside node 0, which is much slower."""
    took_s = {0: (30.0,) * 5, 1: (1.4,) * 5} | dict.fromkeys(range(2, 6), (1.0,) * 5)
    pairs = [(one, other) for one in range(6) for other in range(6) if one != other]
    results = ValidationResults(
        compute_s=took_s,
        transfers=tuple(
            TransferTime(sender=one, receiver=other, seconds=0.14 if 1 in (one, other) else 0.1) for one, other in pairs
        ),
    )
    verdict = judge_validation(results, Topology.of(6, 1, None))
    assert (verdict.slow_ranks, verdict.nodes, verdict.slow_links) == ((0,), (0,), ())


def test_the_wait_for_a_processor_counts_only_where_no_other_node_of_the_job_is_on_the_machine() -> None:
    """Rank 0 takes twice as long as its peers, since other processes had its processor half of the time."""
    turns = {rank: (2.0 if rank == 0 else 1.0,) * 5 for rank in range(4)}
    waited = {rank: (1.0 if rank == 0 else 0.02,) * 5 for rank in range(4)}
    results = ValidationResults(compute_s=turns, compute_waited_s=waited)
    apart = judge_validation(results, TOPOLOGY, 0.25)
    assert apart.slow_ranks == (0,)
    assert "it waited for a processor for 50% of the time" in apart.evidence[0]
    shared = msgspec.structs.replace(results, on_shared_machines=frozenset(range(4)))
    assert judge_validation(shared, TOPOLOGY, 0.25).slow_ranks == ()
    # Stopped, throttled or hot, it is slow while it has the processor, or does not even want one.
    slow = msgspec.structs.replace(shared, compute_waited_s=dict.fromkeys(range(4), (0.02,) * 5))
    assert judge_validation(slow, TOPOLOGY, 0.25).slow_ranks == (0,)


def test_who_is_as_fast_as_its_like_is_not_named() -> None:
    results = ValidationResults(compute_s=dict.fromkeys(range(9), (1.0,)))
    verdict = judge_validation(results, TOPOLOGY)
    assert verdict.slow_ranks == verdict.slow_links == verdict.nodes == ()
    assert verdict.reason == "all that was tested is as fast as its peers"


def test_links_of_a_rank_that_computes_slowly_blame_nobody_else() -> None:
    """Measured on a busy machine, where node 2 had a tenth of a processor; one link of node 0 was disturbed as well."""
    took = [(2, 0, 0.086), (2, 0, 0.067), (0, 1, 0.0256), (0, 1, 0.0269), (1, 2, 0.0197), (1, 0, 0.0957)]
    took += [(1, 2, 0.307), (1, 0, 0.0648)]
    results = ValidationResults(
        compute_s={0: (0.0024, 0.0024, 0.0027), 1: (0.0021, 0.0023, 0.002), 2: (0.0107, 0.0445, 0.0139)},
        transfers=tuple(TransferTime(sender=one, receiver=other, seconds=it) for one, other, it in took),
    )
    verdict = judge_validation(results, Topology.of(3, 1, None))
    assert (verdict.slow_ranks, verdict.nodes) == ((2,), (2,))


def test_with_a_reference_all_may_be_slow() -> None:
    results = ValidationResults(compute_s={4: (2.0,), 5: (2.0,)}, compute_reference_s=1.0)
    assert judge_validation(results, TOPOLOGY).slow_ranks == (4, 5)


def measured(slow: dict[tuple[int, int], float], group: tuple[int, ...]) -> ValidationResults:
    """Every link of the group's ring and tree; `slow` by node ranks, -1: any."""

    def seconds(sender: int, receiver: int) -> float:
        ends = TOPOLOGY.node_rank_of(sender), TOPOLOGY.node_rank_of(receiver)
        return max(slow.get(key, 1.0) for key in (ends, (ends[0], -1), (-1, ends[1])))

    passes = (*ring_passes(group), *tree_passes(group))
    return ValidationResults(
        transfers=tuple(
            TransferTime(sender=sender, receiver=receiver, seconds=0.1 * seconds(sender, receiver))
            for sender, receiver in links(passes)
        )
    )


DP_GROUP = tuple(TOPOLOGY.mesh.group_of(0, "dp"))


def test_a_slow_link_is_named_by_its_two_nodes_and_no_node_for_it() -> None:
    verdict = judge_validation(measured({(2, 3): 4.0}, DP_GROUP), TOPOLOGY)
    assert [(link.sender, link.receiver) for link in verdict.slow_links] == [(2, 3)]
    assert verdict.slow_links[0].ratio == pytest.approx(4.0)
    assert verdict.nodes == ()
    assert verdict.reason == "the link from node 2 to node 3 is slow"


def test_a_node_all_of_whose_links_are_slow_is_named() -> None:
    verdict = judge_validation(measured({(3, -1): 4.0, (-1, 3): 4.0}, DP_GROUP), TOPOLOGY)
    assert verdict.nodes == (3,)
    assert len(verdict.slow_links) >= 3


def test_a_node_that_only_sends_slowly_is_named() -> None:
    verdict = judge_validation(measured({(3, -1): 4.0}, DP_GROUP), TOPOLOGY)
    assert {link.sender for link in verdict.slow_links} == {3}
    assert verdict.nodes == (3,)


def test_links_within_a_node_are_compared_with_each_other_only() -> None:
    results = ValidationResults(
        transfers=(
            TransferTime(sender=0, receiver=1, seconds=0.01),
            TransferTime(sender=2, receiver=3, seconds=0.01),
            TransferTime(sender=4, receiver=5, seconds=0.03),
            TransferTime(sender=0, receiver=2, seconds=0.2),
            TransferTime(sender=2, receiver=4, seconds=0.2),
        )
    )
    verdict = judge_validation(results, TOPOLOGY)
    assert verdict.slow_links == (SlowNodeLink(sender=2, receiver=2, ratio=pytest.approx(3.0)),)
    assert verdict.nodes == (2,)


def test_the_only_link_there_is_needs_a_reference() -> None:
    both = (TransferTime(sender=0, receiver=2, seconds=1.0), TransferTime(sender=2, receiver=0, seconds=1.0))
    assert judge_validation(ValidationResults(transfers=both), TOPOLOGY).slow_links == ()
    known = ValidationResults(transfers=both, transfer_reference_s=0.2)
    assert len(judge_validation(known, TOPOLOGY).slow_links) == 2
