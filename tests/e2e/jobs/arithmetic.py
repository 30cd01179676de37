"""What the job `fold` computes: exact, and different for every order, omission or repetition of its batches."""

from __future__ import annotations

MODULUS = (1 << 31) - 1
FACTOR = 48_271


def batch(position: int, rank: int) -> int:
    """The batch at this position of this rank's data."""
    return (position * 2_654_435_761 + rank * 40_503 + 1) % 65_521


def folded(state: int, batches: int) -> int:
    """The state after a step on batches of this sum."""
    return (state * FACTOR + batches) % MODULUS


def undisturbed(steps: int, world_size: int) -> int:
    """What a job of this size has computed after so many steps in one go."""
    state = 1
    for position in range(steps):
        state = folded(state, sum(batch(position, rank) for rank in range(world_size)))
    return state
