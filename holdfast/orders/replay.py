"""What a rank is told that replays a part of its job's training, in the environment variable HOLDFAST_REPLAY."""

from __future__ import annotations

import msgspec

from holdfast.events.parts.scalars import Count, Step

VARIABLE = "HOLDFAST_REPLAY"


class ReplaySettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A replay: from the newest step on the disk that may be restored until past `until`, the step that failed.

    It is `steps_min` steps long at least, `steps_max` at most. `mesh` is the shape of this group, `of_mesh` that of the
    job, of whose replicas it has only some. `layers` asks the script for so many layers instead of its own, for a
    shorter replay; 0: as in training. `round` counts the runs of this replay.
    """

    until: Step
    mesh: str
    of_mesh: str
    steps_min: Count = 20
    steps_max: Count = 1000
    layers: Count = 0
    round: Count = 0

    def steps(self, begins_after: int) -> int:
        """How many steps it takes, if it begins behind this one."""
        return max(1, self.steps_min, min(self.until - begins_after, self.steps_max))


def encode(settings: ReplaySettings) -> str:
    """As it stands in the environment."""
    return msgspec.json.encode(settings).decode()


def decode(text: str) -> ReplaySettings:
    """From the environment.

    Raises:
        ValueError: it is not of that form.
    """
    try:
        return msgspec.json.decode(text, type=ReplaySettings)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{VARIABLE} is not understood: {error}") from error
