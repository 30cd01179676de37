"""The user that ranks run as, where it is not the agent's."""

from __future__ import annotations

import msgspec


class JobUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user of this machine, or a number that no other process has."""

    name: str
    uid: int
    gid: int
    home: str
    groups: tuple[int, ...] = ()
    """Supplementary groups."""

    def variables(self) -> dict[str, str]:
        """Return the variables by which programs find their user."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}
