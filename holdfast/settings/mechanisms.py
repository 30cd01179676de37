"""Section `[mechanisms]`: which mechanisms act and which only observe."""

from __future__ import annotations

from typing import Literal

from holdfast.settings import Section

Mode = Literal["act", "observe"]


class MechanismPolicy(Section, frozen=True, kw_only=True):
    """What may act by itself.

    A mechanism that observes says what it would have done (`withheld`); the ladder goes on as if it were not there.
    """

    inspections: Mode = "act"
    """Evictions for what a check of a node has found beside training."""

    bad_numbers: Mode = "act"
    """Going back to a certified step when losses or gradient norms show corruption."""

    stop_time_checks: Mode = "act"
    """Stopping the ranks to test the nodes, and evicting those that fail."""

    replay: Mode = "act"
    """Training again in small groups to find a machine that computes wrongly, and evicting it."""

    hangs: Mode = "act"
    """Restarting a job that stands still, and evicting the machines that hold it up."""

    fail_slow: Mode = "act"
    """Replacing a machine that tests have shown to make its job slow."""

    rollback: Mode = "act"
    """Going back to an earlier version of the code."""
