"""Nodes of a run of checks that are slow compared with the others, and nodes that are proven not to be. Pure.

Tests find what is broken, but slow is relative. A node is cleared of slowness only after a comparison of its compute
speed with nodes of the same hardware, and of its connections with those of other pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low

import msgspec

from holdfast.engines.checks.checks_verdict import ChecksVerdict, SuspectNode, UnresolvedNodes
from holdfast.engines.checks.folding import unfolded
from holdfast.engines.checks.pairs import Pair, judge_pairs
from holdfast.engines.checks.suites import ALL_GATHER, SPEED
from holdfast.events import DiagnosticResult
from holdfast.settings.findings.slow import SlowPolicy
from holdfast.symptoms import Symptom

SLOWER_BY = SlowPolicy().compute_slower_by
"""Share by which a slow node takes longer than most."""

LINKS_SLOWER_BY = SlowPolicy().links_slower_by
"""Share by which a slow connection takes longer than the faster ones."""

PAIRS_MIN = 2
"""Minimum number of pairs to compare."""

SYMPTOM = Symptom.MFU_DECLINE.value


class _Speeds(msgspec.Struct, frozen=True):
    slow: dict[str, str]
    links: dict[Pair, str]
    compared: frozenset[str]


def with_speeds(verdict: ChecksVerdict, suspected: Sequence[str], results: Iterable[DiagnosticResult]) -> ChecksVerdict:
    """Add what rates show about the suspected nodes to the verdict. `results` are those of all nodes of the run."""
    known = [result for result in unfolded(results) if result.status == "passed" and result.value]
    devices, links = _devices(known, suspected), _links(known)
    slow = {
        node: "; ".join(found.slow[node] for found in (devices, links) if node in found.slow)
        for node in suspected
        if node in devices.slow or node in links.slow
    }
    named = {suspect.node for suspect in verdict.suspects}
    unresolved = [
        UnresolvedNodes(nodes=tuple(node for node in pair if node in suspected), symptom=SYMPTOM, reason=reason)
        for pair, reason in links.links.items()
        if set(pair) & set(suspected)
    ]
    uncompared = [node for node in verdict.cleared if node not in devices.compared & links.compared | slow.keys()]
    if uncompared:
        reason = f"{', '.join(uncompared)} passed, but there was no other node to compare with"
        unresolved.append(UnresolvedNodes(nodes=tuple(uncompared), symptom=SYMPTOM, reason=reason))
    open_nodes = {node for entry in unresolved for node in entry.nodes}
    return msgspec.structs.replace(
        verdict,
        suspects=(
            *verdict.suspects,
            *(
                SuspectNode(node=node, symptom=SYMPTOM, confidence="high", reason=reason)
                for node, reason in slow.items()
                if node not in named
            ),
        ),
        unresolved=(*verdict.unresolved, *unresolved),
        cleared=tuple(node for node in verdict.cleared if node not in open_nodes and node not in slow),
    )


def _devices(results: Sequence[DiagnosticResult], suspected: Sequence[str]) -> _Speeds:
    by_kind: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for result in results:
        if result.test == SPEED and result.node and result.value:
            rates = by_kind[result.hardware, result.unit]
            rates[result.node] = min(result.value, rates.get(result.node, result.value))
    slow: dict[str, str] = {}
    compared: set[str] = set()
    for (_, unit), rates in by_kind.items():
        if len(rates) < 2:
            continue
        compared.update(rates)
        # Compared with nodes that are not suspected; of two nodes the faster one sets the usual rate.
        well = [rate for node, rate in rates.items() if node not in suspected] or list(rates.values())
        usual = 1.0 / median_low([1.0 / rate for rate in well])
        for node, rate in rates.items():
            if usual > (1.0 + SLOWER_BY) * rate:
                slow[node] = f"it computes at {rate:.3g} {unit}, the others at {usual:.3g}"
    return _Speeds(slow, {}, frozenset(compared))


def _links(results: Sequence[DiagnosticResult]) -> _Speeds:
    rates: dict[Pair, float] = {}
    for result in results:
        if result.test == ALL_GATHER and result.node and result.value and result.peers:
            one, other = sorted((result.node, result.peers[0]))
            rates[one, other] = min(result.value, rates.get((one, other), result.value))
    if len(rates) < PAIRS_MIN:
        return _Speeds({}, {}, frozenset())
    # One slow node is an end of many pairs, so the faster pairs set the usual rate.
    usual = sorted(rates.values(), reverse=True)[(len(rates) - 1) // 4]
    fine = {pair: usual <= (1.0 + LINKS_SLOWER_BY) * rate for pair, rate in rates.items()}
    found = judge_pairs(fine, ())
    slow = {node: _in_words(node, rates, partners, usual) for node, partners in (found.bad | found.doubtful).items()}
    links = {
        pair: f"{pair[0]} and {pair[1]} reach {rates[pair]:.3g} GB/s with each other, other pairs {usual:.3g}: "
        "either of them, or what lies between"
        for pair in found.links
    }
    return _Speeds(slow, links, frozenset(node for pair in rates for node in pair))


def _in_words(node: str, rates: Mapping[Pair, float], partners: Iterable[str], usual: float) -> str:
    with_them = [rate for pair, rate in rates.items() if node in pair and set(pair) & set(partners)]
    return f"it reaches {max(with_them):.3g} GB/s with {', '.join(partners)}, other pairs {usual:.3g}"
