"""Reports of a node's results to its agent: failures at once, passed tests together with the end of the run.

A run on ten thousand nodes has a hundred thousand results that show nothing. Each would cost every service that
receives it a transaction, while the job waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.engines.checks.suites import END
from holdfast.events.parts.ranks import FoldedResult
from holdfast.node.machine import Machine
from holdfast.trainer.report import DIAGNOSTIC_RESULT, report
from holdfast_checks.driver import ReportedResult
from holdfast_checks.result import WorkerContext
from holdfast_checks.source_version import program_of

HELD_BYTES_MAX = 32_768
"""Size of the results that are folded into one report, which has a limit; others are reported as they come."""


class Reporter:
    """Prints each result, and publishes its fields: by `holdfast.trainer.report` unless another way is given."""

    def __init__(self, context: WorkerContext, publish: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.errors: list[OSError] = []
        """Reports that could not be written. The tests go on: their results are at least in the output."""
        self._context = context
        self._send = publish or _report
        self._published = 0
        self._held: list[dict[str, Any]] = []
        self._held_bytes = 0

    def take(self, reported: ReportedResult) -> None:
        self._print(reported)
        fields = self._fields(reported)
        if reported.stage.test == END:
            folded, self._held = self._held, []
            self._publish(fields | {"results": self._published, "folded": folded})
        elif reported.result.status in ("passed", "skipped") and self._hold(fields):
            return
        else:
            self._publish(fields)

    def publish_held(self) -> None:
        """Report what is held one by one: the run will not come to its end."""
        for fields in self._held:
            self._publish(self._common() | {"status": "passed"} | fields)
        self._held = []

    def _hold(self, fields: dict[str, Any]) -> bool:
        known = {name: fields[name] for name in FoldedResult.__struct_fields__}
        held: dict[str, Any] = msgspec.to_builtins(msgspec.convert(known, FoldedResult))
        size = len(msgspec.json.encode(held))
        if self._held_bytes + size > HELD_BYTES_MAX:
            return False
        self._held.append(held)
        self._held_bytes += size
        return True

    def _publish(self, fields: dict[str, Any]) -> None:
        try:
            self._send(fields)
            self._published += 1
        except OSError as error:
            self.errors.append(error)

    def _common(self) -> dict[str, Any]:
        return {"run": self._context.run, "boot_id": Machine().boot_id}

    def _fields(self, reported: ReportedResult) -> dict[str, Any]:
        result, stage = reported.result, reported.stage
        return self._common() | {
            **msgspec.structs.asdict(result),
            "test": stage.test,
            "round": stage.round,
            "program": program_of(stage.test, self._context.workers) if result.digest else "",
            "took_s": reported.took_s,
            "done": reported.done,
            "total": reported.total,
        }

    def _print(self, reported: ReportedResult) -> None:
        result, test = reported.result, reported.stage.test
        with_peers = f" with {', '.join(result.peers)}" if result.peers else ""
        value = f" {result.value:.4g} {result.unit}" if result.value is not None else ""
        line = f"{test}{with_peers}: {result.status}{value}"
        print(" ".join(filter(None, (line, result.device and f"[{result.device}]", result.detail))), flush=True)


def _report(fields: dict[str, Any]) -> None:
    report(DIAGNOSTIC_RESULT, **fields)
