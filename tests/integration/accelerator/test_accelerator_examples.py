"""The examples train on an accelerator where there is one, with the CPU's losses."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests.accelerator.children import Accelerators, on_accelerator
from tests.integration.accelerator import example_ranks
from tests.integration.accelerator.example_ranks import On
from tests.integration.vault_process import vault

pytestmark = on_accelerator

LOSS = re.compile(r"step (\d+) loss ([\d.]+)")
GPT = ("--layers", "2", "--width", "32", "--heads", "2", "--tokens", "16", "--log-every", "1", "--microbatches", "2")


def losses(
    accelerators: Accelerators, on: On, script: str, *args: str, extra: dict[str, str] | None = None
) -> dict[int, float]:
    """Run two ranks; return the loss of each step, as rank 0 prints it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    first, _ = accelerators.each(2, example_ranks.run, 2, on, script, args, port, extra or {})
    return {int(step): float(loss) for step, loss in LOSS.findall(first)}


@pytest.mark.parametrize("mesh", [pytest.param("pp=2", marks=pytest.mark.long), "dp=2", "tp=2"])
def test_the_gpt(accelerators: Accelerators, tmp_path: Path, mesh: str) -> None:
    def run(on: On) -> dict[int, float]:
        place = ("--ckpt-dir", str(tmp_path / on), "--mesh", mesh, "--ckpt-every", "0")
        return losses(accelerators, on, "gpt/train.py", *GPT, "--steps", "3", *place)

    expected = run("cpu")
    assert set(expected) == {1, 2, 3}
    # Attention has another kernel on the device.
    assert run("sim") == pytest.approx(expected, abs=2e-5)


def test_data_parallelism_goes_on_from_its_file(accelerators: Accelerators, tmp_path: Path) -> None:
    def run(on: On, steps: int) -> dict[int, float]:
        place = ("--ckpt-dir", str(tmp_path / on), "--ckpt-every", "2")
        return losses(accelerators, on, "minimal_ddp.py", "--steps", str(steps), *place)

    expected = run("cpu", 4)
    assert set(expected) == {1, 2, 3, 4}
    assert run("sim", 2) | run("sim", 4) == expected


def test_fsdp2_goes_on_from_memory(accelerators: Accelerators, tmp_path: Path) -> None:
    def run(on: On, generation: int, steps: int) -> dict[int, float]:
        place = tmp_path / on
        variables = {
            "HOLDFAST_VAULT": str(place),
            "HOLDFAST_JOB": on,
            "HOLDFAST_JOB_SUBMITTED_MS": "1",
            "HOLDFAST_JOB_DIR": str(place / "job"),
            "HOLDFAST_GENERATION": str(generation),
        }
        return losses(accelerators, on, "fsdp2.py", "--steps", str(steps), "--width", "16", extra=variables)

    for on in ("cpu", "sim"):
        (tmp_path / on).mkdir()
    with vault(tmp_path / "cpu"), vault(tmp_path / "sim"):
        expected = run("cpu", 1, 4)
        first, second = run("sim", 1, 2), run("sim", 2, 4)
    assert (set(first), set(second)) == ({1, 2}, {3, 4})
    assert first | second == pytest.approx(expected, abs=1e-6)
