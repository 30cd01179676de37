"""Evictions after stop-time checks and replays that name nodes: which of them, and why."""

from __future__ import annotations

from holdfast.events.parts.ranks import Suspect
from holdfast_controller.plan.incident.incident import Failure, Incident, Rung
from holdfast_controller.plan.incident.rung_choice import CHECKS, REPLAYS, RungChoice


def named_by_checks(failure: Failure, suspects: tuple[Suspect, ...], members: frozenset[str]) -> RungChoice | None:
    """Return the eviction after stop-time checks that named nodes; None if none of them is still in the job."""
    here = tuple(suspect for suspect in suspects if suspect.node in members)
    if not here:
        return None
    found = "; ".join(f"{suspect.node}: {suspect.reason}" for suspect in here)
    return RungChoice(
        rung=Rung.EVICT,
        reason=f"{failure.text}; stop-time checks: {found}",
        nodes=tuple(suspect.node for suspect in here),
        mechanism=CHECKS,
    )


def named_by_link(
    incident: Incident, failure: Failure, links: tuple[tuple[str, str], ...], nodes: tuple[str, ...]
) -> RungChoice | None:
    """Return the eviction after stop-time checks in which one connection failed; `nodes` are ordered by node rank."""
    if len(links) != 1 or not set(links[0]) <= set(nodes):
        return None
    (link,) = links
    ends = " and ".join(link)
    reason = f"{failure.text}; stop-time checks: {ends} cannot reach each other"
    before = {end for known in incident.links for end in known.ends}
    if len(again := before & set(link)) == 1:
        (node,) = again
        others = ", ".join(
            sorted({end for known in incident.links if node in known.ends for end in known.ends} - again)
        )
        reason = f"{reason}, and neither could {node} and {others} before"
        return RungChoice(rung=Rung.EVICT, reason=reason, nodes=(node,), link=link, mechanism=CHECKS)
    if len(nodes) == len(link):
        # Without one of them the link is not used. If the wrong one is evicted, the link to the next node fails too.
        reason = f"{reason}: one of them is evicted"
        return RungChoice(rung=Rung.EVICT, reason=reason, nodes=nodes[-1:], one_of=True, link=link, mechanism=CHECKS)
    return RungChoice(rung=Rung.EVICT, reason=reason, nodes=link, one_of=True, link=link, mechanism=CHECKS)


def named_by_replay(failure: Failure, suspects: tuple[str, ...], result: str, *, one_of: bool) -> RungChoice | None:
    """Return the eviction after a replay that named these suspects, or `one_of` them; None if it named none."""
    if not suspects:
        return None
    reason = f"{failure.text}; dual-phase replay: {result}"
    return RungChoice(rung=Rung.EVICT, reason=reason, nodes=suspects, one_of=one_of, mechanism=REPLAYS)
