"""Section `[record]`: the model of a node's record, and its limits (docs/record.md)."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import Section, Within

_SHARE = Within(0.001, 0.999)


class RecordPolicy(Section, frozen=True, kw_only=True):
    """The model of a node's record: how probable it is that the machine has a fault that lasts."""

    prior: Annotated[float, _SHARE] = 0.005
    """Share of machines that have a lasting fault, before anything is known of one. A fleet of 400 servers had 0.0042
    faults of a machine and day."""

    after_one: Annotated[float, _SHARE] = 0.2
    """Chance for a machine that has failed once without an explanation. 22 % of that fleet's failures came within a
    day of the end of the machine's last one."""

    ratio_max: Annotated[float, Within(1.0, 1000.0)] = 20.0
    """Factor by which one more failure raises the odds against chance. That fleet's machines failed 18 times as often
    as others between half a day and a day after a repair."""

    culprit_share: Annotated[float, _SHARE] = 0.8
    """Share of a job's unexplained failures that happen on a machine with a lasting fault, if the job has one, and if
    its failures so far do not show that it is less. The others happen on any of its machines."""

    missed_by_checks: Annotated[float, _SHARE] = 0.25
    """Share of lasting faults that stop-time checks do not find."""

    half_life_days: Annotated[float, Within(0.01, 3650.0)] = 5.0
    """Time after which evidence counts half, in logarithms of odds. That fleet's ratio fell from 18 after a day to 4
    after four days and to 1.8 after twenty."""

    check_min: Annotated[float, _SHARE] = 0.25
    """Chance of a lasting fault from which a failure of the machine leads to stop-time checks."""

    exchange_min: Annotated[float, _SHARE] = 0.5
    """Chance from which a failing node leaves for a free one, and is tested beside training: it is more likely broken
    than not. Where no other node is free, all are tested."""

    evict_min: Annotated[float, _SHARE] = 0.7
    """Chance from which a failure of a machine that checks have found nothing wrong with evicts it."""

    accused_share_max: Annotated[float, Within(0.0, 1.0)] = 0.01
    """Share of a job's nodes that may be on the blocklist at once for what its ranks did or printed, without a witness;
    at least as many as the circuit breaker allows a small job. A script can do either on any machine."""

    accused_author_multiple: Annotated[float, Within(1.0, 1000.0)] = 2.0
    """Multiple of that number for all jobs of one user together: a script can be submitted again under another name."""

    rack_chance_max: Annotated[float, Within(0.0, 1.0)] = 0.01
    """Jobs get nodes of a rack only if no others are free once its failures are less probable than this by chance."""

    avoid_min: Annotated[float, _SHARE] = 0.01
    """Chance from which a job gets the machine only if no other one is free: twice the prior. Nothing is lost by
    that, and the least suspect ones come first."""
