"""The operators' diaries: each incident with a log gets the answer that they found. Needs HOLDFAST_FIELD_DATA."""

import os
import re
from pathlib import Path

import pytest

from holdfast.engines.crash import Diagnosis, diagnose
from holdfast.engines.crash.rules import rule_book
from holdfast.engines.crash.scan import LogScan
from holdfast.symptoms import Root, Symptom

FIELD_DATA = os.environ.get("HOLDFAST_FIELD_DATA")

pytestmark = pytest.mark.skipif(not FIELD_DATA, reason="HOLDFAST_FIELD_DATA does not name the folder of field data")


def said_of(text: str) -> Diagnosis:
    scan = LogScan("log", rule_book().line_filter)
    scan.feed(text.encode() + b"\n")
    return diagnose([scan.end()])


def diary(name: str) -> list[str]:
    """The blocks of log in a diary."""
    text = (Path(FIELD_DATA or "") / "gpu_cluster_diaries" / f"train_{name}_chronicles.md").read_text()
    return re.findall(r"(?s)```\n(.*?)```", text)


@pytest.mark.parametrize(
    ("name", "holds", "symptom", "root"),
    [
        # Nobody found out why shared memory was full: the root stays unknown.
        ("tr1-13B-base", "Unexpected bus error", Symptom.BUS_ERROR, Root.UNKNOWN),
        # A broken GPU, twice: the administrators confirmed it.
        ("tr1-13B-base", "cudaErrorECCUncorrectable", Symptom.ECC_ERROR, Root.INFRASTRUCTURE),
        ("tr1-13B-base", "RuntimeError: CUDA error: out of memory", Symptom.CUDA_OOM, Root.INFRASTRUCTURE),
        ("tr11-176B-ml", "CUDA error: unknown error", Symptom.CUDA_ERROR, Root.INFRASTRUCTURE),
    ],
)
def test_an_incident_gets_the_answer_that_its_operators_found(
    name: str, holds: str, symptom: Symptom, root: Root
) -> None:
    (log,) = [block for block in diary(name) if holds in block]
    said = said_of(log)
    assert (said.symptom, said.root, said.first_rank) == (symptom, root, None)


@pytest.mark.parametrize("name", ["tr1-13B-base", "tr11-176B-ml"])
def test_everything_else_in_the_diaries_is_no_crash(name: str) -> None:
    crashes = ("Unexpected bus error", "cudaErrorECCUncorrectable", "CUDA error")
    for block in diary(name):
        if not any(crash in block for crash in crashes):
            assert said_of(block).symptom is Symptom.UNKNOWN, block[:200]


@pytest.mark.parametrize(
    ("name", "symptom"),
    [
        ("dmesg-with-xid-119.log", Symptom.GPU_UNAVAILABLE),
        ("dmesg_oom.log", Symptom.CPU_OOM),
        ("dmesg_os.log", Symptom.TOO_MANY_OPEN_FILES),
    ],
)
def test_kernel_logs(name: str, symptom: Symptom) -> None:
    assert said_of((Path(FIELD_DATA or "") / "kernel_logs" / name).read_text()).symptom is symptom
