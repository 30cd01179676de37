"""The warm-up of one node beside the start of its ranks: paths, devices, sockets. Forked by the node's zygote.

Each test runs in separate processes (`workers.py`): a mount that hangs holds up nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.engines.checks.suites import END, MEETING, Stage
from holdfast.engines.checks.warm_up import DEVICES, PATHS, SOCKETS, WarmUpPlan
from holdfast.symptoms import Symptom
from holdfast_checks import workers
from holdfast_checks.driver import ReportedResult, merged
from holdfast_checks.node_tests import paths, sockets, warm_devices
from holdfast_checks.reporter import Reporter
from holdfast_checks.result import StageResult, StageTask, WorkerContext, broken, failed, passed
from holdfast_checks.workers import Test, WorkerExit

PATH_S = 3.0
BURN_S = 0.02
"""Time for which a device is kept busy in each data type."""


def run(plan: WarmUpPlan, publish: Callable[[dict[str, Any]], None]) -> None:
    """Test the node, and publish the fields of each result: failures at once, the rest at the end."""
    WarmUpRun(plan, publish).run()


class WarmUpRun:
    def __init__(self, plan: WarmUpPlan, publish: Callable[[dict[str, Any]], None]) -> None:
        self._plan = plan
        self._end = time.monotonic() + plan.limit_s
        self._began = time.monotonic()
        self._context = WorkerContext(
            run=plan.run,
            node=plan.node,
            node_rank=plan.node_rank,
            nodes=plan.nodes,
            workers=max(1, plan.devices),
            store_host=plan.store_host,
            store_port=plan.store_port,
            burn_s=BURN_S,
            options={"address": plan.address},
        )
        self._reporter = Reporter(self._context, publish)

    def run(self) -> None:
        self._test_paths()
        if self._plan.devices:
            self._test_devices()
        if self._plan.nodes > 1:
            self._test_sockets()
        self._report(END, passed())

    def _test_paths(self) -> None:
        tasks = [
            self._task(PATHS, PATH_S, worker, {"path": one.path, "use": one.use})
            for worker, one in enumerate(self._plan.paths)
        ]
        for task, ended in self._run(paths.run, tasks):
            path = task.context.options["path"]
            symptom = Symptom.FILESYSTEM_MOUNT.value
            late = failed(symptom, f"{path} has not answered for {task.stage.limit_s:g} s", device=path)
            for result in _results_of(ended, late):
                self._report(PATHS, result)

    def _test_devices(self) -> None:
        tasks = [self._task(DEVICES, self._left_s(), worker) for worker in range(self._plan.devices)]
        # What is late may wait for processors that the start of ranks needs: this shows nothing.
        late = broken("its test was not over in time")
        found = [result for _, ended in self._run(warm_devices.run, tasks) for result in _results_of(ended, late)]
        for result in merged(found):
            self._report(DEVICES, result)

    def _test_sockets(self) -> None:
        late = broken("its test was not over in time")
        for _, ended in self._run(sockets.run, [self._task(SOCKETS, self._left_s(), 0)]):
            for result in _results_of(ended, late):
                # A connection that failed has its peer; without one, it was the store where all meet.
                is_store = result.status == "failed" and not result.peers
                self._report(MEETING if is_store else SOCKETS, result)

    def _task(self, test: str, limit_s: float, worker: int, options: dict[str, str] | None = None) -> StageTask:
        options = self._context.options | (options or {})
        context = msgspec.structs.replace(self._context, worker=worker, options=options)
        return StageTask(context=context, stage=Stage(test=test, limit_s=min(limit_s, self._left_s())))

    def _run(self, test: Test, tasks: list[StageTask]) -> list[tuple[StageTask, WorkerExit]]:
        return list(zip(tasks, workers.run(test, tasks), strict=True)) if tasks else []

    def _left_s(self) -> float:
        return max(0.1, self._end - time.monotonic())

    def _report(self, test: str, result: StageResult) -> None:
        took_s = time.monotonic() - self._began
        stage = Stage(test=test, limit_s=0.0)
        self._reporter.take(ReportedResult(stage=stage, result=result, took_s=took_s, done=0, total=0))


def _results_of(ended: WorkerExit, late: StageResult) -> tuple[StageResult, ...]:
    """Return a worker's results. One that ended without any shows nothing, unless it was `late`."""
    if ended.answered:
        return ended.results
    if ended.timed_out:
        return (late,)
    why = ended.error or f"its process was killed by signal {ended.signal}"
    return (broken(why),)
