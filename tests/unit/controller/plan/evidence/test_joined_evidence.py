"""All evidence of a failure together: how much is kept, and what each source can prove."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from holdfast.engines.crash.rules import rule_book
from holdfast.events import ProcessExited
from holdfast.events.parts.job import Grant, JobSpec
from holdfast.events.parts.ranks import RankException
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.symptoms import Root, Symptom, row_of
from holdfast_controller.plan.code.code_state import CodeState, CodeVerdict, CodeVersion
from holdfast_controller.plan.evidence.joined import MISFITS, is_witness, joined_cause
from holdfast_controller.plan.evidence.rank_exits import EXITS_MAX, rank_exit, with_exit
from holdfast_controller.plan.incident.classify import diagnose
from holdfast_controller.plan.incident.incident import Alert, Proof, RankExit
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Running

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
PEER = "RuntimeError: Connection closed by peer [10.0.0.1]:1"


def ended(rank: int, error: str = "", *, signal: int | None = None, log: str = "", generation: int = 1) -> RankExit:
    name, _, message = error.partition(": ")
    event = ProcessExited(
        id=f"exit-{rank}",
        at=NOW,
        source="agent",
        job="job",
        node=f"node-{rank // 2}",
        generation=generation,
        rank=rank,
        local_rank=rank % 2,
        exit_code=None if signal else 1,
        signal=signal,
        exited_at=NOW,
        steps_done=7,
        exception=RankException(type=name, message=message, traceback="") if error else None,
        log_tail=log,
    )
    return rank_exit(event, diagnose(event), LadderPolicy())


def alert(
    symptom: Symptom, confidence: str = "hint", *, at_s: float = 0.0, lines: tuple[str, ...] = (), shared: str = ""
) -> Alert:
    return Alert(
        at=NOW + timedelta(seconds=at_s),
        check="kernel",
        device="0000:3b:00",
        symptom=symptom,
        confidence=confidence,
        text=f"kernel: {symptom}",
        event="alert",
        stands=False,
        is_momentary=True,
        lines=lines,
        shared=shared,
    )


def job(*exits: RankExit, alerts: dict[str, tuple[Alert, ...]] | None = None) -> JobState:
    kept: tuple[RankExit, ...] = ()
    for one in exits:
        kept = with_exit(kept, one)
    spec = JobSpec(name="job", script="train.py", nnodes=2, nproc_per_node=2, cwd="/", directory="/jobs/job")
    members = tuple(Grant(node=f"node-{n}", epoch=1, address="10.0.0.1", store_ports=(1,)) for n in range(2))
    running = Running(since=NOW, step_seen_at=NOW)
    return JobState(
        spec=spec, phase=running, submitted_at=NOW, members=members, generation=1, exits=kept, alerts=alerts or {}
    )


@pytest.mark.parametrize(
    ("known", "proof"),
    [
        ((), Proof.CLAIMED),
        ((alert(Symptom.GPU_MEMORY_ERROR),), Proof.PROVEN),
        ((alert(Symptom.GPU_UNAVAILABLE, "evict"),), Proof.PROVEN),
        # Sound machines report these, too: another device, a kernel of the script, something of an hour ago.
        ((alert(Symptom.DISK_FAULT, "evict"),), Proof.CLAIMED),
        ((alert(Symptom.CUDA_ERROR),), Proof.CLAIMED),
        ((alert(Symptom.GPU_MEMORY_ERROR, at_s=-3600.0),), Proof.CLAIMED),
        # What nodes share has to wait for what other nodes report.
        ((alert(Symptom.GPU_MEMORY_ERROR, "evict", shared="file system nfs1:/data"),), Proof.CLAIMED),
    ],
)
def test_a_rank_alone_proves_nothing_of_its_machine(known: tuple[Alert, ...], proof: Proof) -> None:
    cause = joined_cause(job(ended(2, ECC), ended(0, PEER), alerts={"node-1": known}), 1)
    assert cause is not None and (cause.symptom, cause.node, cause.rank) == (Symptom.ECC_ERROR, "node-1", 2)
    assert cause.proof is proof


def test_symptoms_without_a_row_are_about_the_same_part_only_if_they_are_the_same() -> None:
    plugin = alert(Symptom.PLUGIN_FAILED, "evict")
    assert not row_of(Symptom.PLUGIN_FAILED) and not row_of(Symptom.INFRASTRUCTURE_ERROR)
    assert is_witness(plugin, Symptom.PLUGIN_FAILED) and not is_witness(plugin, Symptom.INFRASTRUCTURE_ERROR)


def test_what_nodes_share_is_no_proof_against_a_node_whose_rank_was_killed() -> None:
    known = {"node-1": (alert(Symptom.FILESYSTEM_MOUNT, "evict", shared="file system nfs1:/data"),)}
    cause = joined_cause(job(ended(2, signal=7), alerts=known), 1)
    assert cause is not None and (cause.symptom, cause.proof) == (Symptom.FILESYSTEM_MOUNT, Proof.NOTHING)


def test_what_another_node_reports_is_no_witness() -> None:
    cause = joined_cause(job(ended(2, ECC), alerts={"node-0": (alert(Symptom.GPU_MEMORY_ERROR, "evict"),)}), 1)
    assert cause is not None and cause.proof is Proof.CLAIMED


def test_the_same_output_on_two_nodes_is_about_what_they_share() -> None:
    cause = joined_cause(job(ended(2, ECC), ended(0, ECC)), 1)
    assert cause is not None and cause.is_shared and not cause.proof
    assert (cause.node, cause.root) == (None, Root.UNKNOWN)


def test_both_ranks_of_one_node_accuse_it() -> None:
    cause = joined_cause(job(ended(2, ECC), ended(3, ECC)), 1)
    assert cause is not None and cause.proof is Proof.CLAIMED and cause.node == "node-1"


def test_alerts_that_do_not_act_name_the_cause_and_prove_nothing() -> None:
    killed = job(ended(2, signal=6), alerts={"node-1": (alert(Symptom.GPU_UNAVAILABLE, "evict"),)})
    acting, observing = joined_cause(killed, 1), joined_cause(killed, 1, alerts_act=False)
    assert acting is not None and observing is not None
    assert acting.symptom is observing.symptom is Symptom.GPU_UNAVAILABLE
    assert (acting.proof, observing.proof) == (Proof.PROVEN, Proof.NOTHING)


def test_the_kernel_log_is_read_by_the_same_rules() -> None:
    line = "Memory cgroup out of memory: Killed process 77 (python3) total-vm:1kB, anon-rss:1kB"
    killed = job(ended(2, signal=9), alerts={"node-1": (alert(Symptom.CPU_OOM, lines=(line,)),)})
    cause = joined_cause(killed, 1)
    assert cause is not None and (cause.symptom, cause.root, cause.rank) == (Symptom.CPU_OOM, Root.UNKNOWN, 2)
    assert f"kernel log and checks of node-1: {line}" in cause.lines
    assert cause.events == ("exit-2", "alert")


def test_a_kill_without_a_reason_has_no_cause() -> None:
    assert joined_cause(job(ended(2, signal=9), ended(0, PEER)), 1) is None


def test_an_end_for_its_own_reason_takes_the_place_of_one_that_lost_its_partner() -> None:
    exits: tuple[RankExit, ...] = ()
    for rank in range(EXITS_MAX):
        exits = with_exit(exits, ended(rank, PEER))
    assert with_exit(exits, ended(90, PEER)) == exits
    exits = with_exit(exits, ended(91, ECC))
    assert len(exits) == EXITS_MAX and exits[-1].rank == 91
    assert with_exit(exits, ended(91, PEER)) == exits
    assert [one.rank for one in with_exit(exits, ended(3, PEER, generation=2))] == [3]


@pytest.mark.parametrize(
    ("verdict", "since", "proof"),
    [
        (CodeVerdict.TRAINED, 1, Proof.PROVEN),
        (CodeVerdict.UNKNOWN, 2, Proof.PROVEN),  # it came after the generation that failed
        (CodeVerdict.UNKNOWN, 1, Proof.NOTHING),
    ],
)
def test_a_newcomer_that_fails_first_is_no_misfit_if_the_code_is_new(
    verdict: CodeVerdict, since: int, proof: Proof
) -> None:
    version = CodeVersion(version="v2", number=2, author="ada", created_at=NOW, verdict=verdict)
    code = CodeState(version="v2", versions=(version,), since_generation=since)
    end = msgspec.structs.replace(ended(2, "RuntimeError: CUDA error: invalid device ordinal"), has_stepped=False)
    cause = joined_cause(job(end).update(newcomers=frozenset({"node-1"}), code=code), 1)
    assert cause is not None and cause.proof is proof


def test_each_rule_of_another_kind_of_machine_exists() -> None:
    assert {rule_book().named(name).rule.name for name in MISFITS} == MISFITS


LAUNCH = "RuntimeError: CUDA error: unspecified launch failure"
XID_48 = "NVRM: Xid (PCI:0000:3b:00): 48, pid=77, name=python, DBE (double bit error) on FBHUB"


def test_the_kernel_proves_what_a_rank_saw_without_its_reason() -> None:
    known = {"node-1": (alert(Symptom.GPU_MEMORY_ERROR, "evict", lines=(XID_48,)),)}
    cause = joined_cause(job(ended(2, LAUNCH), ended(0, PEER), alerts=known), 1)
    assert cause is not None and (cause.symptom, cause.root) == (Symptom.ECC_ERROR, Root.INFRASTRUCTURE)
    assert (cause.node, cause.rank, cause.proof) == ("node-1", 2, Proof.PROVEN)


def test_a_line_of_one_nodes_kernel_is_not_held_against_another_node() -> None:
    known = {"node-0": (alert(Symptom.GPU_MEMORY_ERROR, "evict", lines=(XID_48,)),)}
    cause = joined_cause(job(ended(2, LAUNCH), ended(0, PEER), alerts=known), 1)
    assert cause is not None and (cause.symptom, cause.node, cause.rank) == (Symptom.ECC_ERROR, "node-0", None)
