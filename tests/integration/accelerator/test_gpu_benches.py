"""The benchmarks of GPUs (`bench/gpu`) run on the simulated accelerator; their figures mean nothing here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.accelerator.build import built
from tests.accelerator.children import on_accelerator
from tests.warm_python import run_warm

pytestmark = on_accelerator

BENCHES = Path(__file__).parents[3] / "bench" / "gpu"
LONG = "HOLDFAST_LONG" in os.environ


def run(bench: str, *parts: str, trains: bool = False) -> dict[str, Any]:
    """Run these parts, all with LONG=1, and return the figures.

    `trains`: it has a backward pass, whose threads torch has chosen before a fork for the devices that there were.
    """
    built()
    only = () if LONG else ("--only", ",".join(parts))
    command = [sys.executable, BENCHES / f"{bench}.py", "--device", "sim", "--quick", *only]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if trains:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    else:
        ended = run_warm(command, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    figures: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert figures["machine"]["is_simulated"] and "no speed of anything" in ended.stdout
    failed = {name: why for name, why in figures["left_out"].items() if why != "not asked for" and name != "compiled"}
    assert not failed and set(parts) <= set(figures["results"])
    return figures["results"]  # type: ignore[no-any-return]


def test_registration_and_copies() -> None:
    found = run("registration", "registration", "links", "small_copies")
    assert all(row["s"] > 0 for row in found["registration"])
    assert {row["memory"] for row in found["links"]} == {"pinned by torch", "shared, pinned", "pageable"}
    assert all(row["to_host"] > 0 and row["to_device"] > 0 for row in found["links"])
    assert all(row["one_by_one"] > 0 and row["foreach"] > 0 for row in found["small_copies"])


# What it measures of copies, test_device_copies.py has for one step at a time, with each wait left out as well.
@pytest.mark.long
def test_steps_with_checkpoints_and_without() -> None:
    found = run("steps", "modes", "restores", trains=True)
    modes = {row["mode"]: row for row in found["modes"]}
    assert set(modes) == {"nothing", "within", "gate", "shadows", "no gate"}
    assert not modes["nothing"]["kept"] and modes["within"]["kept"] == modes["within"]["steps"]
    for mode in ("gate", "shadows", "no gate"):
        assert modes[mode]["is_direct"] and modes[mode]["kept"] and modes[mode]["gate_ms"] >= 0
    assert all(row["tensors"] and not row["differing"] for row in found["restores"])


# test_device_kills.py kills ranks and vaults in the middle of copies, too.
@pytest.mark.long
def test_kills() -> None:
    found = run("kills", "ranks", "vaults", "late_writer")
    for kind in ("ranks", "vaults"):
        (row,) = found[kind]
        assert row["kills"] and not row["torn"] and not row["not_newest"]
    (ranks,), (late,) = found["ranks"], found["late_writer"]
    assert ranks["memory_files"] and not ranks["late_writes"] and ranks["next_restored_s"] > 0
    assert late["is_found"] and late["sealed"] < late["steps"] and not late["sealed_wrong"]


def test_a_link_of_a_set_speed() -> None:
    roomy, short = run("link", "link")["link"]
    assert roomy["expected_ms"] == 0 < short["expected_ms"] < short["copy_ms"]
    assert all(row["keep_ms"] > 0 and row["pairs"] for row in (roomy, short))
