"""The verdict of a test of suspects: which nodes are at fault, and which may come back.

If two suspects can be used with others and only their own link fails, one of them may come back. So may one of two if
no other node was free to test them with, since a job may wait for it. Nodes that were slow come back if they are as
fast as the others (`holdfast.engines.checks.speeds`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.engines.checks.checks_verdict import NETWORK_SYMPTOM, ChecksVerdict, SuspectNode, ended, judge_checks
from holdfast.engines.checks.references import References
from holdfast.engines.checks.speeds import with_speeds
from holdfast.events.parts.ranks import Suspect
from holdfast_controller.plan.job import SuspectTest


class SuspectVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Every suspect is in one of three groups."""

    cleared: tuple[str, ...]
    at_fault: tuple[Suspect, ...]
    in_doubt: tuple[str, ...]
    reason: str
    witnesses: tuple[Suspect, ...] = ()
    """Witnesses that the tests found to be at fault."""


class GuessCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost to the pool of evicting several nodes for the fault of one."""

    took_s: float
    """Seconds from the eviction to the results."""
    cleared: int
    witnesses: int

    @property
    def pool_s(self) -> float:
        return self.took_s * (self.cleared + self.witnesses)

    def in_words(self, evicted: int) -> str:
        nodes = "nodes, which were" if evicted > 1 else "node, which was"
        return (
            f"tests found no fault on {self.cleared} of {evicted} evicted {nodes} out for {self.took_s:.0f} s; "
            f"the pool lacked {self.pool_s:.0f} node-seconds"
        )


def judge_suspects(test: SuspectTest, members: Sequence[str], references: References) -> SuspectVerdict:
    """Judge the suspects by the results so far; `members` are the nodes that took part."""
    # Suspects that were not granted for the test took no part: they are untested, not silent.
    silent = dict.fromkeys(members, "it did not answer") | test.died
    over = ended(test.results)
    silent = {node: why for node, why in silent.items() if why and node not in over}
    tested = tuple(dict.fromkeys((*members, *test.nodes)))
    witnesses = test.witnesses_among(tested)
    verdict = judge_checks(tested, test.results, silent, references, test.nodes)
    verdict = msgspec.structs.replace(verdict, cleared=tuple(it for it in test.nodes if it in verdict.cleared))
    cleared = verdict.cleared + _one_of_a_link(test.nodes, verdict, witnesses)
    if test.for_speed:
        verdict = with_speeds(verdict, test.nodes, test.results)
        cleared = verdict.cleared
    at_fault = _at_fault(test.nodes, verdict)
    # The silence of a node that nothing accuses, its agent restarted perhaps, shows nothing.
    failed = tuple(_suspect(it) for it in verdict.suspects if it.node in witnesses and it.node not in silent)
    decided = {*cleared, *(suspect.node for suspect in at_fault)}
    return SuspectVerdict(
        cleared=cleared,
        at_fault=at_fault,
        in_doubt=tuple(node for node in test.nodes if node not in decided),
        reason=_summary(verdict, cleared, at_fault, witnesses),
        witnesses=failed,
    )


def _one_of_a_link(nodes: Sequence[str], verdict: ChecksVerdict, witnesses: Sequence[str]) -> tuple[str, ...]:
    """Return one of two nodes that fail only on the link between them: without the other that link is not used.

    If no witness was free, one end may be at fault, and it may be the one that comes back. Then its next link fails
    too, which names it.
    """
    known = verdict.lone_links if witnesses else verdict.links
    pair: tuple[str, ...] = known[0] if len(known) == 1 else ()
    is_between_suspects = bool(pair) and (set(pair) <= set(nodes) if witnesses else set(pair) == set(nodes))
    return pair[:1] if is_between_suspects else ()


def _at_fault(nodes: Sequence[str], verdict: ChecksVerdict) -> tuple[Suspect, ...]:
    """Return the suspects that the tests name, and those that cannot reach a node that is no suspect."""
    named = [_suspect(it) for it in verdict.suspects if it.node in nodes]
    for link in verdict.links:
        suspects = [node for node in link if node in nodes]
        if len(suspects) == 1:
            (other,) = set(link) - set(suspects)
            reason = f"it cannot reach {other}, which is no suspect"
            named.append(Suspect(node=suspects[0], symptom=NETWORK_SYMPTOM, reason=reason))
    return tuple(named)


def _suspect(it: SuspectNode) -> Suspect:
    return Suspect(node=it.node, symptom=it.symptom, reason=it.reason)


def _summary(
    verdict: ChecksVerdict, cleared: Sequence[str], at_fault: Sequence[Suspect], witnesses: Sequence[str]
) -> str:
    parts = [f"{suspect.node} is at fault: {suspect.reason}" for suspect in at_fault]
    parts += [f"witness {it.node} fails: {it.reason}" for it in verdict.suspects if it.node in witnesses]
    parts += [f"not clear: {doubt.reason}" for doubt in verdict.unresolved]
    if verdict.untested:
        parts.append(f"not tested: {', '.join(verdict.untested)}")
    if cleared:
        parts.append(f"may come back: {', '.join(cleared)}")
    if witnesses:
        parts.append(f"tested with {', '.join(witnesses)}")
    return "; ".join(parts)
