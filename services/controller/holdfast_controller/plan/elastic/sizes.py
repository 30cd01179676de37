"""Jobs on MIN to MAX nodes, as torchrun's `--nnodes MIN:MAX`: the size of the next generation.

Such a job asks for all that it may have at each start. It does not wait if it gets as many as it last ran on, and else
waits for a while (`last_call_s`), then goes on with those that are there. Below MIN it waits as any other job does.
A node that comes while the job trains joins at the next restart, which may be for it (`growth.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.events.parts.job import JobSpec
from holdfast_controller.plan.job import JobState


class Wanted(NamedTuple):
    """Numbers of nodes that a claim for an elastic job asks for, beside those that it holds."""

    most: int
    """Number of nodes that it takes if they are free now."""
    enough: int
    """Number of nodes that it waits for."""
    at_least: int
    """Number of nodes that are enough after the last call."""


def size_for(spec: JobSpec, nodes: int) -> int:
    """Return the largest number of nodes up to `nodes` that the job and its mesh can run on; 0: none is."""
    return next((size for size in range(min(nodes, spec.nnodes_max), spec.nnodes_min - 1, -1) if _fits(spec, size)), 0)


def may_grow(state: JobState) -> bool:
    """Return True if the job could run on more nodes than it holds."""
    return state.spec.is_elastic and size_for(state.spec, state.spec.nnodes_max) > len(state.nodes)


def with_places(state: JobState) -> JobState:
    """Return the job with a vacancy for each node that it may have and does not hold."""
    spec = state.spec.on(size_for(state.spec, state.spec.nnodes_max))
    members = tuple(member for member in state.members if member)
    return state.update(spec=spec, members=members + (None,) * (spec.nnodes - len(members)))


def wanted(state: JobState) -> Wanted:
    """Return the numbers of nodes that the job's next claim asks for."""
    held, spec = len(state.nodes), state.spec
    fewest = next(size for size in range(spec.nnodes_min, spec.nnodes_max + 1) if _fits(spec, size))
    enough = state.nodes_before or spec.nnodes
    return Wanted(state.vacancies, max(0, enough - held), max(0, fewest - held))


def in_words(state: JobState) -> str:
    spec, held = state.spec, len(state.nodes)
    return f"{held} of {spec.nnodes_min} to {spec.nnodes_max} nodes"


def _fits(spec: JobSpec, size: int) -> bool:
    try:
        spec.on(size)
    except ValueError:
        return False
    return True
