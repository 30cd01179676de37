"""Scores of policies in a simulated cluster: what `holdfast simulate` prints, and the proving ground measures."""

from __future__ import annotations

import msgspec


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over seeds, with the limits of its 95 % confidence interval; None with fewer than two seeds."""

    mean: float
    low: float | None = None
    high: float | None = None


class CurvePoint(msgspec.Struct, frozen=True, array_like=True):
    """ETTR at one time of one simulation."""

    at_h: float
    cumulative: float
    last_hour: float


class ComplaintCount(msgspec.Struct, frozen=True, kw_only=True):
    """Complaints of one kind, and the first of them."""

    wrong: str
    count: int
    is_known: bool
    """The scenario lists it as known to be wrong with today's policy."""
    seed: int
    at_s: float
    job: str = ""
    node: str = ""
    text: str = ""


class PolicyScore(msgspec.Struct, frozen=True, kw_only=True):
    """The score of one policy over all seeds; times are seconds for each day of a job."""

    policy: str
    about: str = ""
    ettr: Estimate
    """Productive share of all time since a job's submission."""
    worst_hour: float
    """Smallest share of training in any hour of any job."""
    bad_hour: float = 1.0
    """One-hour sliding ETTR that is exceeded 99 % of the time."""
    lost_s: Estimate
    lost_by_cause_s: dict[str, float]
    regret_s: Estimate
    """Lost time beyond the oracle's under the same faults."""
    than_first_s: Estimate | None = None
    """Lost time beyond that of the first policy, by pairs under the same faults; None for the first."""
    incidents: int
    evictions: int
    wrong_evictions: int
    cleared_evictions: int = 0
    """Evictions of machines with nothing wrong that a process or rank of their own had accused, and that tests brought
    back within the hour."""
    missed_culprits: int
    """Machines whose fault stopped a job for the fourth time."""
    culprits_by_incidents: dict[int, int] = {}
    """Number of faults of machines, by how often each stopped its job before the machine was gone."""
    blocked_well_h: float
    """Machine-hours on the blocklist of machines with nothing wrong."""
    pool_h: float = 0.0
    """Machine-hours in the warm pool: free, checked and waiting."""
    ended_jobs: int
    cut_short: int = 0
    """Seeds that were given up, since more happened than in any sound simulation."""
    complaints: tuple[ComplaintCount, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    """ETTR over the time of the first seed."""


class Scoreboard(msgspec.Struct, frozen=True, kw_only=True):
    scenario: str
    title: str
    days: float
    seeds: tuple[int, ...]
    faults: int
    """True faults over all seeds."""
    machines: int
    cpu_s: float
    scores: tuple[PolicyScore, ...]
    seeds_wanted: int = 0
    """More than there are `seeds` if it was interrupted."""
