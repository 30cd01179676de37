"""Wrong policies about the warm-up of a job's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.engines.checks.checks_verdict import SuspectNode
from holdfast.engines.checks.warm_up import PATHS, WarmUpVerdict
from holdfast.events import DiagnosticResult, ProcessExited
from holdfast.settings.load import Settings
from holdfast.settings.mechanisms import MechanismPolicy
from holdfast_controller.plan.checks import warm_up
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident import rungs
from holdfast_controller.plan.incident.rank_exit import rank_exited
from holdfast_proving.policies.mutation import Function, always
from holdfast_proving.policies.policy import Insight, Patch, Policy


def _believes_silence(original: Function, insight: Insight) -> Function:
    """Take nodes that do not answer for nodes that passed."""

    def judge(nodes: Sequence[str], results: Iterable[DiagnosticResult], *more: Any) -> WarmUpVerdict:
        known = list(results)
        failed = [result for result in known if result.test == PATHS and result.status == "failed"]
        silent = [node for node in nodes if not any(result.node == node for result in known)]
        passed = [msgspec.structs.replace(one, node=node, status="passed") for one in failed[:1] for node in silent]
        verdict: WarmUpVerdict = original(nodes, [*known, *passed], *more)
        return verdict

    return judge


def _evicts_all(original: Function, insight: Insight) -> Function:
    """Hold against each node what all of them fail."""

    def judge(nodes: Sequence[str], results: Iterable[DiagnosticResult], *more: Any) -> WarmUpVerdict:
        verdict: WarmUpVerdict = original(nodes, results, *more)
        blamed = tuple(
            SuspectNode(node=node, symptom=found.symptom, confidence="high", reason=found.reason)
            for found in verdict.shared
            for node in found.nodes
        )
        return msgspec.structs.replace(verdict, suspects=(*verdict.suspects, *blamed), shared=())

    return judge


def _knows_no_links(original: Function, insight: Insight) -> Function:
    def judge(nodes: Sequence[str], results: Iterable[DiagnosticResult], newcomers: Any, _: Any) -> WarmUpVerdict:
        verdict: WarmUpVerdict = original(nodes, results, newcomers)
        return verdict

    return judge


def _is_sure(original: Function, insight: Insight) -> Function:
    def judge(*args: Any) -> WarmUpVerdict:
        verdict: WarmUpVerdict = original(*args)
        suspects = tuple(msgspec.structs.replace(it, is_guess=False) for it in verdict.suspects)
        return msgspec.structs.replace(verdict, suspects=suspects)

    return judge


def _judges_others_first(original: Function, insight: Insight) -> Function:
    """Judge the end of a rank on a fit node while that of another one waits for the results of its node."""

    def takes(draft: JobDraft, event: ProcessExited) -> bool:
        progress = draft.state.warm_up
        if progress is not None and progress.held and event.node in progress.over:
            rank_exited(draft, event)
            return True
        taken: bool = original(draft, event)
        return taken

    return takes


WARM_UPS: tuple[Policy, ...] = (
    Policy(
        name="never_warms_up",
        about="has machines train that cannot",
        settings=Settings(mechanisms=MechanismPolicy(warm_up="observe")),
    ),
    Policy(
        name="believes_silent_warm_ups",
        about="takes a machine that does not answer for fit",
        patches=(Patch(warm_up, "judge_warm_up", _believes_silence),),
    ),
    Policy(
        name="evicts_for_what_all_lack",
        about="evicts each machine for what all of them lack",
        patches=(Patch(warm_up, "judge_warm_up", _evicts_all),),
    ),
    Policy(
        name="waits_for_no_warm_up",
        about="judges the end of a rank before it is known whether its node is fit",
        patches=(Patch(warm_up, "takes", always(False)),),
    ),
    Policy(
        name="judges_ends_alone",
        about="judges the end of a rank before that of the one which it lost",
        patches=(Patch(warm_up, "takes", _judges_others_first),),
    ),
    Policy(
        name="forgets_broken_links",
        about="guesses again which end of a connection is at fault, though one failed with another node before",
        patches=(Patch(warm_up, "judge_warm_up", _knows_no_links),),
    ),
    Policy(
        name="guesses_for_good",
        about="takes its guess about a connection for proof, and none back",
        patches=(Patch(warm_up, "judge_warm_up", _is_sure), Patch(rungs, "_exonerate", always(None))),
    ),
)
