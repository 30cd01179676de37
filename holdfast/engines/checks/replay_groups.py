"""Dual-phase replay (ByteRobust Alg. 1): how machines are grouped, and which machine the faulty groups share. Pure.

The z machines of a job are divided into n groups of m, once by x // m (horizontal) and once by x mod n (vertical). Each
group trains on its own, with the same model parallelism and fewer replicas. The machine in the faulty group of both
phases is at fault. Machines are numbered by node rank.
"""

from __future__ import annotations

from math import gcd
from typing import Literal

import msgspec

from holdfast.topology import Mesh, Topology

Phase = Literal["horizontal", "vertical"]
PHASES: tuple[Phase, Phase] = ("horizontal", "vertical")

REPLICAS = ("dp", "dp_replicate", "ddp", "data", "data_parallel", "replica", "replicate")
"""Names of replica dimensions in meshes; the first one that a mesh has is reduced."""

MAJORITY = 3
"""Groups from which a single deviating group is outvoted."""


class NotReplayable(ValueError):
    """A job whose machines cannot be compared; the message gives the reason."""


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of a replay: `groups` (n) of `size` (m) machines each."""

    machines: int
    """Number of the job's machines (z)."""
    size: int
    """Machines of a group (m)."""
    mesh: str
    """Shape of the job that a group runs."""
    replicas: int
    """Replicas in a group."""

    @property
    def groups(self) -> int:
        return self.machines // self.size

    def members(self, group: int, phase: Phase) -> range:
        """Return the machines of a group, in the order of their places."""
        if phase == "horizontal":
            return range(group * self.size, (group + 1) * self.size)
        return range(group, self.machines, self.groups)

    def group_of(self, machine: int, phase: Phase) -> int:
        return machine // self.size if phase == "horizontal" else machine % self.groups


class ReplaySuspects(msgspec.Struct, frozen=True, kw_only=True):
    """Machines that the faulty groups of both phases share; `suspects` or `candidates` are set, or neither."""

    suspects: tuple[int, ...] = ()
    """Certainly at fault; with `one_of` at least one of them is."""
    one_of: bool = False
    candidates: tuple[int, ...] = ()
    """May be at fault, without proof which."""
    reason: str


def plan_replay(topology: Topology) -> ReplayPlan:
    """Plan the groups of a job. Raises NotReplayable if there are no two groups to compare.

    A group is the fewest machines that hold whole replicas of the model, or a multiple of that: the smallest with at
    least two replicas (gradients are exchanged as in training), at most as many machines as there are groups (so that
    one faulty machine is found, not several), and at least three groups for a majority.
    """
    mesh, machines = topology.mesh, topology.nnodes
    name = next((name for name in REPLICAS if name in mesh.names), None)
    if name is None:
        raise NotReplayable(f"mesh {mesh} has no data parallelism (dp): no other machine does the same work")
    replicas = mesh.size(name)
    ranks = mesh.world_size // replicas
    least = ranks * topology.ranks_per_node // gcd(ranks, topology.ranks_per_node)
    # `least` ranks are the fewest that whole replicas and whole machines have in common.
    in_least, size = least // ranks, least // topology.ranks_per_node
    possible = [times for times in range(1, replicas // in_least + 1) if replicas % (times * in_least) == 0]
    possible = [times for times in possible if machines // (times * size) > 1]
    if not possible:
        raise NotReplayable(
            f"mesh {mesh} on {machines} machines cannot be cut into groups that each hold whole replicas: replaying "
            f"takes two groups of {size} machines at least, of the same size"
        )
    times = next((times for times in possible if _is_best(times, size, in_least, machines)), possible[0])
    kept = times * in_least
    reduced = Mesh(mesh.names, tuple(kept if one == name else mesh.size(one) for one in mesh.names))
    return ReplayPlan(machines=machines, size=times * size, mesh=str(reduced), replicas=kept)


def original_rank(rank: int, reduced: Mesh, original: Mesh) -> int:
    """Return the job's rank whose place a group's rank takes: all groups replay the first replicas."""
    return original.rank(reduced.coordinates(rank))


def intersect_phases(
    plan: ReplayPlan, horizontal: tuple[int, ...], vertical: tuple[int, ...], suspects_max: int
) -> ReplaySuspects:
    """Intersect the faulty groups of both phases. At most `suspects_max` machines become suspects. A faulty machine
    makes its groups deviate in both phases, so each faulty group has a machine that is in a faulty group of the other
    phase as well. If that is a single one, it is at fault."""
    if not horizontal and not vertical:
        return ReplaySuspects(reason="no group's replay deviates: the failure does not recur, and no machine is named")
    if not horizontal or not vertical:
        return _in_one_phase(plan, horizontal, vertical, suspects_max)
    named = f"{_group_words('horizontal', horizontal)}, {_group_words('vertical', vertical)}"
    here = in_both(plan, horizontal, vertical)
    of_group = [[it for it in here if plan.group_of(it, "horizontal") == group] for group in horizontal]
    of_group += [[it for it in here if plan.group_of(it, "vertical") == group] for group in vertical]
    if not all(of_group):
        everyone = tuple(sorted({*_of(plan, "horizontal", horizontal), *_of(plan, "vertical", vertical)}))
        return ReplaySuspects(
            candidates=everyone,
            reason=f"not every faulty group ({named}) shares a machine with a faulty group of the other phase: "
            "more than one machine is at fault, or one is at fault only intermittently",
        )
    certain = tuple(sorted({group[0] for group in of_group if len(group) == 1}))
    few = len(certain or here) <= suspects_max and 2 * len(certain or here) < plan.machines
    is_explained = all(set(group) & set(certain) for group in of_group)
    if is_explained and len(certain) == 1:
        return ReplaySuspects(suspects=certain, reason=f"one machine is in the faulty group of both phases ({named})")
    if is_explained:
        what = f"several groups deviate ({named}): {len(certain)} machines are at fault"
        return _named(certain, what, few)
    if len(horizontal) == len(vertical) == 1:
        what = (
            f"{len(here)} machines are in the faulty group of both phases ({named}), since a group has {plan.size} "
            f"machines and there are only {plan.groups} groups: one of them is at fault"
        )
        return msgspec.structs.replace(_named(here, what, few), one_of=few and len(here) > 1)
    return ReplaySuspects(
        candidates=here,
        reason=f"several groups deviate ({named}): more than one machine is at fault, and nothing shows which of the "
        "machines in faulty groups of both phases",
    )


def in_both(plan: ReplayPlan, horizontal: tuple[int, ...], vertical: tuple[int, ...]) -> tuple[int, ...]:
    """Return the machines that are in one of these groups in each phase."""
    return tuple(it for it in _of(plan, "horizontal", horizontal) if plan.group_of(it, "vertical") in vertical)


def _named(machines: tuple[int, ...], what: str, are_few: bool) -> ReplaySuspects:
    if are_few:
        return ReplaySuspects(suspects=machines, reason=what)
    return ReplaySuspects(candidates=machines, reason=f"{what}; {len(machines)} are more than may be evicted at once")


def _in_one_phase(
    plan: ReplayPlan, rows: tuple[int, ...], columns: tuple[int, ...], suspects_max: int
) -> ReplaySuspects:
    phase = PHASES[0] if rows else PHASES[1]
    groups = rows or columns
    here = _of(plan, phase, groups)
    # Exactly half may be: without a majority, groups are at fault that have bad numbers or do not repeat themselves.
    if plan.size == 1 and len(here) <= suspects_max and 2 * len(here) <= plan.machines:
        return ReplaySuspects(
            suspects=here, reason=f"each group is one machine; {_group_words(phase, groups)} deviates"
        )
    return ReplaySuspects(
        candidates=here,
        reason=f"{_group_words(phase, groups)} deviates and none in the other phase: one of {len(here)} machines is at "
        "fault intermittently",
    )


def _of(plan: ReplayPlan, phase: Phase, groups: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(machine for group in groups for machine in plan.members(group, phase)))


def _group_words(phase: Phase, groups: tuple[int, ...]) -> str:
    return f"{phase} {', '.join(map(str, groups))}"


def _is_best(times: int, size: int, in_least: int, machines: int) -> bool:
    groups = machines // (times * size)
    return times * in_least > 1 and times * size <= groups and groups >= MAJORITY
