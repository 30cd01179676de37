"""How a node's driver puts its devices' findings together, and what its tests read on this machine."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from holdfast.engines.checks.suites import Stage
from holdfast_checks import numbers
from holdfast_checks.driver import merged
from holdfast_checks.node_tests import disk, plugins
from holdfast_checks.result import StageTask, WorkerContext, broken, failed, passed, skipped


def task(directory: Path) -> StageTask:
    context = WorkerContext(
        run="r", node="n", node_rank=0, nodes=1, job_directory=str(directory), node_directory=str(directory / "node")
    )
    return StageTask(context=context, stage=Stage(test="disk", limit_s=1.0))


def test_devices_that_passed_alike_are_one_result_with_the_slowest_value() -> None:
    found = [passed(device=f"GPU {n}", value=10.0 - n, unit="GB/s", digest="d", hardware="h") for n in range(3)]
    (one,) = merged(found)
    assert (one.device, one.value, one.digest) == ("GPU 0, GPU 1, GPU 2", 8.0, "d")


def test_devices_with_different_answers_stay_apart() -> None:
    found = merged([passed(device=f"GPU {n}", digest=digest) for n, digest in enumerate("aba")])
    assert [(finding.device, finding.digest) for finding in found] == [("GPU 0, GPU 2", "a"), ("GPU 1", "b")]


def test_what_failed_stands_for_the_node_and_each_device_for_itself() -> None:
    found = merged([passed(device="GPU 0"), failed("s", "one", device="GPU 1"), failed("s", "two", device="GPU 2")])
    assert [finding.detail for finding in found] == ["one", "two"]


def test_a_pair_fails_once() -> None:
    (one,) = merged([failed("s", f"device {n}", peers=("m",)) for n in range(8)])
    assert (one.status, one.detail) == ("failed", "device 0")
    (one,) = merged([broken("m did not come", peers=("m",)) for _ in range(8)])
    assert one.status == "broken"


def test_devices_that_take_no_part_do_not_hide_those_that_do() -> None:
    (one,) = merged([passed(digest="d"), skipped("2 devices take part")])
    assert one.status == "passed"


def test_a_disk_that_takes_and_returns_a_file_passes_and_keeps_nothing(tmp_path: Path) -> None:
    found = disk.run(task(tmp_path), lambda: None)
    assert [finding.status for finding in found] == ["passed", "passed"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_disk_that_refuses_is_named_by_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk, "_read_back", full)
    for finding in disk.run(task(tmp_path), lambda: None):
        assert (finding.status, finding.symptom) == ("failed", "insufficient_disk_space")
        assert "No space left on device" in finding.detail


def test_a_file_that_comes_back_different_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_read_back", lambda directory, written: written[:-1] + b"?")
    assert {finding.symptom for finding in disk.run(task(tmp_path), lambda: None)} == {"disk_fault"}


@pytest.mark.parametrize(
    ("code", "status"), [(0, "passed"), (1, "passed"), (2, "failed"), (3, "skipped"), (4, "broken"), (127, "broken")]
)
def test_a_users_program_says_what_it_found_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, status: str
) -> None:
    program = tmp_path / "fabric"
    program.write_text(f"#!/bin/sh\necho the fabric says so\necho more\nexit {code}\n")
    program.chmod(0o755)
    (tmp_path / "notes.txt").write_text("no program")
    monkeypatch.setenv(plugins.DIRECTORY_VARIABLE, str(tmp_path))
    (found,) = plugins.run(task(tmp_path), lambda: None)
    assert (found.status, found.device) == (status, "fabric")
    assert "the fabric says so" in found.detail


def test_numbers_are_the_same_wherever_they_are_made() -> None:
    words = np.asarray(numbers.bits(1, 2)).tolist()
    assert words == np.asarray(numbers.bits(1, 4)).tolist()[:2]
    assert numbers.digest(numbers.uniform(3, (2, 4)), torch.arange(3)) == "7a93abc5e3f4a8f9b5126206ad84106f"
    assert numbers.integers(5, (1000,), 7).abs().max() == 7
    assert numbers.uniform(5, (1000,)).abs().max() <= 1


def test_a_job_that_lies_in_a_store_has_no_directory_to_be_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = task(tmp_path)
    context = msgspec.structs.replace(asked.context, job_directory="s3://jobs/job")
    found = disk.run(msgspec.structs.replace(asked, context=context), lambda: None)
    assert [finding.device for finding in found] == [context.node_directory]
    assert [path.name for path in tmp_path.iterdir()] == ["node"]
