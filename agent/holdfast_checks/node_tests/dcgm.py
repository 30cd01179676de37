"""NVIDIA's diagnostics by `dcgmi diag`: first the Extended Utility Diagnostics (EUD), then a level of DCGM's tests.

A failure counts against a GPU only if the tool reports a hardware failure: it also calls tests failed that could not
run. Its JSON has several undocumented forms, so results are searched for at any depth.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.engines.checks.suites import DCGM_RUNS
from holdfast.symptoms import Symptom
from holdfast_checks.result import StageResult, StageTask, broken, failed, passed, skipped

TOOL = "dcgmi"
SYMPTOM = Symptom.GPU_UNAVAILABLE.value
_SYMPTOMS = (
    ("memory", Symptom.GPU_MEMORY_ERROR.value),
    ("ecc", Symptom.GPU_MEMORY_ERROR.value),
    ("nvlink", Symptom.CUDA_ERROR.value),
)

SETUP_CATEGORIES = frozenset({3, 4, 7, 8, 16})
"""DCGM_FR_EC_* codes of configuration, libraries, EUD setup, other software, DCGM itself."""


class UnreadableAnswer(ValueError):
    """The tool's output has no known form."""


class DcgmResult(msgspec.Struct, frozen=True, kw_only=True):
    """One test of one device. `setup`: it could not run."""

    test: str
    device: str
    status: str
    words: str = ""
    setup: bool = False


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Run `dcgmi diag` and report each of its tests; skipped if it is not installed."""
    begin()
    tool = shutil.which(TOOL)
    if tool is None:
        return [skipped(f"{TOOL} is not installed on this node (package datacenter-gpu-manager)")]
    found: list[StageResult] = []
    for name in DCGM_RUNS:
        found += _run(tool, name)
    return found


def _run(tool: str, name: str) -> list[StageResult]:
    done = subprocess.run([tool, "diag", "--run", name, "--json"], capture_output=True, text=True, check=False)
    try:
        return findings(name, read(done.stdout))
    except UnreadableAnswer as error:
        output = (done.stderr or done.stdout).strip()[:500]
        return [broken(f"{TOOL} diag --run {name}: {error}; exit code {done.returncode}: {output}", device=name)]


def read(text: str) -> list[DcgmResult]:
    """Return the results in the output of `dcgmi diag --json`. Raises UnreadableAnswer without JSON or results."""
    start, end = text.find("{"), text.rfind("}")
    try:
        whole = msgspec.json.decode(text[start : end + 1] if start >= 0 else "")
    except msgspec.DecodeError as error:
        raise UnreadableAnswer(f"its output is no JSON ({error})") from error
    results = list(_results(whole, ""))
    if not results:
        raise UnreadableAnswer("its output has no results")
    return results


def findings(name: str, results: Sequence[DcgmResult]) -> list[StageResult]:
    """Return one result for each failure; one for all if there is none."""
    bad = [result for result in results if result.status.lower() == "fail"]
    hardware = [result for result in bad if not result.setup]
    if hardware:
        return [
            failed(_symptom(result), f"{result.test}: {result.words or 'failed'}", device=result.device)
            for result in hardware
        ]
    if bad:
        text = "; ".join(f"{result.test}: {result.words}" for result in bad)
        return [broken(f"{TOOL} could not run its tests: {text}", device=name)]
    done = [result for result in results if result.status.lower() in ("pass", "warn")]
    if not done:
        return [skipped(f"{TOOL} diag --run {name} left out all tests", device=name)]
    return [passed(device=name, value=float(len(done)), unit="tests")]


def _symptom(result: DcgmResult) -> str:
    words = f"{result.test} {result.words}".lower()
    return next((symptom for word, symptom in _SYMPTOMS if word in words), SYMPTOM)


def _results(node: Any, test: str) -> Iterator[DcgmResult]:
    """Yield every object with a status, with the name of its test. Summaries repeat results and are skipped."""
    if isinstance(node, list):
        for inner in node:
            yield from _results(inner, test)
        return
    if not isinstance(node, dict):
        return
    test = str(node.get("name", test))
    if isinstance(node.get("status"), str) and "results" not in node:
        warnings = node.get("warnings")
        errors = [warnings] if isinstance(warnings, dict | str) else warnings or []
        yield DcgmResult(
            test=test,
            device=_device(node),
            status=node["status"],
            words="; ".join(filter(None, (_words(error) for error in errors))),
            setup=bool(errors) and all(_category(error) in SETUP_CATEGORIES for error in errors),
        )
    for key, inner in node.items():
        if key not in ("warnings", "test_summary"):
            yield from _results(inner, test)


def _device(node: dict[str, Any]) -> str:
    for key in ("gpu_id", "gpu_ids", "entity_id"):
        if key in node:
            group = str(node.get("entity_group", "GPU"))
            return f"{group} {node[key]}"
    return ""


def _words(error: Any) -> str:
    return str(error.get("warning", error)) if isinstance(error, dict) else str(error)


def _category(error: Any) -> int | None:
    category = error.get("error_category") if isinstance(error, dict) else None
    return category if isinstance(category, int) else None
