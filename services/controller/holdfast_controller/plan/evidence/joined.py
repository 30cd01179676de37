"""The cause of a failure, from all that is known of it together, by the engine of `holdfast classify`.

What each source can prove, and who can forge it:

exit code or signal      reported by the kernel: true, but seldom a reason
log and exception        output of the rank: a script can print anything; alone it accuses, and proves nothing
kernel log, devices      out of a script's reach: together with a rank's output they prove whose fault it is
ranks of other nodes     the same output on several nodes is about something that they share; a node that has just
                         joined, and alone cannot start what ran without it, is another kind of machine
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

import msgspec

from holdfast.engines.crash import Diagnosis, diagnose, scan_end, scan_lines
from holdfast.engines.crash.rules import rule_book
from holdfast.engines.crash.verdict import EvidenceLine
from holdfast.symptoms import Root, Symptom, row_of
from holdfast_controller.plan.code.code_state import CodeState, CodeVerdict
from holdfast_controller.plan.evidence.explanation import explanation, root_of
from holdfast_controller.plan.evidence.rank_exits import of_generation
from holdfast_controller.plan.incident.incident import Alert, Cause, Proof, RankExit
from holdfast_controller.plan.job import JobState

NEAR = timedelta(seconds=60)
"""Alerts that are neither this close to the end of a rank nor in force are about something else."""

MISFITS = frozenset({"device_ordinal", "no_gpu", "gpu_init", "driver_too_old", "no_kernel_image"})
"""Rules for errors at the start of a rank on a machine unlike the others: fewer devices, an older driver."""

OTHERS_MIN = 2
"""Minimum number of other nodes for an error that one node reports twice to show its machine. With fewer, the same node
may be the first by chance to report an error of all."""

_NO_CAUSE = frozenset({Symptom.UNKNOWN, Symptom.KILLED})
"""Symptoms that name an end, and no cause."""

BARE = frozenset(
    {
        Symptom.ABORTED,
        Symptom.SEGFAULT,
        Symptom.BUS_ERROR,
        Symptom.ILLEGAL_INSTRUCTION,
        Symptom.FLOATING_POINT_EXCEPTION,
    }
)
"""Symptoms that name how a process ended, and not why."""

_CONFIDENCE = {"hint": 0.5, "tolerate": 0.75, "evict": 0.95}
_DEVICE_ROWS = frozenset({Symptom.CUDA_ERROR.row, Symptom.GPU_MEMORY_ERROR.row, Symptom.GPU_UNAVAILABLE.row})
_KERNEL = "kernel log and checks of "


def joined_cause(state: JobState, generation: int, *, alerts_act: bool = True) -> Cause | None:
    """Return the cause of a generation's end by all its exits and the alerts of their nodes; None if none is known.

    If `alerts_act` is False (`[mechanisms] inspections`), alerts name causes and prove nothing.
    """
    exits = of_generation(state.exits, generation)
    if not exits:
        return None
    alerts = {node: _near(state, node, exits) for node in dict.fromkeys(one.node for one in exits)}
    scans = [
        scan_end(it.type, it.message, it.traceback, one.log_tail, one.rank)
        if (it := one.exception)
        else scan_end("", "", "", one.log_tail, one.rank)
        for one in exits
    ]
    scans += [
        scan_lines(f"{_KERNEL}{node}", (line for alert in known for line in alert.lines))
        for node, known in alerts.items()
        if any(alert.lines for alert in known)
    ]
    found = diagnose(scans, {one.rank: one.code for one in exits if one.code is not None})
    if found.symptom in _NO_CAUSE or found.symptom in BARE:
        by_alert = _by_alert(exits, alerts)
        if by_alert is not None:
            return by_alert if alerts_act else msgspec.structs.replace(by_alert, proof=Proof.NOTHING)
    return _by_diagnosis(state, found, exits, alerts if alerts_act else {})


def _near(state: JobState, node: str, exits: Iterable[RankExit]) -> tuple[Alert, ...]:
    """Return the node's alerts that may be about these ends, without those that other nodes report as well."""
    ended_at = [one.at for one in exits if one.node == node]
    known = (alert for alert in state.alerts.get(node, ()) if alert.key not in state.shared)
    return tuple(
        alert
        for alert in known
        if (alert.stands and not alert.is_momentary) or any(abs(alert.at - at) <= NEAR for at in ended_at)
    )


def _node(found: Diagnosis, exits: Iterable[RankExit]) -> str | None:
    if _is_of_kernel(found):
        # A rank of another node may show what looks the same from inside.
        return found.evidence[0].file.removeprefix(_KERNEL)
    by_rank = {one.rank: one.node for one in exits}
    return by_rank.get(found.first_rank) if found.first_rank is not None else None


def _is_of_kernel(found: Diagnosis) -> bool:
    return bool(found.evidence) and found.evidence[0].file.startswith(_KERNEL)


def _by_alert(exits: tuple[RankExit, ...], alerts: Mapping[str, tuple[Alert, ...]]) -> Cause | None:
    """Return the cause that an alert shows, if no rank reports why it ended."""
    ended = next((one for one in exits if one.is_telling), None)
    alert = explanation(Symptom.KILLED_BY_SIGNAL, alerts.get(ended.node, ())) if ended else None
    if ended is None or alert is None:
        return None
    return Cause(
        symptom=Symptom(alert.symptom),
        root=root_of(alert),
        generation=ended.generation,
        node=ended.node,
        rank=ended.rank,
        proof=Proof.NOTHING if alert.confidence == "hint" or alert.shared else Proof.PROVEN,
        confidence=_CONFIDENCE[alert.confidence],
        rule=f"check {alert.check}",
        summary=alert.text,
        witness=alert.text,
        advice="",
        lines=(f"check {alert.check} on {ended.node}: {alert.text}", *alert.lines),
        events=(ended.event, alert.event),
    )


def _by_diagnosis(
    state: JobState, found: Diagnosis, exits: tuple[RankExit, ...], known: Mapping[str, tuple[Alert, ...]]
) -> Cause | None:
    is_cascade = rule_book().named(found.rule).rule.hand == "cascade" if found.rule else True
    if found.symptom in _NO_CAUSE or (is_cascade and found.symptom.row != Symptom.JOB_HANG.row):
        return None
    node = _node(found, exits)
    alerts = known.get(node or "", ())
    here = tuple(one for one in exits if one.node == node)
    same = tuple(one for one in exits if one.rule == found.rule)
    if not same and found.root is Root.INFRASTRUCTURE and _is_of_kernel(found):
        # The kernel has the reason; the rank saw the same fault without it.
        same = tuple(one for one in here if one.rank == found.first_rank)
    is_alone = bool(same) and all(one.node == node for one in same)
    witnesses = tuple(alert for alert in alerts if is_witness(alert, found.symptom))
    proof, root, witness, is_misfit = Proof.NOTHING, found.root, "", False
    accuses = any(one.accuses for one in same)
    accused = _accused(state, found.rule) | {one.node for one in same} if accuses else frozenset[str]()
    if is_alone and witnesses and (accuses or any(alert.confidence != "hint" for alert in witnesses)):
        proof, witness = Proof.PROVEN, witnesses[-1].text
    elif len(accused) > 1:
        root, node = Root.UNKNOWN, None
        witness = f"ranks of {', '.join(sorted(accused))} report it, each about its own machine"
    elif accuses:
        proof = Proof.CLAIMED
    elif is_alone and node and (witness := _misfit(state, node, same)):
        proof, root, is_misfit = Proof.PROVEN, Root.INFRASTRUCTURE, True
    used = [one.event for one in here if one.is_telling] + [alert.event for alert in alerts]
    return Cause(
        symptom=found.symptom,
        root=root,
        generation=exits[0].generation,
        node=node,
        rank=found.first_rank if any(one.rank == found.first_rank for one in here) else None,
        proof=proof,
        confidence=found.confidence,
        rule=found.rule,
        summary=found.summary,
        accused=accused,
        witness=witness,
        is_misfit=is_misfit,
        advice=found.advice,
        lines=tuple(_line(one, exits) for one in found.evidence),
        events=tuple(dict.fromkeys(used or [one.event for one in exits])),
    )


def _accused(state: JobState, rule: str) -> frozenset[str]:
    return state.incident.accused.get(rule, frozenset()) if state.incident else frozenset()


def is_witness(alert: Alert, symptom: Symptom) -> bool:
    """Return True if an alert names the same part of the machine. Hints about CUDA are left by sound machines too.

    What nodes share is no part of it: such an alert waits for those of other nodes (`[ladder] alerts_wait_s`).
    """
    if alert.shared:
        return False
    seen, claimed = row_of(alert.symptom), symptom.row
    # Not every symptom has a row: two without one are not about the same part for that.
    is_same = alert.symptom == symptom or (bool(claimed) and seen == claimed)
    if alert.confidence == "hint":
        return is_same and claimed != Symptom.CUDA_ERROR.row
    return is_same or {seen, claimed} <= _DEVICE_ROWS


def _misfit(state: JobState, node: str, same: tuple[RankExit, ...]) -> str:
    """Return what shows that a node whose ranks cannot start is another kind of machine; "" if nothing does."""
    if not all(one.rule in MISFITS and not one.has_stepped for one in same):
        return ""
    if node in state.newcomers and not _is_untried(state.code, same[0].generation):
        return f"{node} is new to the job, which ran without it, and no other node reports that"
    before = state.incident.user_error if state.incident else None
    is_again = before is not None and before.node == node and before.on_first_step
    if is_again and before and before.generation < same[0].generation and state.spec.nnodes > OTHERS_MIN:
        return f"{node} reports it for the second time, and none of the other {state.spec.nnodes - 1} nodes does"
    return ""


def _is_untried(code: CodeState, generation: int) -> bool:
    """Return True for code that no generation has run on all nodes: a newcomer may be the first to report its error."""
    present = code.present
    return present is not None and present.verdict is CodeVerdict.UNKNOWN and generation >= code.since_generation


def _line(line: EvidenceLine, exits: Iterable[RankExit]) -> str:
    if line.rank is None:
        return f"{line.file}: {line.text}"
    node = next((one.node for one in exits if one.rank == line.rank), "")
    return f"rank {line.rank} on {node}: {line.text}" if node else f"rank {line.rank}: {line.text}"
