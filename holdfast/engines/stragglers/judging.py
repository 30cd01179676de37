"""Verdict on a recorded slow job: a machine, a link, the division of its work, or nothing. Pure."""

from __future__ import annotations

from holdfast.engines.stragglers.causes import CauseDescriber
from holdfast.engines.stragglers.compute_times import parts_of, passes
from holdfast.engines.stragglers.link_times import slow_links, usual_transfers
from holdfast.engines.stragglers.straggler_verdict import Cause, SlownessVerdict, WhatIf
from holdfast.engines.stragglers.traces.clock_skew import without_skew
from holdfast.engines.stragglers.traces.operations import Operations, OperationsUnreadable
from holdfast.engines.stragglers.traces.step_shape import StepShape, shapes
from holdfast.engines.stragglers.what_if.counterfactual import CAUSES, AnalyzedStep, lasts_without_s
from holdfast.engines.stragglers.what_if.dependencies import ContradictoryOrder, graph_of
from holdfast.engines.stragglers.what_if.shares import shares_of
from holdfast.engines.stragglers.what_if.what_if import what_if

_NAMED = 0.02
"""Minimum share of a step for a cause to be listed; for a slow machine, of the steps in which it is slow."""
_BLAMED = 0.05
"""Share of a step up to which a cause is normal, unless it is a fault."""
_FAULTS = ("machine", "link")
_TWICE = 2.0
_TOGETHER = 0.9
"""Correlation of forward and backward passes from which the paper considers sequences unequal."""
_SLOW = 1.1
"""Slowdown from which the paper considers a job slow."""
_FELT = 0.003
_UNRECORDED = -0.05
RANKS_PER_MACHINE = 8


def judge_operations(operations: Operations, ranks_per_machine: int = RANKS_PER_MACHINE) -> SlownessVerdict:
    """Find what made the job slow, from the timings of its operations. `ranks_per_machine` matters only where all
    stages of one pipeline are slow. Raises OperationsUnreadable if none of the steps can be replayed."""
    first, *others = shapes(operations)
    warnings = list(operations.warnings)
    if others:
        count = sum(len(shape.steps) for shape in others)
        warnings.append(
            f"{count} steps have another number of microbatches than the other {len(first.steps)}: left out"
        )
    if missing := int((~first.was_recorded).sum()):
        warnings.append(f"{missing} of {first.was_recorded.size} operations were not recorded: usual times are assumed")
    shape, skew_s = without_skew(first)
    if skew_s:
        warnings.append(f"the workers' clocks differ by up to {skew_s:.3g} s: corrected by the ends of their transfers")
    try:
        graph = graph_of(shape)
    except ContradictoryOrder as error:
        raise OperationsUnreadable(f"{operations.name}: {error}; are steps or workers mixed up in it?") from error
    figures = what_if(shape, graph)
    if figures.replay_error < _UNRECORDED:
        warnings.append(
            f"{-figures.replay_error:.0%} of a step lies between operations, where nothing was recorded: "
            "data loading, or the host"
        )
    found = passes(shape)
    parts = parts_of(found, _on_one_machine(operations, ranks_per_machine))
    step = AnalyzedStep(shape, graph, found, parts, slow_links(shape, graph), usual_transfers(shape, graph))
    causes = _causes(step, CauseDescriber(operations, step, parts.correlation))
    return _verdict(operations, shape, figures, parts.correlation, causes, tuple(warnings))


def _causes(step: AnalyzedStep, describer: CauseDescriber) -> list[Cause]:
    """Return the causes that cost time, the greatest first."""
    whole_s = lasts_without_s(step, frozenset())
    best_s = lasts_without_s(step, frozenset(CAUSES))
    felt = []
    for kind in CAUSES:
        saved_s = whole_s - lasts_without_s(step, frozenset((kind,)))
        costs_s = lasts_without_s(step, frozenset(CAUSES) - {kind}) - best_s
        if max(abs(saved_s), abs(costs_s)) > _FELT * whole_s:
            felt.append(kind)
    shares_s = shares_of(felt, lambda gone: lasts_without_s(step, gone))
    lost_s = sum(max(saved_s, 0.0) for saved_s in shares_s.values())
    found = []
    for kind, saved_s in sorted(shares_s.items(), key=lambda one: -one[1]):
        if saved_s * _dilution(kind, step) < _NAMED * whole_s:
            continue
        cause = describer.cause(kind, saved_s / lost_s, saved_s)
        if cause is not None:
            found.append(cause)
    return found


def _dilution(kind: str, step: AnalyzedStep) -> float:
    """Return the factor by which a machine slow in some steps costs more in those."""
    if kind != "machine" or not step.parts.spans:
        return 1.0
    slow = {one for span in step.parts.spans for one in range(span.first, span.last + 1)}
    return len(step.shape.steps) / len(slow)


def _verdict(
    operations: Operations,
    shape: StepShape,
    figures: WhatIf,
    correlation: float,
    causes: list[Cause],
    warnings: tuple[str, ...],
) -> SlownessVerdict:
    blamed_s = _BLAMED * figures.replayed_s
    main = _lengths_first([one for one in causes if one.kind in _FAULTS or one.saved_s >= blamed_s], correlation)
    machines = [worker for one in causes if one.kind == "machine" for worker in one.workers]
    return SlownessVerdict(
        name=operations.name,
        verdict=main.kind if main else "none",
        is_machine_fault=bool(machines),
        summary=_summary(main, bool(machines), causes, figures),
        confidence=round(_confidence(main, shape, figures), 2),
        causes=tuple(causes),
        suspects=tuple(machines) or (main.workers if main else ()),
        evict=tuple(sorted({rank for worker in machines for rank in worker.ranks})),
        what_if=figures,
        forward_backward_correlation=correlation,
        dp_size=shape.dp_size,
        pp_size=shape.pp_size,
        steps=len(shape.steps),
        operations=len(operations.kind),
        warnings=warnings,
    )


def _lengths_first(blamed: list[Cause], correlation: float) -> Cause | None:
    """Return the greatest cause. Unequal sequences precede unequal stages, unless these cost more than twice as much.
    Unequal sequences show most on the heavier stage, so part of their cost is attributed to it."""
    main = blamed[0] if blamed else None
    lengths = next((one for one in blamed if one.kind == "sequence_length_imbalance"), None)
    if main and lengths and main.kind == "stage_imbalance" and correlation >= _TOGETHER:
        return lengths if main.saved_s <= _TWICE * lengths.saved_s else main
    return main


def _on_one_machine(operations: Operations, ranks_per_machine: int) -> frozenset[int]:
    """Return data-parallel ranks whose stages may all be on one machine, by the numbers of their ranks."""
    found = set()
    for dp_rank in range(operations.dp_size):
        ranks = operations.rank[operations.dp_rank == dp_rank]
        if len(ranks) and ranks.min() >= 0 and len({*(ranks // ranks_per_machine).tolist()}) == 1:
            found.add(dp_rank)
    return frozenset(found)


def _confidence(main: Cause | None, shape: StepShape, figures: WhatIf) -> float:
    if main is None:
        return 0.95 if figures.slowdown < _SLOW else 0.6
    sure = 0.55 + 0.44 * main.share
    if main.kind in ("machine", "stage_imbalance", "link"):
        sure *= {1: 0.6, 2: 0.9}.get(shape.dp_size, 1.0)
    return sure if len(shape.steps) > 2 else 0.8 * sure


def _summary(main: Cause | None, is_machine: bool, causes: list[Cause], figures: WhatIf) -> str:
    if main is None:
        small = f"; the most is {causes[0].words} ({_cost(causes[0], figures)})" if causes else ""
        if figures.slowdown >= _SLOW:
            return f"slow, {figures.slowdown:.2f} times its ideal, by no known cause: durations vary{small}"
        return f"nothing is slow enough to be blamed: {figures.slowdown:.2f} times its ideal{small}"
    summary = f"{_NAMES[main.kind]}: {main.words}; it costs {_cost(main, figures)}"
    others = [f"{_NAMES[one.kind]} ({one.share:.0%} of the time lost)" for one in causes if one is not main]
    if others:
        summary += f"; besides: {', '.join(others)}"
    return summary if is_machine else f"{summary}. No machine is at fault: evict no node"


def _cost(cause: Cause, figures: WhatIf) -> str:
    return f"{cause.saved_s:.3g} s of a step's {figures.replayed_s:.3g} s, {cause.share:.0%} of the time lost"


_NAMES = {
    "machine": "slow machine",
    "link": "slow link",
    "communication": "slow communication",
    "stage_imbalance": "stages are unequal",
    "sequence_length_imbalance": "sequences are of unequal length",
    "pauses": "pauses",
}
