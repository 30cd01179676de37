"""Section `[hang]`: when a job counts as hanging, and how its processes are traced."""

from __future__ import annotations

import msgspec

from holdfast.settings.ladder import SETTLED_S_MAX
from holdfast.settings.ranges import require_within


class HangPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a job may make no progress until it is looked at, phase by phase, and what is made of it."""

    step_multiple: float = 10.0
    """Times the longest of its last steps (P99) that a job may note nothing at all: no step, phase or collective."""

    floor_s: float = 5.0
    """But no less: a short step is no reason to look at every pause."""

    waiting_multiple: float = 5.0
    """The same where some ranks wait in a collective and others are not in it: that tells more."""

    waiting_floor_s: float = 3.0

    start_s: float = 450.0
    """Nothing noted before a job's very first step, or while it restores; half of what it is given at most
    (`[timeouts] first_step_s`, which names nobody)."""

    start_waiting_s: float = 120.0
    """The same where some ranks wait for others that have not come: these may download data or compile."""

    restart_s: float = 30.0
    """Nothing noted before the first step of a job whose pace is known; and `step_multiple` steps. Half of
    `[timeouts] first_step_min_s`."""

    restart_waiting_s: float = 15.0
    """The same where some ranks wait for others that have not come; and `waiting_multiple` steps."""

    checkpoint_s: float = 600.0
    """Nothing noted in a phase `checkpoint`."""

    eval_s: float = 1800.0
    """Nothing noted in a phase `eval`."""

    held_s: float = 300.0
    """Nothing noted while training is held for tests."""

    phase_s: float = 600.0
    """Nothing noted in a phase that the script has named itself."""

    learned_multiple: float = 3.0
    """Such a phase gets this many times the longest that it has taken so far, if that is less."""

    working_s: float = 600.0
    """A rank that computes, reads or writes while others wait for it may do so for this long: nobody has said what it
    does. Also: steps may be this long in coming though collectives go on."""

    unnamed_s: float = 30.0
    """So long the ranks may stand still with none of them waiting for another: they may wait for data, or for whoever
    has stopped them on purpose."""

    working_cpu_share: float = 0.05
    """Share of a core from which a process counts as working."""

    working_bytes_per_s: float = 65536.0
    """Bytes that it reads and writes a second from which it does as well."""

    answer_s: float = 3.0
    """Nodes that have not answered a request for traces by then are judged without."""

    evict_confidence_min: float = 0.7
    """Suspects that are named with less are not evicted."""

    group_confidence_min: float = 0.5
    """The same of several of which one is at fault: they go only when they hang again and checks have found nothing."""

    suspects_max: int = 4
    """Nor are more machines than this at once: so large a group is restarted first."""

    def __post_init__(self) -> None:
        require_within(
            self,
            step_multiple=(2, 10_000, "steps are not all alike"),
            floor_s=(1, 86400.0, "agents tell once a second"),
            waiting_multiple=(2, 10_000, "steps are not all alike"),
            waiting_floor_s=(1, 86400.0, "agents tell once a second"),
            start_s=(1, SETTLED_S_MAX),
            start_waiting_s=(1, SETTLED_S_MAX),
            restart_s=(1, SETTLED_S_MAX),
            restart_waiting_s=(1, SETTLED_S_MAX),
            checkpoint_s=(1, SETTLED_S_MAX),
            eval_s=(1, SETTLED_S_MAX),
            held_s=(1, SETTLED_S_MAX),
            phase_s=(1, SETTLED_S_MAX),
            learned_multiple=(1.1, 1000),
            working_s=(1, SETTLED_S_MAX),
            unnamed_s=(1, SETTLED_S_MAX),
            working_cpu_share=(0.0, 1000),
            working_bytes_per_s=(0, 1e15),
            answer_s=(0.1, 600),
            evict_confidence_min=(0.0, 1.0),
            group_confidence_min=(0.0, 1.0),
            suspects_max=(0, 1_000_000),
        )
