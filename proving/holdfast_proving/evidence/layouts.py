"""The programs of a job's ranks, by the mesh that the scenario gives it."""

from __future__ import annotations

from functools import cache

from holdfast_proving.emulated_hangs.programs import Layout, fsdp, megatron
from holdfast_proving.scenario.forms import mesh_of
from holdfast_proving.scenario.scenario import JobPlan


@cache
def layout_of(plan: JobPlan) -> Layout:
    """Return the programs of a job's ranks; a caller that changes one changes a copy (`fresh`)."""
    mesh = mesh_of(plan)
    if mesh.names == ("dp",):
        return fsdp(mesh.world_size, 1, layers=6, steps=2, ranks_per_node=plan.ranks_per_node)
    if mesh.names == ("replicate", "shard"):
        return fsdp(mesh.size("shard"), mesh.size("replicate"), layers=6, steps=2, ranks_per_node=plan.ranks_per_node)
    sizes = dict(zip(mesh.names, mesh.sizes, strict=True))
    pp, dp, tp = (sizes.get(dim, 1) for dim in ("pp", "dp", "tp"))
    return megatron(pp, dp, tp, 1, microbatches=4, steps=2, ranks_per_node=plan.ranks_per_node)


def fresh(layout: Layout) -> Layout:
    """Return a copy whose programs may be replaced."""
    return Layout(
        layout.mesh,
        layout.ranks_per_node,
        layout.style,
        list(layout.programs),
        layout.groups,
        layout.members,
        layout.descriptions,
    )
