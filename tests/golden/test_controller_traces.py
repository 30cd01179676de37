"""Decisions of the controller, trace by trace (tests/golden/controller/*.trace)."""

from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from holdfast.code.manifest import Manifest, ManifestEntry, digest_of, manifest_of, version_of
from holdfast.engines.checks.checks_program import checks_of
from holdfast.engines.checks.references import AnswerKey
from holdfast.engines.record.history import NodeRecord
from holdfast.engines.record.node_records import NodeRecords
from holdfast.events import Eviction
from holdfast.events.parts.job import JobSpec
from holdfast.events.parts.launch import Launch
from holdfast.ids import derived_id
from holdfast.requests import CodeOffer, ResetBreaker, RollbackJob, StopJob, SubmitJob, UpdateJob
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.settings.decisions.warm_up import WarmUpPolicy
from holdfast.settings.mechanisms import MechanismPolicy
from holdfast.store.changes import change_between, row_of
from holdfast.store.jsonb import storable_json
from holdfast.symptoms import Symptom
from holdfast_controller.plan.checks.suspect_test import follow_up
from holdfast_controller.plan.draft import JobDecision, Rules
from holdfast_controller.plan.incident.incident import Incident
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Claiming
from holdfast_controller.plan.planner import Planner
from tests.golden.trace import START, Input, event_of, ordered, play, told


def _tree(**files: str) -> Manifest:
    digests = {name: (digest_of(text.encode()), len(text)) for name, text in files.items()}
    return manifest_of(
        ManifestEntry(path=f"{name}.py", sha256=digest, size_bytes=size) for name, (digest, size) in digests.items()
    )


TREES = {
    "v1": _tree(train="import model", model="1"),
    "v2": _tree(train="import model", model="2", evaluate="2"),
    "v3": _tree(train="import model", model="3"),
    "other": _tree(something="else"),
}
"""Code as traces name it."""
TRACES = sorted((Path(__file__).parent / "controller").glob("*.trace"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_trace(path: Path, request: pytest.FixtureRequest) -> None:
    versions = {name: version_of(tree) for name, tree in TREES.items()}
    references: dict[AnswerKey, str] = {}
    records = NodeRecords()
    planner = _planner({}, references, records)
    state: JobState | None = None
    hearing_since: datetime | None = START

    def step(given: Input) -> list[str]:
        nonlocal state, hearing_since, planner
        if given.kind == "policy":
            planner = _planner(given.fields, references, records)
            return []
        if given.kind in ("deaf", "hearing"):
            hearing_since = given.at if given.kind == "hearing" else None
            return []
        if given.kind == "submit":
            nnodes, nproc = int(given.fields.get("nnodes", 2)), int(given.fields.get("nproc", 1))
            spec = JobSpec(
                name="job",
                script="train.py",
                nnodes=nnodes,
                nproc_per_node=nproc,
                mesh=given.fields.get("mesh"),
                env={name: value for name, value in given.fields.items() if name.isupper()},
                cwd="/",
                directory="/jobs/job",
                allow_scratch="allow-scratch" in given.words,
            )
            if "min" in given.fields:
                most = int(given.fields.get("max", nnodes))
                spec = msgspec.structs.replace(spec, nnodes_min=int(given.fields["min"]), nnodes_max=most)
            if "max_restarts" in given.fields:
                launch = Launch(max_restarts=int(given.fields["max_restarts"]))
                spec = msgspec.structs.replace(spec, launch=launch)
            if "only" in given.fields:
                spec = msgspec.structs.replace(spec, only_nodes=tuple(given.fields["only"].split(",")))
            if "checks" in given.fields:
                spec = checks_of(spec, given.fields["checks"])
            code = CodeOffer(version=versions[given.fields["code"]]) if "code" in given.fields else None
            if code:
                spec = msgspec.structs.replace(spec, script="/src/train.py", code_root="/src")
            submission = SubmitJob(id=given.id, asked_by="ada", spec=spec, code=code)
            outcome = planner.request(state, submission, given.at)
        elif given.kind == "retest":
            # The run that tests the nodes of the words; another job than that which they were evicted from.
            outcome = _suspect_test(given)
        elif given.kind == "update":
            offer = CodeOffer(version=versions.get(given.fields["code"], "f" * 64), message="a fix")
            urgent, within_s = "urgent" in given.words, float(given.fields.get("within", 86400))
            asked = UpdateJob(id=given.id, asked_by="ada", job="job", code=offer, is_urgent=urgent, within_s=within_s)
            outcome = planner.request(state, asked, given.at)
        elif given.kind == "rollback":
            back = RollbackJob(id=given.id, asked_by="ada", job="job", to=given.fields.get("to", ""))
            outcome = planner.request(state, back, given.at)
        elif given.kind == "stop":
            outcome = planner.request(state, StopJob(id=given.id, asked_by="ada", job="job"), given.at)
        elif given.kind == "reset_breaker":
            outcome = planner.request(state, ResetBreaker(id=given.id, asked_by="ada", job="job"), given.at)
        else:
            assert state is not None
            if given.kind == "time":
                outcome = planner.time(state, given.at, hearing_since)
            else:
                wanted = state.replacement.claim if state.replacement else state.claim
                wanted = state.free_nodes.claim if state.free_nodes else wanted
                claim = given.fields.pop("claim", wanted) or given.id
                defaults = {
                    "job": None if "free" in given.words else "job",
                    "generation": state.generation,
                    "claim": claim,
                    "ordered_generation": state.generation,
                }
                defaults |= {"local_rank": 0, "ranks": [], "took_s": 0.01, "killed": 0, "wanted": 1, "available": 0}
                outcome = planner.event(state, event_of(given, **defaults), given.at)
        if outcome.refusal:
            return [f"= refused: {outcome.refusal}"]
        before, state = state, outcome.state
        assert state is not None
        assert row_of(JobState, storable_json(state), []) == state
        if before is not None:
            change = storable_json(change_between(before, state) or {"in": {}})
            assert row_of(JobState, storable_json(before), [change]) == state
        lines = [told(event) for event in outcome.events] + [ordered(order) for order in outcome.orders]
        records.update({record.node: record for record in outcome.noted})
        assert msgspec.json.decode(msgspec.json.encode(dict(records)), type=dict[str, NodeRecord]) == records
        for learned in outcome.learned:
            references[learned.key] = learned.digest
            lines.append(f"= remembered: {learned.key}: {learned.digest}, as {', '.join(learned.nodes)} reported")
        return [*lines, f"= {summary(state)}"]

    play(path, step, bool(request.config.getoption("--rewrite")))


def _suspect_test(given: Input) -> JobDecision:
    symptom = Symptom(given.fields["symptom"])
    incident = Incident(id=given.id, opened_at=given.at, symptom=symptom, failed_step=7)
    spec = JobSpec(name="trained", script="train.py", nnodes=8, nproc_per_node=1, cwd="/", directory="/jobs/trained")
    members = (None,) * 8
    of = JobState(spec=spec, phase=Claiming(), submitted_at=given.at, members=members, incident=incident)
    fields = {"at": given.at, "job": "trained", "incident": given.id, "blocked_for_s": 60.0, "reason": "trace"}
    evictions = [
        Eviction(id=derived_id(given.id, node), source="trace", node=node, together=given.words, **fields)
        for node in given.words
    ]
    outcome = follow_up(evictions, of, given.at, Rules())
    assert outcome is not None
    return outcome


def _planner(set_: dict[str, str], references: dict[AnswerKey, str], records: NodeRecords) -> Planner:
    """One under the default policy, but for what a trace sets in its first line."""
    ladder = {name: value for name, value in set_.items() if name in LadderPolicy.__struct_fields__}
    mechanisms = {name: value for name, value in set_.items() if name in MechanismPolicy.__struct_fields__}
    assert ladder.keys() | mechanisms.keys() == set_.keys(), set_
    return Planner(
        Rules(
            ladder=msgspec.convert(ladder, LadderPolicy, strict=False),
            mechanisms=msgspec.convert(mechanisms, MechanismPolicy),
            manifests={version_of(tree): tree for tree in TREES.values()},
            references=references,
            records=records,
            warm_up=WarmUpPolicy() if "warm_up" in mechanisms else None,
        )
    )


def summary(state: JobState) -> str:
    words = [state.phase_name, f"generation {state.generation}", f"nodes {' '.join(state.nodes) or '-'}"]
    if state.replacement:
        words.append(f"wants to replace {' '.join(state.replacement.leaving)}")
    for fault in state.shared.values():
        words.append(f"{fault.thing} is at fault")
    if state.incident:
        blamed = " ".join(f"{node}:{times}" for node, times in sorted(state.incident.blamed.items()))
        words.append(
            f"incident {state.incident.symptom_name} at step {state.incident.failed_step}, blamed {blamed or 'nobody'}"
        )
    if present := state.code.present:
        waits = f", {state.code.known(state.code.pending.version).name} waits" if state.code.pending else ""  # type: ignore[union-attr]
        words.append(f"code {present.name} {present.verdict}{waits}")
    if state.unfit:
        words.append(f"unfit {' '.join(state.unfit)}")
    if state.warm_up and state.warm_up.held:
        words.append(f"{len(state.warm_up.held)} ends of ranks wait")
    if deadline := state.deadline:
        words.append(f"awaiting {deadline.awaited} for {(deadline.until - deadline.since).total_seconds():g} s")
    return ", ".join(words)
