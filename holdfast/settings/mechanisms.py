"""Section `[mechanisms]`: mechanisms that act, and mechanisms that only observe."""

from __future__ import annotations

from typing import Literal

from holdfast.settings import Section

Mode = Literal["act", "observe"]


class MechanismPolicy(Section, frozen=True, kw_only=True):
    """Mechanisms that may act by themselves (`act`) or only observe. Those that are not listed always act.

    One that observes publishes what it would have done (`withheld`); the ladder goes on without it.
    """

    inspections: Mode = "act"
    """Evictions for findings of checks beside training."""

    bad_numbers: Mode = "act"
    """Return to a certified step when losses or gradient norms show corruption."""

    stop_time_checks: Mode = "act"
    """Tests of the nodes while training is stopped, and eviction of those that fail."""

    replay: Mode = "act"
    """Repeated training in small groups to find a machine that computes wrongly, and its eviction."""

    warm_up: Mode = "act"
    """Replacement of nodes that the warm-up of a job has found unfit."""

    hangs: Mode = "act"
    """Restart of a job without progress, and eviction of the machines that hold it up."""

    fail_slow: Mode = "act"
    """Replacement of a machine that tests have shown to slow its job down."""

    record: Mode = "act"
    """Checks and evictions for what the record of a node shows, over incidents and jobs."""

    rollback: Mode = "act"
    """Return to an earlier version of the code."""
