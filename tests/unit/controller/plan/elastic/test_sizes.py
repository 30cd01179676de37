"""The sizes that a job on MIN to MAX nodes can have."""

from __future__ import annotations

import pytest

from holdfast.events.parts.job import JobSpec
from holdfast.topology import Mesh, MeshError
from holdfast_controller.plan.elastic.sizes import size_for


def spec(fewest: int, most: int, nproc: int = 1, mesh: str | None = None) -> JobSpec:
    return JobSpec(
        name="job",
        script="t.py",
        nnodes=most,
        nnodes_min=fewest,
        nnodes_max=most,
        nproc_per_node=nproc,
        mesh=mesh,
        cwd="/",
        directory="/",
    )


@pytest.mark.parametrize(
    ("job", "sizes"),
    [
        (spec(2, 4), (0, 0, 2, 3, 4, 4)),
        (spec(1, 4, 2, "pp=2,dp=2,tp=2"), (0, 0, 2, 2, 4, 4)),
        (spec(1, 4, 2, "dp_replicate=2,fsdp=4"), (0, 0, 2, 2, 4, 4)),
        (spec(1, 4, 2, "pp=4,tp=2"), (0, 0, 0, 0, 4, 4)),
        (spec(3, 4, 2, "pp=2,dp=2,tp=2"), (0, 0, 0, 0, 4, 4)),
    ],
)
def test_it_runs_on_the_most_nodes_that_its_mesh_fits(job: JobSpec, sizes: tuple[int, ...]) -> None:
    assert tuple(size_for(job, nodes) for nodes in range(6)) == sizes
    for size in set(sizes) - {0}:
        assert job.on(size).topology().nnodes == size


def test_only_data_parallelism_changes_with_the_number_of_ranks() -> None:
    mesh = Mesh.parse("pp=2,dp=2,tp=2")
    assert str(mesh.resized(4)) == "pp=2,dp=1,tp=2"
    assert str(mesh.resized(16)) == "pp=2,dp=4,tp=2"
    with pytest.raises(MeshError, match="no multiple of 4"):
        mesh.resized(6)
    with pytest.raises(MeshError, match="keeps its size"):
        Mesh.parse("pp=2,tp=2").resized(2)


def test_a_number_of_nodes_outside_of_its_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="5 nodes are not from 2 to 4"):
        spec(2, 4).on(5)
