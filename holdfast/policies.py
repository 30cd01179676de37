"""What can be set, a struct for each section of `holdfast.toml`: limits and thresholds. Timeouts are in `timeouts`."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.persistence import PersistEvery
from holdfast.ranges import require_within
from holdfast.subjects import DESIRED_KEPT_S

SETTLED_S_MAX = 7 * 86400.0


class LadderPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recovery ladder's thresholds."""

    attempts_max: int = 8
    """Restarts within one incident before the job is stopped."""

    failures_of_node_max: int = 2
    """First-hand failures of a node within one incident that evict it."""

    same_failures_max: int = 4
    """Generations of one incident that may fail in the same way at the same step, and not all on one node, before the
    job is stopped: what comes again on another machine is no machine's fault."""

    settled_s: float = 600.0
    """A script that does not count its steps trains for this long until its incident counts as over."""

    alerts_max: int = 2
    """Alerts of one check and device, within `alerts_window_s`, that evict a node where one may pass by itself."""

    alerts_window_s: float = 300.0
    """Alerts that are further apart do not add up (ByteRobust: twice within five minutes)."""

    reattempts_before_checks: int = 1
    """Restarts in place, after crashes without a culprit, before the nodes are checked while training stands still.

    0: they are checked at the first crash. Bad numbers lead there at once: they come from machines that look well."""

    service_pause_s: float = 2.0
    """Pause before the job is started again that a service elsewhere (HDFS, HTTP, an object store) has failed; each
    further one within the incident is twice as long."""

    service_pause_s_max: float = 300.0
    """No pause is longer."""

    service_wait_s_max: float = 3600.0
    """When the pauses of one incident would be longer than this together, the job is stopped."""

    service_attempts_max: int = 30
    """So many times it is started again after a pause within one incident. 0: never, the job is stopped."""

    replay_steps_min: int = 20
    """Steps that a replay has at least: what comes at random steps needs some to come again."""

    replay_steps_max: int = 1000
    """Steps that a replay has at most, however far the step that failed is from the last one on the disk."""

    replay_layers: int = 0
    """Layers that a script is asked to replay with (`trainer.replay().layers`); 0: as many as in training."""

    replay_suspects_max: int = 2
    """Machines that a replay may evict where it cannot tell which of them it is; more are only named."""

    slow_cost_max_s: float = 120.0
    """Seconds of training that a slow machine may cost before it is replaced: about what a restart costs."""

    slow_suspects_max: int = 4
    """More machines are not replaced at once for making a job slow where nobody can tell which of them does."""

    slow_confidence_min: float = 0.5
    """Nor those that rounds of stacks name with less: 0.54 is three rounds of five, 0.9 all of them."""

    evictions_share_max: float = 0.2
    """Share of a job's nodes that may be evicted within `evictions_window_s`; beyond it the circuit breaker opens: what
    blames that many machines is more likely wrong than right."""

    evictions_min: int = 3
    """So many evictions are always allowed, or jobs of a few nodes could have none."""

    evictions_window_s: float = 3600.0

    def __post_init__(self) -> None:
        require_within(
            self,
            attempts_max=(1, 100_000),
            failures_of_node_max=(1, 100_000),
            same_failures_max=(2, 100_000),
            settled_s=(0.001, SETTLED_S_MAX),
            alerts_max=(1, 100),
            alerts_window_s=(1, 86400.0),
            reattempts_before_checks=(0, 100_000),
            service_pause_s=(0.01, 86400.0),
            service_pause_s_max=(0.01, 86400.0),
            service_wait_s_max=(0.0, 30 * 86400.0),
            service_attempts_max=(0, 100_000),
            replay_steps_min=(1, 1_000_000),
            replay_steps_max=(1, 1_000_000),
            replay_layers=(0, 100_000),
            replay_suspects_max=(1, 1_000_000),
            slow_cost_max_s=(0.1, SETTLED_S_MAX),
            slow_suspects_max=(0, 1_000_000),
            slow_confidence_min=(0.0, 1.0),
            evictions_share_max=(0.0, 1.0),
            evictions_min=(0, 1_000_000),
            evictions_window_s=(1, 30 * 86400.0),
        )


Mode = Literal["act", "observe"]


class MechanismPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


DAYS_MAX = 36_500


class PoolPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the warm pool is kept."""

    size: int = 0
    """Standby nodes that new jobs leave in the pool for those that lose a node."""

    def __post_init__(self) -> None:
        require_within(self, size=(0, 1_000_000))


class HistoryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the recorded history is kept."""

    keep_days: int = 0
    """Days of events that are kept; 0 keeps all."""

    def __post_init__(self) -> None:
        require_within(self, keep_days=(0, DAYS_MAX))


_ORDERS_KEPT_DAYS = DESIRED_KEPT_S // (24 * 3600)


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long what is over is kept where work is done; the historian has the story (`HistoryPolicy`)."""

    ended_jobs_days: float = 30.0
    """Days that the controller keeps a job after its end.

    Its name stays taken afterwards: two jobs of one name would be one in the record, and share a directory.
    """

    lost_nodes_days: float = 7.0
    """Days that the inventory keeps a node that is lost or has departed, and is not on the blocklist."""

    jobs_on_node_max: int = 20
    """A node keeps logs and reports of this many jobs, those that began there last, besides the one that runs."""

    def __post_init__(self) -> None:
        orders_kept = f"the last order of a node is on the bus for {_ORDERS_KEPT_DAYS} days"
        require_within(
            self,
            ended_jobs_days=(1, DAYS_MAX, "agents' last words of a job may arrive that late"),
            lost_nodes_days=(_ORDERS_KEPT_DAYS + 1, DAYS_MAX, orders_kept),
            jobs_on_node_max=(1, 1_000_000, "the logs of the job that ended last are looked at"),
        )


_BYTES_MAX = 1 << 53

REPLICAS_MAX = 64
BACKUP_EVERY_MAX = 1024
"""Backups further apart are no backups of steps any more: the disk has newer ones."""


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How checkpoints stay in a node's memory, get copies on other nodes, and come to the disk."""

    backup_strategy: Literal["cross-group", "ring", "pairs"] = "cross-group"
    """Who keeps a node's copies: one outside of all its parallel groups, the next one, or two nodes each other's."""

    backup_every: int = 1
    """Every how many steps a copy is sent; less often for as long as the network does not keep up."""

    replicas_max: int = 8
    """So many data-parallel replicas share the sending of what they have in common; 1: each sends all of its own."""

    backup_bytes_per_s: float = 0.0
    """A node sends copies no faster; 0: as fast as they go, between the collectives of its ranks."""

    copy_threads: int = 1
    """Threads of a node's vault that copy the state of one rank, while it goes on, on cores that it does not need."""

    memory_steps: int = 2
    """Steps of each rank that a node keeps in memory, as long as there is room for more than a recovery may need."""

    memory_bytes: int = 0
    """Bytes of a node's memory for them all, those of other nodes included; 0: what the machine has."""

    persist_every: str = "10m"
    """How often a step goes to the disk, of jobs that do not say: "500" steps, "10m", "never"."""

    persist_bytes_per_s: float = 256e6
    """A node writes no faster; 0: as it can."""

    def __post_init__(self) -> None:
        require_within(
            self,
            backup_every=(1, BACKUP_EVERY_MAX),
            replicas_max=(1, REPLICAS_MAX, "each asks all others at every step"),
            backup_bytes_per_s=(0, _BYTES_MAX),
            copy_threads=(1, 256),
            memory_steps=(2, 1024, "ranks may be one step apart"),
            memory_bytes=(0, _BYTES_MAX),
            persist_bytes_per_s=(0, _BYTES_MAX),
        )
        PersistEvery.parse(self.persist_every)


class CodePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a version of a job's code counts as good: until then an error of the script rolls it back."""

    good_after_steps: int = 100
    """Steps that it trains in one generation, with no incident open."""

    good_after_s: float = 3600.0
    """Or seconds, whichever comes first."""

    def __post_init__(self) -> None:
        require_within(
            self, good_after_steps=(1, 1_000_000_000), good_after_s=(1, SETTLED_S_MAX, "what never comes is no verdict")
        )
