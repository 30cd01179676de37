"""The verdict on a recorded job as text, with a map of its workers. Pure."""

from __future__ import annotations

from holdfast.engines.stragglers.causes import named
from holdfast.engines.stragglers.straggler_verdict import SlownessVerdict

_KINDS_SHOWN = 5
_ROWS_MAX = 32


def in_words(verdict: SlownessVerdict) -> list[str]:
    figures = verdict.what_if
    lines = [
        f"verdict     {verdict.verdict}",
        f"summary     {verdict.summary}",
        f"confidence  {verdict.confidence:.2f}",
        f"evict       {', '.join(map(str, verdict.evict)) if verdict.evict else 'none'}",
        f"slowdown    {figures.slowdown:.3f}: a step lasts {figures.recorded_s:.4g} s ({figures.replayed_s:.4g} s "
        f"replayed), {figures.ideal_s:.4g} s if every operation were as the usual one of its kind",
        f"read        {verdict.operations} operations, {verdict.steps} steps, data parallel {verdict.dp_size}, "
        f"stages {verdict.pp_size}",
    ]
    for cause in verdict.causes:
        lines.append(f"{cause.kind}: {cause.share:.0%} of the time lost ({cause.saved_s:.3g} s a step): {cause.words}")
        lines += [f"    {line}" for line in cause.evidence]
    if len(verdict.suspects) > 1:
        lines.append(f"suspects    {', '.join(named(worker) for worker in verdict.suspects)}")
    if figures.slowdown > 1:
        kinds = sorted(figures.by_kind.items(), key=lambda one: -one[1])[:_KINDS_SHOWN]
        lines.append(f"slowdown by operation: {', '.join(f'{kind} {times:.3f}' for kind, times in kinds)}")
        lines.append(
            f"share of the slowest 3 % of the workers {figures.worst_workers:.0%}, "
            f"of the last stage {max(figures.last_stage, 0.0):.0%}; forward and backward passes go together: "
            f"{verdict.forward_backward_correlation:.2f}"
        )
        lines += _map(verdict)
    lines += [f"note: {warning}" for warning in verdict.warnings]
    return lines


def _map(verdict: SlownessVerdict) -> list[str]:
    """Show the slowdown that each worker alone causes: data-parallel ranks down, stages across, the worst rows."""
    workers = verdict.what_if.by_worker
    order = sorted(range(len(workers)), key=lambda dp_rank: -max(workers[dp_rank]))
    shown = sorted(order[:_ROWS_MAX])
    blamed = {(worker.dp_rank, worker.stage) for worker in verdict.suspects}
    lines = ["slowdown by worker (* blamed):"]
    lines.append("          " + "".join(f" stage {stage:<3}" for stage in range(verdict.pp_size)))
    for dp_rank in shown:
        row = workers[dp_rank]
        cells = (
            f"   {row[stage]:.2f}{'*' if (dp_rank, stage) in blamed else ' '} " for stage in range(verdict.pp_size)
        )
        lines.append(f"    dp {dp_rank:<3}" + " ".join(cells).rstrip())
    if hidden := len(workers) - len(shown):
        lines.append(f"    {hidden} more data-parallel ranks, none of them slower")
    return lines
