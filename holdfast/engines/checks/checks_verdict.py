"""Verdict on a run of checks: suspects, cleared nodes, and what stays open. Pure.

Only a failed test is evidence against a node; a broken or skipped test is none. If most nodes fail, the tests or shared
resources are at fault rather than each node.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from holdfast.engines.checks.folding import unfolded
from holdfast.engines.checks.pairs import Pair, PairFindings, judge_pairs
from holdfast.engines.checks.references import NO_REFERENCES, AnswerKey, References, key_of
from holdfast.engines.checks.suites import END, MEETING
from holdfast.events import DiagnosticResult, ProcessExited
from holdfast.symptoms import Symptom

NETWORK_SYMPTOM = Symptom.INFINIBAND_ERROR.value
SILENT_SYMPTOM = Symptom.NO_ANSWER.value
WRONG_ANSWER_SYMPTOM = Symptom.SILENT_DATA_CORRUPTION.value

SLOW_SHARE = 0.5
"""A device slower than this share of the median of its peers is noted as slow, without eviction."""

COMPARED_MIN = 3
"""Minimum number of nodes for a majority, or for a median of the others."""

Confidence = Literal["high", "medium"]
Failures = Mapping[str, Sequence[DiagnosticResult]]
"""For each node the failures between it and others, whichever end reported them."""


class SuspectNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node to remove, and why. `evidence`: ids of results; `lines`: their details, word for word."""

    node: str
    symptom: str
    confidence: Confidence
    reason: str
    evidence: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    link: Pair | None = None
    """The broken connection that it is named for."""
    is_guess: bool = False
    """True if the other end of the link may be at fault as well."""


class UnresolvedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of which at least one, or the connection between them, is at fault; the checks do not show which."""

    nodes: tuple[str, ...]
    symptom: str
    reason: str
    evidence: tuple[str, ...] = ()


class ChecksVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict of one run; suspects are in the order of the nodes."""

    suspects: tuple[SuspectNode, ...] = ()
    unresolved: tuple[UnresolvedNodes, ...] = ()
    cleared: tuple[str, ...] = ()
    untested: tuple[str, ...] = ()
    """Nodes that neither passed nor failed a test."""
    links: tuple[Pair, ...] = ()
    """Connections that failed with neither end named."""
    lone_links: tuple[Pair, ...] = ()
    """Connections of `links` whose ends both passed with other partners."""
    remarks: tuple[str, ...] = ()
    """Observations that are no evidence against a node."""
    capped: str = ""
    """Reason why no node is named although some failed."""

    @property
    def passed(self) -> bool:
        return not (self.suspects or self.unresolved or self.untested or self.capped)


def judge_checks(
    nodes: Sequence[str],
    results: Iterable[DiagnosticResult],
    unanswered: Mapping[str, str] | None = None,
    references: References = NO_REFERENCES,
    suspected: Iterable[str] = (),
) -> ChecksVerdict:
    """Judge the results of one run on `nodes`, given in the order of their node ranks. `unanswered`: why a node gave no
    or not all results, such as silence until the deadline or the end of its process. `references`: digests that several
    machines agreed on earlier; each has a vote. `suspected`: nodes that other evidence accuses. If most nodes
    fail, the tests themselves are doubted only if most of the nodes outside `suspected` fail too."""
    places = {node: place for place, node in enumerate(nodes)}
    known = [result for result in unfolded(results) if result.node in places]
    own = _own_failures(known)
    for node, why in (unanswered or {}).items():
        if node in places and node not in own:
            own[node] = SuspectNode(node=node, symptom=SILENT_SYMPTOM, confidence="high", reason=why)
    wrong, undecided = _digests(known, references)
    for suspect in wrong:
        own.setdefault(suspect.node, suspect)
    pairs = judge_pairs(_outcomes(nodes, known), own)
    failures = _failures_between(known)
    suspects = own | _pair_suspects(failures, pairs)
    unresolved = undecided + [_link(failures, pair) for pair in pairs.links]
    remarks = _slow(known, suspects.keys())
    named = tuple(suspects[node] for node in nodes if node in suspects)
    capped = ""
    others = set(nodes) - set(suspected)
    failing = sum(suspect.node in others for suspect in named)
    if len(nodes) > 1 and 2 * len(named) > len(nodes) and (2 * failing > len(others) or not others):
        capped = (
            f"{len(named)} of {len(nodes)} nodes fail: a fault of the tests, or of something that the nodes share "
            "(network, file system, software), is more likely than a fault of each"
        )
        unresolved += [_in_doubt(suspect) for suspect in named]
        named = ()
    open_nodes = {node for entry in unresolved for node in entry.nodes}
    passed = {result.node for result in known if result.status == "passed" and result.test not in (MEETING, END)}
    held = {suspect.node for suspect in named} | open_nodes
    doubted = {node for entry in undecided for node in entry.nodes}
    links = tuple(pair for pair in pairs.links if not doubted & set(pair))
    return ChecksVerdict(
        suspects=named,
        unresolved=tuple(unresolved),
        cleared=tuple(node for node in nodes if node in passed and node not in held),
        untested=tuple(node for node in nodes if node not in passed and node not in held),
        links=links,
        lone_links=tuple(pair for pair in links if set(pair) <= pairs.good),
        remarks=tuple(remarks),
        capped=capped,
    )


def ended(results: Iterable[DiagnosticResult]) -> frozenset[str]:
    """Return the nodes whose run has ended, whether all results are here or not."""
    return frozenset(result.node or "" for result in results if result.test == END)


def why_silent(exited: ProcessExited) -> str:
    """Return why a node whose check process ended will send no more results; "" if that is no evidence against it. An
    exception in the program is a failure of the checks, unless the node's disk could not store the results."""
    if exited.exception is not None:
        unreported = exited.exception.type.endswith("NotReported")
        return f"its results could not be written: {exited.exception.message}" if unreported else ""
    if exited.signal:
        return f"its check process was ended by signal {exited.signal}"
    if exited.detail:
        return f"its check process ended: {exited.detail}"
    last = exited.log_tail.strip().rpartition("\n")[2]
    return f"its check process ended with exit code {exited.exit_code}{f': {last}' if last else ''}"


# --- a node by itself ---------------------------------------------------------------------------


def _own_failures(results: list[DiagnosticResult]) -> dict[str, SuspectNode]:
    failed: dict[str, list[DiagnosticResult]] = defaultdict(list)
    for result in results:
        if result.status == "failed" and not _is_between(result):
            failed[result.node or ""].append(result)
    return {
        node: SuspectNode(
            node=node,
            symptom=found[0].symptom,
            confidence="high",
            reason="; ".join(dict.fromkeys(_in_words(result) for result in found)),
            evidence=tuple(result.id for result in found),
            lines=_lines(found),
        )
        for node, found in failed.items()
    }


def _in_words(result: DiagnosticResult) -> str:
    device = f" of {result.device}" if result.device else ""
    return f"{result.test}{device} failed: {result.detail}" if result.detail else f"{result.test}{device} failed"


def _lines(results: Iterable[DiagnosticResult]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for result in results for line in result.detail.splitlines() if line))


def _in_doubt(suspect: SuspectNode) -> UnresolvedNodes:
    return UnresolvedNodes(
        nodes=(suspect.node,), symptom=suspect.symptom, reason=suspect.reason, evidence=suspect.evidence
    )


# --- between nodes ------------------------------------------------------------------------------


def _is_between(result: DiagnosticResult) -> bool:
    return bool(result.peers) or result.test == MEETING


def _between(first: str, result: DiagnosticResult) -> Pair | None:
    """Return the two nodes of a result. A node that cannot join the meeting cannot reach the `first` node's store."""
    node, other = result.node or "", result.peers[0] if result.peers else first
    return (node, other) if other != node and _is_between(result) else None


def _outcomes(nodes: Sequence[str], results: list[DiagnosticResult]) -> dict[Pair, bool]:
    outcomes: dict[Pair, bool] = {}
    known = set(nodes)
    for result in results:
        pair = _between(nodes[0], result)
        if pair is None or pair[1] not in known or result.status not in ("passed", "failed"):
            continue
        if result.test == MEETING and result.status == "passed":
            continue  # a few bytes to a store are no test of a connection
        one, other = sorted(pair)
        # A failure on one end is enough: the other end may have exited before.
        outcomes[one, other] = outcomes.get((one, other), True) and result.status == "passed"
    return outcomes


def _pair_suspects(failures: Failures, pairs: PairFindings) -> dict[str, SuspectNode]:
    found: dict[str, SuspectNode] = {}
    for named, confidence, words in (
        (pairs.bad, "high", "it failed with {} and passed with none, and they passed with others"),
        (pairs.doubtful, "medium", "it failed with {}, and they failed with no other node"),
    ):
        for node, partners in named.items():
            about = [result for result in failures.get(node, ()) if result.node in (node, *partners)]
            reason = words.format(", ".join(partners))
            found[node] = SuspectNode(
                node=node,
                symptom=about[0].symptom if about else NETWORK_SYMPTOM,
                confidence="high" if confidence == "high" else "medium",
                reason=f"{about[0].test if about else 'connection'}: {reason}",
                evidence=tuple(result.id for result in about),
                lines=_lines(about),
            )
    return found


def _failures_between(results: Iterable[DiagnosticResult]) -> Failures:
    found: defaultdict[str, list[DiagnosticResult]] = defaultdict(list)
    for result in results:
        if result.status == "failed" and _is_between(result):
            for node in {result.node or "", *result.peers}:
                found[node].append(result)
    return found


def _link(failures: Failures, pair: Pair) -> UnresolvedNodes:
    of_both = {id(result): result for node in pair for result in failures.get(node, ())}
    about = [result for result in of_both.values() if {result.node or "", *result.peers} <= set(pair)]
    detail = f" ({about[0].detail})" if about and about[0].detail else ""
    return UnresolvedNodes(
        nodes=pair,
        symptom=about[0].symptom if about else NETWORK_SYMPTOM,
        reason=f"{pair[0]} and {pair[1]} failed only with each other{detail}: either of them, or what lies between",
        evidence=tuple(result.id for result in about),
    )


# --- answers that must be the same --------------------------------------------------------------


def _digests(
    results: list[DiagnosticResult], references: References
) -> tuple[list[SuspectNode], list[UnresolvedNodes]]:
    groups: dict[AnswerKey, list[DiagnosticResult]] = defaultdict(list)
    for result in results:
        if result.digest and result.status == "passed":
            groups[key_of(result)].append(result)
    suspects: dict[str, SuspectNode] = {}
    unresolved: list[UnresolvedNodes] = []
    for key, answers in sorted(groups.items(), key=lambda group: str(group[0])):
        given: dict[str, list[DiagnosticResult]] = defaultdict(list)
        for answer in answers:
            given[answer.node or ""].append(answer)
        by_node = {node: {answer.digest for answer in own} for node, own in given.items()}
        known = references.get(key)
        if len({answer.digest for answer in answers} | ({known} if known else set())) == 1:
            continue
        right = _majority(by_node, known)
        others = sum(digests == {right} for digests in by_node.values())
        kind = key.hardware or "the same hardware"
        if right is None:
            before = f", {known} by earlier runs" if known else ""
            unresolved.append(
                UnresolvedNodes(
                    nodes=tuple(by_node),
                    symptom=WRONG_ANSWER_SYMPTOM,
                    reason=f"{key.test}: {_counted(by_node)}{before} on {kind}, and no majority",
                    evidence=tuple(answer.id for answer in answers),
                )
            )
            continue
        for node, digests in by_node.items():
            if digests == {right} or node in suspects:
                continue
            before = " and of earlier runs" if known == right else ""
            suspects[node] = SuspectNode(
                node=node,
                symptom=WRONG_ANSWER_SYMPTOM,
                confidence="high",
                reason=f"{key.test}: its answer {', '.join(sorted(digests - {right}))} is not {right}, that of "
                f"{others} others{before} on {kind}",
                evidence=tuple(answer.id for answer in given[node] if answer.digest != right),
            )
    return list(suspects.values()), unresolved


def _majority(by_node: Mapping[str, set[str]], known: str | None) -> str | None:
    """Return the answer of more than half of the nodes plus the known answer; None if none, or below three voters."""
    voters = len(by_node) + (known is not None)
    if voters < COMPARED_MIN:
        return None
    counts = Counter(next(iter(digests)) for digests in by_node.values() if len(digests) == 1)
    if known is not None:
        counts[known] += 1
    ((digest, count),) = counts.most_common(1) or [("", 0)]
    return digest if 2 * count > voters else None


def _counted(by_node: Mapping[str, set[str]]) -> str:
    return "different answers: " + ", ".join(f"{node} {'/'.join(sorted(digests))}" for node, digests in by_node.items())


# --- rates --------------------------------------------------------------------------------------


def _slow(results: list[DiagnosticResult], suspects: Iterable[str]) -> list[str]:
    groups: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for result in results:
        if result.value is not None and result.status == "passed" and not result.peers and result.hardware:
            rates = groups[result.test, result.hardware, result.unit]
            node = result.node or ""
            rates[node] = min(result.value, rates.get(node, result.value))
    excused = set(suspects)
    remarks = []
    for (test, _, unit), rates in sorted(groups.items()):
        if len(rates) < COMPARED_MIN:
            continue
        ordered = sorted(rates.values())
        for node, rate in rates.items():
            others = _median_without(ordered, rate)
            if rate < SLOW_SHARE * others and node not in excused:
                remarks.append(f"{node} is slow: {test} {rate:.3g} {unit}, the others {others:.3g}")
    return remarks


def _median_without(ordered: Sequence[float], value: float) -> float:
    """Return the median of these values in ascending order, one of which is `value`, without that one."""
    place, count = bisect_left(ordered, value), len(ordered) - 1
    low, high = ((count - 1) // 2, count // 2)
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2
