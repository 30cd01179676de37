"""Section `[ladder]`: the thresholds of the recovery ladder."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import SETTLED_S_MAX, Section, Within


class LadderPolicy(Section, frozen=True, kw_only=True):
    """The recovery ladder's thresholds."""

    attempts_max: Annotated[int, Within(1, 100_000)] = 8
    """Restarts within one incident before the job is stopped."""

    failures_of_node_max: Annotated[int, Within(1, 100_000)] = 2
    """First-hand failures of a node within one incident that evict it."""

    same_failures_max: Annotated[int, Within(2, 100_000)] = 4
    """Generations of one incident that may fail in the same way at the same step, and not all on one node, before the
    job is stopped: what comes again on another machine is no machine's fault."""

    settled_s: Annotated[float, Within(0.001, SETTLED_S_MAX)] = 600.0
    """A script that does not count its steps trains for this long until its incident counts as over."""

    alerts_max: Annotated[int, Within(1, 100)] = 2
    """Alerts of one check and device, within `alerts_window_s`, that evict a node where one may pass by itself."""

    alerts_window_s: Annotated[float, Within(1, 86400.0)] = 300.0
    """Alerts that are further apart do not add up (ByteRobust: twice within five minutes)."""

    reattempts_before_checks: Annotated[int, Within(0, 100_000)] = 1
    """Restarts in place, after crashes without a culprit, before the nodes are checked while training stands still.

    0: they are checked at the first crash. Bad numbers lead there at once: they come from machines that look well."""

    service_pause_s: Annotated[float, Within(0.01, 86400.0)] = 2.0
    """Pause before the job is started again that a service elsewhere (HDFS, HTTP, an object store) has failed; each
    further one within the incident is twice as long."""

    service_pause_s_max: Annotated[float, Within(0.01, 86400.0)] = 300.0
    """No pause is longer."""

    service_wait_s_max: Annotated[float, Within(0.0, 30 * 86400.0)] = 3600.0
    """When the pauses of one incident would be longer than this together, the job is stopped."""

    service_attempts_max: Annotated[int, Within(0, 100_000)] = 30
    """So many times it is started again after a pause within one incident. 0: never, the job is stopped."""

    replay_steps_min: Annotated[int, Within(1, 1_000_000)] = 20
    """Steps that a replay has at least: what comes at random steps needs some to come again."""

    replay_steps_max: Annotated[int, Within(1, 1_000_000)] = 1000
    """Steps that a replay has at most, however far the step that failed is from the last one on the disk."""

    replay_layers: Annotated[int, Within(0, 100_000)] = 0
    """Layers that a script is asked to replay with (`trainer.replay().layers`); 0: as many as in training."""

    replay_suspects_max: Annotated[int, Within(1, 1_000_000)] = 2
    """Machines that a replay may evict where it cannot tell which of them it is; more are only named."""

    slow_cost_max_s: Annotated[float, Within(0.1, SETTLED_S_MAX)] = 120.0
    """Seconds of training that a slow machine may cost before it is replaced: about what a restart costs."""

    slow_suspects_max: Annotated[int, Within(0, 1_000_000)] = 4
    """More machines are not replaced at once for making a job slow where nobody can tell which of them does."""

    slow_confidence_min: Annotated[float, Within(0.0, 1.0)] = 0.5
    """Nor those that rounds of stacks name with less: 0.54 is three rounds of five, 0.9 all of them."""

    evictions_share_max: Annotated[float, Within(0.0, 1.0)] = 0.2
    """Share of a job's nodes that may be evicted within `evictions_window_s`; beyond it the circuit breaker opens: what
    blames that many machines is more likely wrong than right."""

    evictions_min: Annotated[int, Within(0, 1_000_000)] = 3
    """So many evictions are always allowed, or jobs of a few nodes could have none."""

    evictions_window_s: Annotated[float, Within(1, 30 * 86400.0)] = 3600.0
