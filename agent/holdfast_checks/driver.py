"""One node's part of a run of checks: stage by stage, each in worker processes; results are reported as they come.

Nodes proceed independently. They only meet in pairs, and wait for a partner no longer than the limits of the stages
before it. So a node that hangs delays its partners and no other node.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence

import msgspec
from torch._C._distributed_c10d import Store

from holdfast.engines.checks.suites import ALL_GATHER, END, MEETING, Stage, meeting_limit_s, stages
from holdfast.symptoms import Symptom
from holdfast_checks import meeting, workers
from holdfast_checks.result import StageResult, StageTask, WorkerContext, broken, failed, passed
from holdfast_checks.workers import Test, WorkerExit

ON_EACH_DEVICE = frozenset({"memory", "gemm", "speed", "all_to_all", "all_gather", "alignment", "alignment_parallel"})
"""Tests that run in one worker for each device; the others run once on a node."""

_CODE = {"alignment_parallel": ("alignment", "run_parallel"), "memory": ("device_memory", "run")}

_SYMPTOMS: dict[str, str] = {
    "disk": Symptom.DISK_FAULT,
    "mounts": Symptom.FILESYSTEM_MOUNT,
    "dcgm": Symptom.GPU_UNAVAILABLE,
    "memory": Symptom.MEMORY_ERROR,
    "gemm": Symptom.COMPUTE_ERROR,
    "speed": Symptom.COMPUTE_ERROR,
    "all_to_all": Symptom.NETWORK_ERROR,
    ALL_GATHER: Symptom.NETWORK_ERROR,
    "alignment": Symptom.COMPUTE_ERROR,
    "alignment_parallel": Symptom.NETWORK_ERROR,
    "plugins": Symptom.PLUGIN_FAILED,
    MEETING: Symptom.NETWORK_ERROR,
}
"""Symptom of a test that hangs or crashes."""

_CRASHES = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV"}
"""Signals that these programs do not get on a sound machine. SIGKILL may come from the kernel, short of memory."""


class ReportedResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result and its position in the run."""

    stage: Stage
    result: StageResult
    took_s: float
    done: int
    total: int


class Driver:
    """Runs `suite` on this node; `report` gets every result at once."""

    def __init__(
        self, context: WorkerContext, suite: str, limit_s: float | None, report: Callable[[ReportedResult], None]
    ) -> None:
        self._context = context
        self._stages = stages(suite, context.nodes, limit_s)
        # Only its partners are waited for: ten thousand nodes that all look for each other find the store too slow.
        own = {pair for stage in self._stages for pair in stage.pairs if context.node_rank in pair}
        self._meeting = Stage(test=MEETING, limit_s=meeting_limit_s(limit_s), pairs=tuple(sorted(own)))
        self._report = report
        self._limits_s = (self._meeting.limit_s, *(stage.limit_s for stage in self._stages))
        self._present: dict[int, str] = {}
        self._store: Store | None = None

    def run(self) -> None:
        if any(stage.pairs for stage in self._stages):
            self._meet()
        began, spent_s = time.monotonic(), 0.0
        for number, stage in enumerate(self._stages, start=1):
            # A partner is due when the limits of the stages before have passed, and is given one more limit.
            wait_s = max(0.0, began + spent_s - time.monotonic()) + stage.limit_s if stage.pairs else 0.0
            spent_s += stage.limit_s
            self._run_stage(stage, wait_s, number)
        self._report_result(Stage(test=END, limit_s=0.0), passed(), time.monotonic() - began, len(self._stages))

    def _meet(self) -> None:
        task = StageTask(context=self._context, stage=self._meeting)
        (ended,) = workers.run(meeting.run, [task])
        attendance = ended.results[0] if ended.results else None
        if attendance is None or attendance.status != "passed":
            for result in _results_of(task, ended):
                self._report_result(self._meeting, result, ended.took_s, 0)
            return
        came = zip(meeting.expected(task), attendance.peers, strict=True)
        self._present = {rank: name for rank, name in came if name}
        try:
            # One thread and one connection: this process can still fork, and partners can see its stage.
            self._store = meeting.connect(self._context, self._meeting.limit_s)
        except RuntimeError as error:
            print(f"this node's progress cannot be shared: {error}", flush=True)

    def _share_progress(self, number: int) -> None:
        if self._store is not None:
            try:
                meeting.share_progress(self._store, self._context, str(number))
            except RuntimeError as error:
                self._store = None
                print(f"this node's progress can no longer be shared: {error}", flush=True)

    def _run_stage(self, stage: Stage, wait_s: float, number: int) -> None:
        self._share_progress(number)
        count = self._context.workers if stage.test in ON_EACH_DEVICE else 1
        tasks = [
            StageTask(
                context=msgspec.structs.replace(self._context, worker=worker),
                stage=stage,
                present=self._present,
                number=number,
                limits_s=self._limits_s,
                wait_s=wait_s,
            )
            for worker in range(count)
        ]
        ends = workers.run(code_of(stage.test), tasks)
        found = [result for task, ended in zip(tasks, ends, strict=True) for result in _results_of(task, ended)]
        took_s = max(ended.took_s for ended in ends)
        for result in merged(found):
            self._report_result(stage, result, took_s, number)

    def _report_result(self, stage: Stage, result: StageResult, took_s: float, number: int) -> None:
        self._report(
            ReportedResult(
                stage=stage,
                result=result,
                took_s=took_s,
                done=number,
                total=len(self._stages),
            )
        )


def code_of(test: str) -> Test:
    """Return a test's function. It is loaded here once instead of in each worker."""
    module, function = _CODE.get(test, (test, "run"))
    code: Test = getattr(importlib.import_module(f"holdfast_checks.node_tests.{module}"), function)
    return code


def merged(found: Sequence[StageResult]) -> list[StageResult]:
    """Return what counts of the results of a node's devices. The first of these that there is hides all others:

    - what failed or broke without a partner, each device for itself, and one failure with a partner: a pair fails once;
    - one test with a partner that broke;
    - passes, with equal ones merged into the slowest's;
    - the rest, merged in the same way.
    """
    trouble = [result for result in found if result.status in ("failed", "broken")]
    between = [result for result in trouble if result.peers and result.status == "failed"][:1]
    alone = [result for result in trouble if not result.peers]
    if between or alone:
        return between + alone
    broken_pairs = trouble[:1]
    if broken_pairs:
        return broken_pairs
    alike: dict[tuple[str, str, str, str], list[StageResult]] = {}
    for result in found:
        key = (result.status, result.digest, result.hardware, result.unit)
        alike.setdefault(key, []).append(result)
    if any(status == "passed" for status, *_ in alike):
        alike = {key: group for key, group in alike.items() if key[0] == "passed"}
    return [_one(group) for group in alike.values()]


def _one(group: list[StageResult]) -> StageResult:
    if len(group) == 1:
        return group[0]
    values = [result.value for result in group if result.value is not None]
    devices = [result.device for result in group if result.device]
    return msgspec.structs.replace(
        group[0], value=min(values) if values else None, device=", ".join(dict.fromkeys(devices))
    )


def _results_of(task: StageTask, ended: WorkerExit) -> Sequence[StageResult]:
    """Return a worker's results, or the result that follows from its exit."""
    stage = task.stage
    if ended.answered:
        return ended.results
    pair = next((pair for pair in stage.pairs if task.context.node_rank in pair), None)
    other = next((rank for rank in pair if rank != task.context.node_rank), None) if pair else None
    peers = [task.present[other]] if other in task.present else []
    symptom = str(_SYMPTOMS[stage.test])
    # A device is named only where each has a worker; a pair fails as a pair.
    device = f"device {task.context.worker}" if stage.test in ON_EACH_DEVICE and not peers else ""
    if ended.timed_out:
        return [failed(symptom, f"did not end within {stage.limit_s:g} s", peers=peers, device=device)]
    if ended.signal in _CRASHES:
        return [failed(symptom, f"its process died of {_CRASHES[ended.signal]}", peers=peers, device=device)]
    if ended.signal:
        return [broken(f"its process was killed by signal {ended.signal}", peers=peers, device=device)]
    return [broken(ended.error, peers=peers, device=device)]
