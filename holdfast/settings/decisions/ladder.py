"""Section `[ladder]`: the thresholds of the recovery ladder."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import SETTLED_S_MAX, Section, Within


class LadderPolicy(Section, frozen=True, kw_only=True):
    """Thresholds of the recovery ladder."""

    attempts_max: Annotated[int, Within(1, 100_000)] = 8
    """Restarts within one incident before the job is stopped."""

    failures_of_node_max: Annotated[int, Within(1, 100_000)] = 2
    """First-hand failures of a node within one incident that evict it."""

    same_failures_max: Annotated[int, Within(2, 100_000)] = 4
    """Generations of one incident that may fail in the same way at the same step, on different nodes, before the job is
    stopped: a failure that repeats on another machine is no machine's fault."""

    settled_s: Annotated[float, Within(0.001, SETTLED_S_MAX)] = 600.0
    """Training time after which an incident is over though the job is not past the step at which it had failed: its
    script does not count its steps, or the way back is long."""

    alerts_max: Annotated[int, Within(1, 100)] = 2
    """Alerts of one check and device within `alerts_window_s` that evict a node, for alerts that may pass by
    themselves, while the job does not train well."""

    alerts_window_s: Annotated[float, Within(1, 86400.0)] = 300.0
    """Alerts further apart do not add up (ByteRobust: twice within five minutes)."""

    alerts_wait_s: Annotated[float, Within(0.0, 3600.0)] = 30.0
    """Time for which an alert that is sure about a node of a training job is compared with those of other nodes, before
    the node leaves. A failure of a rank ends the wait."""

    accusation_confidence_min: Annotated[float, Within(0.0, 1.0)] = 0.9
    """Confidence of the rule by which a rank's own output names its machine (a broken memory chip, a lost GPU) from
    which the first such crash leads to stop-time checks; with a witness that no script can forge, to eviction."""

    reattempts_before_checks: Annotated[int, Within(0, 100_000)] = 1
    """Restarts in place after crashes without a culprit, before training stops for checks of the nodes; 0: checks at
    the first crash. Bad numbers lead to checks at once: they come from machines that look healthy."""

    service_pause_s: Annotated[float, Within(0.01, 86400.0)] = 2.0
    """Pause before a restart after a failure of a service elsewhere (HDFS, HTTP, an object store); each further pause
    within the incident is twice as long."""

    service_pause_s_max: Annotated[float, Within(0.01, 86400.0)] = 300.0
    """Limit of one pause."""

    service_wait_s_max: Annotated[float, Within(0.0, 30 * 86400.0)] = 3600.0
    """Limit of all pauses of one incident; then the job is stopped."""

    absent_wait_s: Annotated[float, Within(0.0, 30 * 86400.0)] = 600.0
    """If all steps of a job are in the memory of nodes that were lost: time for which it waits for one of them to come
    back. Then it ends, unless its owner allows it to start from scratch. 0: it does not wait."""

    service_attempts_max: Annotated[int, Within(0, 100_000)] = 30
    """Restarts after a pause within one incident; 0: the job is stopped at once."""

    replay_steps_min: Annotated[int, Within(1, 1_000_000)] = 20
    """Lower limit of steps in a replay: faults at random steps need some to show again."""

    replay_steps_max: Annotated[int, Within(1, 1_000_000)] = 1000
    """Upper limit of steps in a replay, however far the failed step is from the last one on disk."""

    replay_layers: Annotated[int, Within(0, 100_000)] = 0
    """Number of layers that a script should use in a replay (`trainer.replay().layers`); 0: as in training."""

    replay_suspects_max: Annotated[int, Within(1, 1_000_000)] = 2
    """Machines that a replay may evict if it cannot find which of them is at fault; more are only named."""

    slow_lasts_s: Annotated[float, Within(0.0, SETTLED_S_MAX)] = 600.0
    """Time that slowness of a machine lasts on average (GREYHOUND, section 3: 10 minutes of a machine that computes
    slowly, 24 and more of a link): if a restart costs less than that, a machine that tests have named is replaced at
    once. 0: never before the slowness has cost as much as a restart (Algorithm 1)."""

    slow_cost_max_s: Annotated[float, Within(0.1, SETTLED_S_MAX)] = 120.0
    """Limit of the price of a restart, beside steps to repeat, until a restart of the job shows it: before that its
    start is counted in its place. A slow machine may cost as much before it is replaced."""

    slow_suspects_max: Annotated[int, Within(0, 1_000_000)] = 4
    """Number of machines that may be replaced at once for slowness without proof which of them is slow, in a job of any
    size."""

    slow_group_share_max: Annotated[float, Within(0.0, 1.0)] = 0.5
    """Number of these machines as a share of the job's, where that is more."""

    slow_confidence_min: Annotated[float, Within(0.0, 1.0)] = 0.5
    """Confidence of rounds of stacks below which no machine is replaced: 0.54 is three rounds of five, 0.9 all of
    them."""

    evictions_share_max: Annotated[float, Within(0.0, 1.0)] = 0.2
    """Number of times that machines of a job may be blamed within `evictions_window_s` before the circuit breaker
    opens, as a share of its nodes: evidence that blames that many is more likely wrong than right."""

    evictions_min: Annotated[int, Within(0, 1_000_000)] = 3
    """Number that is always allowed; a job of two or three nodes may have two."""

    evictions_window_s: Annotated[float, Within(1, 30 * 86400.0)] = 3600.0
    """Time within which the circuit breaker counts."""
