"""Section `[hang]`: when a job counts as hanging, and how its processes are traced."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import SETTLED_S_MAX, Section, Within


class HangPolicy(Section, frozen=True, kw_only=True):
    """How long a job may make no progress until it is looked at, phase by phase, and what is made of it."""

    step_multiple: Annotated[float, Within(2, 10_000, "steps are not all alike")] = 10.0
    """Times the longest of its last steps (P99) that a job may note nothing at all: no step, phase or collective."""

    floor_s: Annotated[float, Within(1, 86400.0, "agents tell once a second")] = 5.0
    """But no less: a short step is no reason to look at every pause."""

    waiting_multiple: Annotated[float, Within(2, 10_000, "steps are not all alike")] = 5.0
    """The same where some ranks wait in a collective and others are not in it: that tells more."""

    waiting_floor_s: Annotated[float, Within(1, 86400.0, "agents tell once a second")] = 3.0

    start_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 450.0
    """Nothing noted before a job's very first step, or while it restores; half of what it is given at most
    (`[timeouts] first_step_s`, which names nobody)."""

    start_waiting_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 120.0
    """The same where some ranks wait for others that have not come: these may download data or compile."""

    restart_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 30.0
    """Nothing noted before the first step of a job whose pace is known; and `step_multiple` steps. Half of
    `[timeouts] first_step_min_s`."""

    restart_waiting_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 15.0
    """The same where some ranks wait for others that have not come; and `waiting_multiple` steps."""

    checkpoint_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 600.0
    """Nothing noted in a phase `checkpoint`."""

    eval_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 1800.0
    """Nothing noted in a phase `eval`."""

    held_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 300.0
    """Nothing noted while training is held for tests."""

    phase_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 600.0
    """Nothing noted in a phase that the script has named itself."""

    learned_multiple: Annotated[float, Within(1.1, 1000)] = 3.0
    """Such a phase gets this many times the longest that it has taken so far, if that is less."""

    working_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 600.0
    """A rank that computes, reads or writes while others wait for it may do so for this long: nobody has said what it
    does. Also: steps may be this long in coming though collectives go on."""

    unnamed_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 30.0
    """So long the ranks may stand still with none of them waiting for another: they may wait for data, or for whoever
    has stopped them on purpose."""

    working_cpu_share: Annotated[float, Within(0.0, 1000)] = 0.05
    """Share of a core from which a process counts as working."""

    working_bytes_per_s: Annotated[float, Within(0, 1e15)] = 65536.0
    """Bytes that it reads and writes a second from which it does as well."""

    answer_s: Annotated[float, Within(0.1, 600)] = 3.0
    """Nodes that have not answered a request for traces by then are judged without."""

    evict_confidence_min: Annotated[float, Within(0.0, 1.0)] = 0.7
    """Suspects that are named with less are not evicted."""

    group_confidence_min: Annotated[float, Within(0.0, 1.0)] = 0.5
    """The same of several of which one is at fault: they go only when they hang again and checks have found nothing."""

    suspects_max: Annotated[int, Within(0, 1_000_000)] = 4
    """Nor are more machines than this at once: so large a group is restarted first."""
