"""A complaint: something that a policy did or left undone, and that is wrong by the truth."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Wrong(StrEnum):
    """The kinds of complaints."""

    INNOCENT_EVICTED = "innocent_evicted"
    BLAMED_FOR_SHARED = "blamed_for_shared"
    """A node was evicted for something that it had together with others."""
    INNOCENT_KEPT_OUT = "innocent_kept_out"
    """Of nodes that were evicted together an innocent one did not come back in time."""
    BLOCKED_THOUGH_BACK = "blocked_though_back"
    """A node that was away and has been back for long is on the blocklist."""
    STORM_OF_BLAME = "storm_of_blame"
    """More innocent nodes were evicted within an hour than a circuit breaker should allow."""
    EXCHANGED = "exchanged"
    """A present node left a job without eviction: at fault, it goes on to the next job; well, it costs a standby."""
    CULPRIT_STAYS = "culprit_stays"
    GROUP_STAYS = "group_stays"
    """A convincing group was not evicted at the first hang, though others could replace it."""
    GROUP_UNREPLACED = "group_unreplaced"
    """More machines left together at the first hang than were free."""
    ALERT_IGNORED = "alert_ignored"
    SLOW_ONE_STAYS = "slow_one_stays"
    GAVE_UP = "gave_up"
    NOT_COMPLETED = "not_completed"
    """A training with an end came to none, or was said to have."""
    NEEDLESS_RESTART = "needless_restart"
    """A run that made sound steps at its pace was ended, and nothing was wrong."""
    TOO_MANY_RESTARTS = "too_many_restarts"
    RETRIED_IN_VAIN = "retried_in_vain"
    RESTARTS_WITHOUT_END = "restarts_without_end"
    """The simulation was cut short: more happened than in any sound one."""
    UNNOTICED = "unnoticed"
    """No step was made, and nothing was decided for long."""
    STARVED = "starved"
    """A job waited for machines while enough well ones were free, or for a service that was back."""
    POISON_SURVIVES = "poison_survives"
    WORK_THROWN_AWAY = "work_thrown_away"
    """A restart cost more than it could gain."""
    HANG_UNFOUND = "hang_unfound"
    SLOW_ONE_UNFOUND = "slow_one_unfound"
    RELIEF_UNFOUND = "relief_unfound"
    """A job whose slowness had been found was fast again, and nothing reported it."""
    NUMBERS_MISJUDGED = "numbers_misjudged"
    """Bad numbers were found late, at the wrong step, or with a certificate for spoiled steps."""
    DRIFT_UNFOUND = "drift_unfound"
    INNOCENT_NAMED = "innocent_named"
    """A finding names a machine with certainty, and it is another one."""
    FALSE_ALARM = "false_alarm"
    STEPS_THROWN_AWAY = "steps_thrown_away"
    """A start went back further than to the newest sound step that still existed whole."""
    NOTHING_KEPT = "nothing_kept"
    """There was no certified step in memory to go back to when numbers went bad."""
    NO_COPIES = "no_copies"
    """Steps were lost with one machine or one rack, though another machine could have had a copy."""
    TOO_COSTLY = "too_costly"
    """More time was lost than the oracle's bound, without waiting for machines."""
    WAITED_TOO_LONG = "waited_too_long"
    """A job waited for machines for longer than the oracle's bound."""


class Complaint(msgspec.Struct, frozen=True, kw_only=True):
    wrong: Wrong
    at_s: float
    job: str = ""
    node: str = ""
    text: str = ""
