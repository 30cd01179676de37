"""Settings of a replay, which a rank reads from the environment variable HOLDFAST_REPLAY."""

from __future__ import annotations

import msgspec

from holdfast.events.parts.scalars import Count, Step

VARIABLE = "HOLDFAST_REPLAY"


class ReplaySettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A replay from the newest step on disk that may be restored until past the step that failed."""

    until: Step
    """The step that failed."""
    mesh: str
    """Shape of this group."""
    of_mesh: str
    """Shape of the job's mesh, of whose replicas the group has only some."""
    steps_min: Count = 20
    steps_max: Count = 1000
    layers: Count = 0
    """Number of layers that the script should use, for a shorter replay; 0: as in training."""
    round: Count = 0
    """Number of this run of the replay, from 0."""

    def steps(self, begins_after: int) -> int:
        """Return the number of steps of a replay that begins after step `begins_after`."""
        return max(1, self.steps_min, min(self.until - begins_after, self.steps_max))

    def encode(self) -> str:
        """Return the value of the environment variable."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str) -> ReplaySettings:
        """Return the settings in the value of the environment variable.

        Raises:
            ValueError: not JSON, or with a missing or wrong field.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise ValueError(f"{VARIABLE} is not understood: {error}") from error
