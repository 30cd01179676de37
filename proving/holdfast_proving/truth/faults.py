"""One true fault: what it is, where, since when, and all chance that belongs to it.

A fault has its own streams of random numbers. What it does depends on its own stream and on how long the job trained
under it, not on what a policy did elsewhere: two policies are compared under the same faults.
"""

from __future__ import annotations

from random import Random

import msgspec

from holdfast_proving.scenario.scenario import FaultKind


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    kind: FaultKind
    place: str
    """Name of its machine, rack or job; `cluster`."""
    machines: tuple[str, ...]
    """Machines of its place; of a fault of a job: none."""
    since_s: float
    lasts_s: float
    """0: a moment. For `repair`: the time that the repair takes."""
    seed: str

    @property
    def culprit(self) -> str | None:
        """The machine without which the fault is gone; None: no machine is at fault."""
        is_one = self.kind.place == "machine" and not self.kind.is_false and self.kind.effect != "drained"
        return self.place if is_one and self.kind.lasts != "moment" else None

    @property
    def is_fatal(self) -> bool:
        """True if nothing that a decision can do helps: people have to change the code or the data."""
        return self.kind.place == "job" and self.kind.same_step and not self.kind.version

    def stream(self, purpose: str) -> Random:
        """Return random numbers that only this fault and purpose use."""
        return Random(f"{self.seed}/{purpose}")
