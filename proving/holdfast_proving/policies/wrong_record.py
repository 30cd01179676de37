"""Wrong policies about the records of nodes: they forget, or hold against a node what is no machine's."""

from __future__ import annotations

from holdfast.engines.record import chance
from holdfast.engines.record.history import MarkKind
from holdfast.settings.decisions.record import RecordPolicy
from holdfast.settings.load import Settings
from holdfast.settings.mechanisms import MechanismPolicy
from holdfast.symptoms import Symptom
from holdfast_controller.plan.incident import rungs
from holdfast_controller.plan.incident.incident import Failure
from holdfast_controller.plan.record import finding, noting
from holdfast_proving.policies.mutation import Function, always
from holdfast_proving.policies.policy import Insight, Patch, Policy

_NO_NODES = frozenset({Symptom.SERVICE_ELSEWHERE, Symptom.USER_EXCEPTION, Symptom.EXIT_CODE})


def _counts_all(original: Function, insight: Insight) -> Function:
    def kind_of(failure: Failure) -> MarkKind | None:
        found: MarkKind | None = original(failure)
        return MarkKind.CRASH if failure.symptom in _NO_NODES else found

    return kind_of


def _as(was: MarkKind, becomes: MarkKind) -> Function:
    """Note one kind of failure as another."""

    def make(original: Function, insight: Insight) -> Function:
        def kind_of(failure: Failure) -> MarkKind | None:
            found: MarkKind | None = original(failure)
            return becomes if found is was else found

        return kind_of

    return make


RECORDS: tuple[Policy, ...] = (
    Policy(
        name="forgets_records",
        about="nothing is known of a node from earlier incidents",
        settings=Settings(mechanisms=MechanismPolicy(record="observe")),
    ),
    Policy(
        name="never_decays",
        about="a failure counts as much after weeks as after an hour",
        settings=Settings(record=RecordPolicy(half_life_days=3650.0)),
    ),
    Policy(
        name="counts_explained",
        about="holds against a node what services elsewhere and the script did",
        patches=(Patch(noting, "_kind_of", _counts_all),),
    ),
    Policy(
        name="counts_silence",
        about="holds silence against a node",
        patches=(Patch(noting, "_kind_of", _as(MarkKind.LOST, MarkKind.ALERT)),),
    ),
    Policy(
        name="counts_kills",
        about="takes a kill for a crash",
        patches=(Patch(noting, "_kind_of", _as(MarkKind.KILLED, MarkKind.CRASH)),),
    ),
    Policy(
        name="records_each_alone",
        about="does not see that the job fails on all of its nodes",
        patches=(
            Patch(finding, "elsewhere", always(chance.NOTHING_ELSEWHERE)),
            Patch(noting, "elsewhere", always(chance.NOTHING_ELSEWHERE)),
        ),
    ),
    Policy(
        name="ends_for_broken_nodes",
        about="takes what two broken machines show, one after the other, for a failure of the job",
        patches=(Patch(rungs, "explained_by", lambda original, insight: lambda nodes, incident: incident),),
    ),
)
