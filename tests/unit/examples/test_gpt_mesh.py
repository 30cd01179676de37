"""The example's mesh, as it is given on the command line."""

from __future__ import annotations

import pytest

from examples.gpt.parallel import parse_mesh


def test_ranks_that_are_not_named_are_data_parallel() -> None:
    assert parse_mesh("", 4) == {"dp": 4}
    assert parse_mesh("pp=2,dp=2", 4) == {"pp": 2, "dp": 2}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("pp=2,dp=2", "is for 4 ranks, the job has 1"),
        ("cp=1", "'cp=1' is not one of pp=N, dp=N, tp=N"),
        ("dp=1,dp=1", "each at most once"),
        ("dp=0", "'dp=0' is not one of"),
    ],
)
def test_a_mesh_that_fits_no_job_of_one_rank_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_mesh(text, 1)
