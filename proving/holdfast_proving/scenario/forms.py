"""Forms in which faults show, and meshes of jobs: what the evidence for the production analyzer is made by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from holdfast.topology import Mesh, MeshError
from holdfast_proving.emulated_hangs.published import PUBLISHED
from holdfast_proving.emulated_hangs.scenes import KINDS
from holdfast_proving.scenario.scenario import JobPlan, Scenario

NumberForm = Literal["loss nan", "loss inf", "loss jump", "norm nan", "norm jump"]
NUMBER_FORMS: tuple[NumberForm, ...] = get_args(NumberForm)
FALSE_NUMBER_FORMS: tuple[NumberForm, ...] = ("norm nan", "norm jump", "loss jump")
"""What happens for a step or two in sound trainings: an overflow of loss scaling, a bad batch."""

HANG_FORMS = tuple(kind for kind in KINDS if kind != "machine dead")
"""Of a machine that is dead the effect is `lost`."""
HIDDEN = "hidden"
"""A slowness that neither calls nor tests show: only stacks do."""
LINK = "link"
CROWDED = "crowded"
"""A slowness of a host, whose nodes share its processors with other processes: one of the nodes is late by chance."""

ASLEEP = "asleep"
"""A silence of all nodes because the services themselves are stopped."""

FORMS: dict[str, tuple[str, ...]] = {
    "hang": (*HANG_FORMS, *PUBLISHED),
    "slow": (LINK, HIDDEN, CROWDED),
    "bad_numbers": NUMBER_FORMS,
    "silence": (ASLEEP,),
}
"""By effect."""
_MESHES = (("dp",), ("replicate", "shard"))
_DIMS = ("pp", "dp", "tp")


def mesh_of(plan: JobPlan) -> Mesh:
    """Return the mesh of a job; without one of its own its ranks are data-parallel. Raises MeshError."""
    world = plan.nodes * plan.ranks_per_node
    mesh = Mesh.parse(plan.mesh) if plan.mesh else Mesh(("dp",), (world,))
    if mesh.world_size != world:
        raise MeshError(f"mesh {mesh} has {mesh.world_size} ranks, and the job has {world}")
    if mesh.names not in _MESHES and mesh.names != tuple(dim for dim in _DIMS if dim in mesh.names):
        raise MeshError(f"mesh {mesh}: its dimensions are of {', '.join(_DIMS)} in this order, or replicate, shard")
    return mesh


def refusals(scenario: Scenario) -> Iterator[str]:
    """Return what is wrong with the meshes and forms of a scenario."""
    for plan in scenario.jobs:
        try:
            mesh_of(plan)
        except MeshError as error:
            yield f"job {plan.name}: {error}"
    for kind in scenario.faults:
        known = FALSE_NUMBER_FORMS if kind.effect == "bad_numbers" and kind.is_false else FORMS.get(kind.effect, ())
        if kind.form and kind.form not in known:
            there_are = f"there are {', '.join(known)}" if known else f"{kind.effect} has none"
            yield f"fault {kind.name}: form = {kind.form!r}; {there_are}"
        elif kind.effect == "bad_numbers" and kind.is_false and not kind.form:
            yield f"fault {kind.name}: it is a false alarm, so it needs a form: {', '.join(known)}"
