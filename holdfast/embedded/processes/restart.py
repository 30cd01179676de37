"""Decision when to restart a child that exited. Pure: times are arguments."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """Pauses and limits of restarts. The first restart is immediate."""

    base_s: float = 0.25
    """Pause before the second restart; doubled for each further one."""
    cap_s: float = 5.0
    """Maximum pause."""
    ran_well_s: float = 30.0
    """A run that stayed ready for this long clears the record."""
    start_attempts_max: int = 3
    """Starts in a row after which a child that was never ready is given up."""


@dataclass(frozen=True, kw_only=True)
class RestartRecord:
    """`failures`: exits in a row without a good run between them. `ever_ready`: it was ready at least once."""

    failures: int = 0
    ever_ready: bool = False


@dataclass(frozen=True, kw_only=True)
class Restart:
    delay_s: float


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """Leave it off until it is switched on again."""


def after_exit(
    record: RestartRecord, *, ready_s: float | None, policy: RestartPolicy
) -> tuple[RestartRecord, Restart | GiveUp, str]:
    """Decide what follows an exit. `ready_s`: how long the child had been ready, None if it never was in this run."""
    ever_ready = record.ever_ready or ready_s is not None
    ran_well = ready_s is not None and ready_s >= policy.ran_well_s
    failures = 1 if ran_well else record.failures + 1
    record = RestartRecord(failures=failures, ever_ready=ever_ready)
    if not ever_ready and failures >= policy.start_attempts_max:
        return record, GiveUp(), f"ended {failures} times before it was ever ready"
    if failures == 1:
        return record, Restart(delay_s=0.0), "first end after a good run" if ran_well else "first end"
    # The exponent is bounded so that a child that fails for days does not build a huge number.
    delay_s = min(policy.cap_s, policy.base_s * 2.0 ** min(failures - 2, 32))
    return record, Restart(delay_s=delay_s), f"end number {failures} in a row"
