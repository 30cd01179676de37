"""One analysis of a slow job: the request, the answers of the nodes, and the finding. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast.engines.slow.slow_findings import SlowSuspects
from holdfast.events import CollectivesProfiled, FailSlowLocated, SlownessTested
from holdfast.events.parts.samples import SlowStage
from holdfast.ids import derived_id
from holdfast.orders.slow import SlowOrder, SlowTests
from holdfast_analyzer.engines.slow.slow_location import EVIDENCE_MAX, Passes, Profiles, SlowJudgement
from holdfast_analyzer.engines.slow.slow_vote import RANKS_SHOWN_MAX, Ballot

FLAGGED_SHOWN_MAX = 8
VOTED = "voted"


class Analysis:
    """One analysis.

    `slow`: seconds an iteration takes now and took before, if the job got slow; `share_left`: remaining share of its
    pace, if no more than the decline is known. `by_stacks`: a person wants rounds of stacks and nothing else.
    `by_steps`: the pace is that of steps, not of collectives. `again`: the analysis whose tests came too late for some
    ranks, and which this one repeats; its finding is that one's.
    """

    def __init__(
        self,
        wanted: SlowOrder,
        began: datetime,
        *,
        slow: tuple[float, float] | None = None,
        share_left: float | None = None,
        asked_by: str = "",
        tests: bool = True,
        by_stacks: bool = False,
        by_steps: bool = False,
        again: Analysis | None = None,
    ) -> None:
        self.wanted = wanted
        self.asked: str = again.asked if again is not None else wanted.id
        self.holds: int = again.holds + 1 if again is not None else 1
        """Number of this hold, from 1: an order that came too late is repeated."""
        self.before: tuple[Profiles, SlowJudgement] | None = None
        """Result of the analysis that this one repeats; it is used if not all nodes answer this time."""
        self.began = began
        self.slow = slow
        self.share_left = share_left
        self.asked_by = asked_by
        self.may_test = tests
        self.by_stacks = by_stacks
        self.by_steps = by_steps
        self.profiled: dict[int, CollectivesProfiled] = {}
        self.tested: dict[SlowStage, dict[int, SlownessTested]] = {"hold": {}, "transfers": {}}
        self.profiles: Profiles | None = None
        self.located: SlowSuspects | None = None
        self.passes: Passes = ()
        self.tests: SlowTests | None = None
        self.ballot: Ballot | None = None

    @property
    def is_of_slow_job(self) -> bool:
        """True if the job was known to be slow when the analysis began."""
        return self.slow is not None or self.share_left is not None

    def finding(self, judged: SlowJudgement, now: datetime, common: dict[str, Any]) -> FailSlowLocated:
        """Return the finding; `common` are the fields that all findings of the job have."""
        profiles = self.profiles
        names = profiles.node if profiles else str
        return FailSlowLocated(
            id=derived_id(self.asked, "located"),
            at=now,
            **common,
            cause=self.asked,
            asked=self.asked,
            fault=judged.cause,
            nodes=tuple(map(names, judged.nodes)),
            ranks=judged.ranks,
            links=tuple((names(sender), names(receiver)) for sender, receiver in judged.links),
            suspects=tuple(map(names, judged.suspects)),
            is_validated=judged.is_validated,
            **self._paces(),
            summary=judged.summary,
            evidence=judged.evidence,
            harmless=judged.harmless,
            **(profiles.shown() if profiles else {}),
            took_s=(now - self.began).total_seconds(),
            held_s=max((event.held_s for stage in self.tested.values() for event in stage.values()), default=0.0),
            unanswered=self._unanswered(),
            asked_by=self.asked_by,
        )

    def voted(self, ballot: Ballot, now: datetime, common: dict[str, Any]) -> FailSlowLocated:
        """Return the finding of the rounds; it only suspects unless the job is slow: outliers are no fault as such."""
        vote, profiles = ballot.vote, self.profiles
        ranks = vote.degrader.ranks if vote.degrader else ()
        nodes = ballot.nodes_of(vote.degrader) if vote.degrader else ()
        paces = self._paces()
        excuse = ballot.excuse(vote.degrader, paces["slowdown"]) if vote.degrader else ""
        return FailSlowLocated(
            # On request it is the answer itself; else it follows the finding of collectives and tests.
            id=derived_id(self.asked, VOTED),
            at=now,
            **common,
            cause=self.asked if self.by_stacks else derived_id(self.asked, "located"),
            asked=self.asked if self.by_stacks else derived_id(self.asked, "rounds"),
            suspects=nodes,
            ranks=ranks[:RANKS_SHOWN_MAX],
            one_of=nodes if self.is_of_slow_job and not excuse else (),
            confidence=vote.confidence,
            **paces,
            summary="; ".join(filter(None, (f"by its stacks: {vote.reason}", excuse))),
            evidence=tuple(ballot.lines[-EVIDENCE_MAX:]),
            flagged=ballot.flagged[:FLAGGED_SHOWN_MAX],
            rounds=tuple(ballot.rounds),
            **(profiles.shown() if profiles and self.by_stacks else {}),
            took_s=(now - self.began).total_seconds(),
            asked_by=self.asked_by,
        )

    def _paces(self) -> dict[str, Any]:
        pace_s = self.profiles.pace_s if self.profiles else 0.0
        healthy_s = self.profiles.healthy_s if self.profiles else 0.0
        if self.slow is not None:
            # The newest pace, unless it is of another kind: the period of collectives may be shorter than a step.
            newest_s, (pace_s, healthy_s) = pace_s, self.slow
            if newest_s and not self.by_steps:
                pace_s = newest_s
        elif self.share_left:
            healthy_s = pace_s * self.share_left
            return {"pace_s": pace_s, "healthy_s": healthy_s, "slowdown": 1.0 / self.share_left}
        return {
            "pace_s": pace_s,
            "healthy_s": healthy_s,
            "slowdown": pace_s / healthy_s if pace_s and healthy_s else 1.0,
        }

    def _unanswered(self) -> tuple[str, ...]:
        """Return the nodes that sent a profile but no measurements."""
        if self.tests is None:
            return ()
        tested = self.tested["transfers" if self.tests.passes else "hold"]
        return tuple(event.node or "" for rank, event in sorted(self.profiled.items()) if rank not in tested)
