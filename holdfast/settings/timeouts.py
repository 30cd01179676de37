"""Section `[timeouts]`: the limits that several parts share; an engine's own limits are in its section.

A few numbers are set (configuration keys of the same names, section `[timeouts]`); all limits derive from them,
and those that depend on the job adapt to its own step time once that is known.
"""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import Section, Within

_DAY_S = 24 * 3600.0
_MONTH_S = 30 * _DAY_S


class Timeouts(Section, frozen=True, kw_only=True):
    """The timeouts that can be set, in seconds unless a name has another unit."""

    heartbeat_s: Annotated[float, Within(0.05, 60, "every node publishes at this rate")] = 1.0
    """Interval of an agent's heartbeats."""

    node_lost_s: Annotated[float, Within(0.15, _DAY_S)] = 6.0
    """Silence after which a node counts as lost, while heartbeats of other nodes arrive."""

    stop_grace_s: Annotated[float, Within(0.05, 600, "a stop of the cluster waits for it")] = 30.0
    """Time between SIGTERM and SIGKILL for a rank that is stopped on purpose (torchrun's is the same): a handler may
    save in it."""

    failed_grace_s: Annotated[float, Within(0.05, 600)] = 2.0
    """Grace for ranks that outlive a failure, which a restart waits for; never longer than `stop_grace_s`."""

    start_s: Annotated[float, Within(0.1, _DAY_S)] = 60.0
    """Time from an order until the node's agent reports that the ranks run."""

    last_call_s: Annotated[float, Within(0, _DAY_S)] = 30.0
    """Time for which a job on MIN to MAX nodes waits for more once it has MIN, unless it is as large as before
    (torchrun's is the same); `--rdzv-conf last_call_timeout=N` is the job's own."""

    first_step_s: Annotated[float, Within(0.1, _MONTH_S)] = 900.0
    """Time from running ranks to their first completed step, while the job's step time is unknown."""

    first_step_min_s: Annotated[float, Within(0.1, _MONTH_S)] = 60.0
    """Lower limit for the first step once the step time is known: restoring and warming up take time."""

    step_multiple: Annotated[float, Within(1, 10_000)] = 20.0
    """Multiple of its step time that is added to that limit."""

    lease_s: Annotated[float, Within(0.1, _MONTH_S)] = 120.0
    """Time for which an agent without the bus lets ranks live that make no progress."""

    orphan_s: Annotated[float, Within(0.1, _MONTH_S)] = 60.0
    """Time for which ranks live without an agent before their zygote ends them."""

    checks_s: Annotated[float, Within(0, _DAY_S)] = 0.0
    """Time for the checks of a job's nodes while training is stopped; a node that does not answer is suspect. 0: as
    long as the tests of the suite and the reports of all nodes may take."""

    replay_s: Annotated[float, Within(1, _DAY_S)] = 1800.0
    """Time for each phase of a dual-phase replay while training is stopped."""

    block_s: Annotated[float, Within(1, 10 * 365 * _DAY_S)] = 24 * 3600.0
    """Time for which an evicted node stays on the blocklist, unless a person releases it; up to three times as long if
    it was evicted before."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("node_lost_s", 3.0, "heartbeat_s", "one or two late heartbeats are no loss")
        self._require("start_s", 2.0, "stop_grace_s", "a node stops its old ranks before it starts new ones")
        self._require("orphan_s", 2.0, "node_lost_s", "a restarted agent must find its ranks alive to adopt them")
        self._require("lease_s", 2.0, "node_lost_s", "a short outage of the bus must not end training")
        self._require("first_step_s", 1.0, "first_step_min_s", "an unknown job is given more time than a known one")

    def _require(self, longer: str, multiple: float, shorter: str, reason: str) -> None:
        if getattr(self, longer) < multiple * getattr(self, shorter):
            raise ValueError(
                f"{longer} = {getattr(self, longer):g} must be at least {multiple:g} x {shorter} "
                f"(= {multiple * getattr(self, shorter):g}): {reason}"
            )

    def grace_s(self, *, is_urgent: bool) -> float:
        """Return the seconds between SIGTERM and SIGKILL for ranks that are stopped."""
        return min(self.failed_grace_s, self.stop_grace_s) if is_urgent else self.stop_grace_s

    def first_step_limit_s(self, step_s: float | None, longest_s: float | None = None) -> float:
        """Return the limit in seconds from running ranks to the first step of a generation.

        `step_s` is the job's median step; `longest_s` the longest time that an earlier generation took to its first
        step, restoring and compiling included.
        """
        if step_s is None:
            return max(self.first_step_s, 3.0 * (longest_s or 0.0))
        usual_s = self.first_step_min_s + self.step_multiple * step_s
        return max(min(self.first_step_s, usual_s), 3.0 * (longest_s or 0.0))
