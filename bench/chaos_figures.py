"""The figures of `chaos.py`: of each kind of fault, and of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from chaos_faults import Injected
from report import median, percentile, rounded, table


class Round(NamedTuple):
    """What a round did, and what came of it. `pause_s`: the longest time without a new step. `recovered_s`: time since
    the last fault began until everything ran, some further steps included; None if that was not in time.
    """

    faults: list[Injected]
    recovered_s: float | None
    pause_s: float
    lost_steps: int


def figures(asked: Sequence[str], rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the figures by kind of fault, and of all."""
    pauses = [it.pause_s for it in rounds]
    took = [it.recovered_s for it in rounds if it.recovered_s is not None]
    kinds: dict[str, Any] = {}
    for kind in asked:
        alone = [it for it in rounds if [fault.kind for fault in it.faults] == [kind]]
        paired = [it for it in rounds if len(it.faults) > 1 and kind in [fault.kind for fault in it.faults]]
        if alone or paired:
            kinds[kind] = {
                "times": sum(fault.kind == kind for it in rounds for fault in it.faults),
                "recovered": sum(
                    fault.kind == kind for it in rounds if it.recovered_s is not None for fault in it.faults
                ),
                **spread([it.pause_s for it in alone]),
                "in_pairs_max_s": rounded(max((it.pause_s for it in paired), default=None)),
                "steps_lost_max": max(it.lost_steps for it in alone + paired),
            }
    return {
        "faults": sum(len(it.faults) for it in rounds),
        "rounds": len(rounds),
        "recovered": sum(it.recovered_s is not None for it in rounds),
        **spread(pauses),
        "recovered_median_s": rounded(median(took)),
        "recovered_p99_s": rounded(percentile(took, 99)),
        "recovered_max_s": rounded(max(took, default=None)),
        "steps_lost": sum(it.lost_steps for it in rounds),
        "kinds": kinds,
    }


def spread(pauses: list[float]) -> dict[str, float | None]:
    return {
        "pause_median_s": rounded(median(pauses)),
        "pause_p99_s": rounded(percentile(pauses, 99)),
        "pause_max_s": rounded(max(pauses, default=None)),
    }


def show(came: dict[str, Any]) -> None:
    """Print the table."""
    head = ("fault", "times", "recovered", "pause s", "p99 s", "max s", "in pairs, max s", "steps lost, max")
    if came["kinds"]:
        table(head, [(kind, *row.values()) for kind, row in came["kinds"].items()])
    print(
        f"\n{came['faults']} faults in {came['rounds']} rounds, {came['recovered']} recovered\n"
        f"longest pause of a round: median {came['pause_median_s']} s, p99 {came['pause_p99_s']} s, "
        f"max {came['pause_max_s']} s\n"
        f"until everything runs: median {came['recovered_median_s']} s, p99 {came['recovered_p99_s']} s, "
        f"max {came['recovered_max_s']} s\n"
        f"{came['steps']} steps, {came['steps_lost']} trained again; {came['events_compared']} events and "
        f"{came['losses_compared']} losses compared; {came['metrics_lost']} metrics lost with NATS's memory\n"
        f"{len(came['violations'])} violations\n"
    )
    for violation in came["violations"]:
        print(violation)
