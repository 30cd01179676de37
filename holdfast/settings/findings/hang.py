"""Section `[hang]`: conditions for a job to count as hanging."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import SETTLED_S_MAX, Section, Within


class HangPolicy(Section, frozen=True, kw_only=True):
    """When the processes of a job are traced, and the use of the result. A record is one in the ledger: of a step, a
    phase or a collective."""

    step_multiple: Annotated[float, Within(2, 10_000, "steps are not all alike")] = 10.0
    """A job counts as stalled when it records nothing for this multiple of its P99 step time."""

    floor_s: Annotated[float, Within(1, 86400.0, "agents report once a second")] = 5.0
    """Lower limit of that time, so that short pauses do not count."""

    waiting_multiple: Annotated[float, Within(2, 10_000, "steps are not all alike")] = 5.0
    """Like `step_multiple`, while some ranks wait in a collective for others, which is a stronger sign."""

    waiting_floor_s: Annotated[float, Within(1, 86400.0, "agents report once a second")] = 3.0
    """Lower limit of that time."""

    start_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 450.0
    """Time without any record before a job's very first step, or while it restores; at most half of `[timeouts]
    first_step_s`, which names no node."""

    start_waiting_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 120.0
    """Limit before the first step while some ranks wait for others, which may download data or compile."""

    restart_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 30.0
    """Time without any record before the first step of a job whose pace is known, plus `step_multiple` steps; half of
    `[timeouts] first_step_min_s`."""

    restart_waiting_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 15.0
    """Limit after a restart while some ranks wait for others; plus `waiting_multiple` steps."""

    checkpoint_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 600.0
    """Time without any record in phase `checkpoint`."""

    eval_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 1800.0
    """Time without any record in phase `eval`."""

    held_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 300.0
    """Time without any record while training is held for tests."""

    phase_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 600.0
    """Time without any record in a phase that the script has named itself."""

    stopped_s: Annotated[float, Within(1, SETTLED_S_MAX, "agents report once a second")] = 10.0
    """Time without any record of a job if a signal has stopped one of its ranks: the longest limit then."""

    learned_multiple: Annotated[float, Within(1.1, 1000)] = 3.0
    """Limit for such a phase as a multiple of its longest duration so far, if that is less."""

    working_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 600.0
    """Time for which a rank may compute, read or write while others wait for it without a named phase. Also the time
    without a step while collectives go on. Four times as much after such a hang at the same step, and so on."""

    unnamed_s: Annotated[float, Within(1, SETTLED_S_MAX)] = 30.0
    """Time for which all ranks may be idle while none waits for another: they may wait for data, or be stopped on
    purpose. Four times as much after a hang in the script's own code at the same step, sixteen times after two, up to
    `working_s`: the script may do there what takes long and leaves no trace."""

    working_cpu_share: Annotated[float, Within(0.0, 1000)] = 0.05
    """CPU use, in cores, from which a process counts as working."""

    working_bytes_per_s: Annotated[float, Within(0, 1e15)] = 65536.0
    """Bytes read and written per second from which a process counts as working."""

    working_wakes_per_s: Annotated[float, Within(0.1, 1e9)] = 5.0
    """Wakes per second of a rank's main thread from which the rank counts as working: it waits for answers of another
    program, or polls. A rank that hangs waits without a wake."""

    answer_s: Annotated[float, Within(0.1, 600)] = 3.0
    """Time for nodes to answer a trace; the result is formed without those that are late."""

    evict_confidence_min: Annotated[float, Within(0.0, 1.0)] = 0.7
    """Minimum confidence to evict suspects."""

    group_confidence_min: Annotated[float, Within(0.0, 1.0)] = 0.5
    """Minimum confidence to evict a whole group that contains one faulty member. It is done at the first hang if the
    group is convincing, else when the job hangs again and checks have found nothing."""

    suspects_max: Annotated[int, Within(0, 1_000_000)] = 4
    """Number of machines that may be evicted at once, in a job of any size. A larger job may lose a share of
    `[ladder] evictions_share_max` of its machines, if each of them shows a fault."""

    group_share_max: Annotated[float, Within(0.0, 1.0)] = 0.5
    """Share of a job's machines that may be evicted as one group, where that is more than `suspects_max`. The healthy
    machines, which are the majority, have the same stacks."""
