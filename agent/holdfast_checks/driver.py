"""One node's part of a run of checks: stage after stage, each in workers of its own; results are reported as they come.

Nodes go on by themselves. They meet only in pairs, and wait for a partner no longer than the limits of what it may
still have before it: so one that hangs costs its partners time, and nobody else anything.
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
"""Tests that run in a worker for each device; the others run once on a node."""

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
"""What it is called when a test hangs or dies."""

_CRASHES = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV"}
"""Signals that a sound machine does not give these programs. SIGKILL may be the kernel, short of memory."""


class ReportedResult(msgspec.Struct, frozen=True, kw_only=True):
    """A finding and where in the run it stands."""

    stage: Stage
    finding: StageResult
    took_s: float
    done: int
    total: int


class Driver:
    """Runs `suite` on this node; `tell` gets every result at once."""

    def __init__(
        self, context: WorkerContext, suite: str, limit_s: float | None, tell: Callable[[ReportedResult], None]
    ) -> None:
        self._context = context
        self._stages = stages(suite, context.nodes, limit_s)
        self._meeting = Stage(test=MEETING, limit_s=meeting_limit_s(limit_s))
        self._tell = tell
        self._limits_s = (self._meeting.limit_s, *(stage.limit_s for stage in self._stages))
        self._present: dict[int, str] = {}
        self._store: Store | None = None

    def run(self) -> None:
        """Go through all stages."""
        if any(stage.pairs for stage in self._stages):
            self._meet()
        began, spent_s = time.monotonic(), 0.0
        for number, stage in enumerate(self._stages, start=1):
            wait_s = max(0.0, began + spent_s - time.monotonic()) + stage.limit_s if stage.pairs else 0.0
            spent_s += stage.limit_s
            self._pass(stage, wait_s, number)
        self._say(Stage(test=END, limit_s=0.0), passed(), time.monotonic() - began, len(self._stages))

    def _meet(self) -> None:
        task = StageTask(context=self._context, stage=self._meeting)
        (ended,) = workers.run(meeting.run, [task])
        came = ended.findings[0] if ended.findings else None
        if came is None or came.status != "passed":
            for finding in _findings(task, ended):
                self._say(self._meeting, finding, ended.took_s, 0)
            return
        self._present = {rank: name for rank, name in enumerate(came.peers) if name}
        try:
            # One thread and one connection: this process can still fork, and others can see where it is.
            self._store = meeting.connect(self._context, self._meeting.limit_s)
        except RuntimeError as error:
            print(f"partners cannot be told where this node is: {error}", flush=True)

    def _tell_standing(self, number: int) -> None:
        if self._store is not None:
            try:
                meeting.tell_standing(self._store, self._context, str(number))
            except RuntimeError as error:
                self._store = None
                print(f"partners cannot be told any more where this node is: {error}", flush=True)

    def _pass(self, stage: Stage, wait_s: float, number: int) -> None:
        self._tell_standing(number)
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
        found = [finding for task, ended in zip(tasks, ends, strict=True) for finding in _findings(task, ended)]
        took_s = max(ended.took_s for ended in ends)
        for finding in merged(found):
            self._say(stage, finding, took_s, number)

    def _say(self, stage: Stage, finding: StageResult, took_s: float, number: int) -> None:
        self._tell(ReportedResult(stage=stage, finding=finding, took_s=took_s, done=number, total=len(self._stages)))


def code_of(test: str) -> Test:
    """A test's function; loaded here, once, and not in each of its workers."""
    module, function = _CODE.get(test, (test, "run"))
    code: Test = getattr(importlib.import_module(f"holdfast_checks.node_tests.{module}"), function)
    return code


def merged(found: Sequence[StageResult]) -> list[StageResult]:
    """What passed alike on all devices, once, with the slowest device's value; everything else as it is.

    Of a pair that failed one failure tells: its devices wait for each other, and fail together.
    """
    trouble = [finding for finding in found if finding.status in ("failed", "broken")]
    between = [finding for finding in trouble if finding.peers and finding.status == "failed"][:1]
    alone = [finding for finding in trouble if not finding.peers]
    if between or alone:
        return between + alone
    broken_pairs = trouble[:1]
    if broken_pairs:
        return broken_pairs
    alike: dict[tuple[str, str, str, str], list[StageResult]] = {}
    for finding in found:
        key = (finding.status, finding.digest, finding.hardware, finding.unit)
        alike.setdefault(key, []).append(finding)
    if any(status == "passed" for status, *_ in alike):
        alike = {key: group for key, group in alike.items() if key[0] == "passed"}
    return [_one(group) for group in alike.values()]


def _one(group: list[StageResult]) -> StageResult:
    if len(group) == 1:
        return group[0]
    values = [finding.value for finding in group if finding.value is not None]
    devices = [finding.device for finding in group if finding.device]
    return msgspec.structs.replace(
        group[0], value=min(values) if values else None, device=", ".join(dict.fromkeys(devices))
    )


def _findings(task: StageTask, ended: WorkerExit) -> Sequence[StageResult]:
    """What a worker found, or what its own end says."""
    stage = task.stage
    if ended.answered:
        return ended.findings
    pair = next((pair for pair in stage.pairs if task.context.node_rank in pair), None)
    other = next((rank for rank in pair if rank != task.context.node_rank), None) if pair else None
    peers = [task.present[other]] if other in task.present else []
    symptom = str(_SYMPTOMS[stage.test])
    # A device of its own is named only where each has a worker; a pair fails as a pair.
    device = f"device {task.context.worker}" if stage.test in ON_EACH_DEVICE and not peers else ""
    if ended.timed_out:
        return [failed(symptom, f"did not come to an end within {stage.limit_s:g} s", peers=peers, device=device)]
    if ended.signal in _CRASHES:
        return [failed(symptom, f"its process died of {_CRASHES[ended.signal]}", peers=peers, device=device)]
    if ended.signal:
        return [broken(f"its process was killed by signal {ended.signal}", peers=peers, device=device)]
    return [broken(ended.error, peers=peers, device=device)]
