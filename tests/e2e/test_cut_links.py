"""A link that is cut in a job of three nodes: its two ends are named, and not the third."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import cluster
from hang_cases import CASES, outcome, start, strike
from records import check_record

from holdfast.faults.requirements import Requirement, lacking

pytestmark = pytest.mark.e2e


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_ends_of_a_cut_link_are_named_and_not_the_node_between_them(tmp_path: Path) -> None:
    if reason := lacking(Requirement.LINKS) or lacking(Requirement.MOUNT):
        pytest.skip(reason)
    (case,) = (case for case in CASES if case.needs_links)
    with cluster(tmp_path, 4, namespaces=True) as own:
        job = start(own, case, nnodes=3, nproc=1)
        since = strike(own, case, job)
        first, _, last = own.members(job)
        came = outcome(own, case, job, since, within_s=240.0)
        # Both ends leave, with one other node free. Tests alone cannot tell them apart, so one of them comes back.
        assert (came.ranks, came.decision) == ((0, 2), case.decision), came
        assert f"no data passes between machines {first} and {last}" in came.summary
        found, *_ = own.events(job, "hang_found")
        assert found["nodes"] == [first, last]
        assert f"{first} to {last}" in "".join(found["evidence"]), "what was not acknowledged, in words"
        job.finish()
        check_record(own, job)
