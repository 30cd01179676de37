"""The GPT example without Holdfast, under plain torchrun too: it learns, and an interruption changes nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.warm_python import WARM_RANKS, WarmPython

WARM = (str(WARM_RANKS), "{ranks}")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node={ranks}")
TRAIN = Path(__file__).parents[2] / "examples" / "gpt" / "train.py"
SMALL = ("--layers=2", "--width=64", "--heads=2", "--tokens=32", "--lr=0.003")
"""A model that learns as much in 30 steps as the usual one, for a third of the processor time."""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@contextmanager
def training(ranks: int, *arguments: str, launcher: Sequence[str] = WARM) -> Iterator[subprocess.Popen[str]]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    starts = WarmPython if launcher is WARM else subprocess.Popen[str]
    process = starts(
        [sys.executable, *(word.format(ranks=ranks) for word in launcher), str(TRAIN), "--log-every=1", *arguments],
        env={**environment, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        # Only while it is unreaped is its id still its own.
        if process.poll() is None:
            kill(children_of(process.pid))
            process.kill()
            process.wait()


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def train(ranks: int, *arguments: str, launcher: Sequence[str] = WARM) -> str:
    with training(ranks, *arguments, launcher=launcher) as process:
        output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    return output


def losses(output: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+) loss (\S+)$", output, re.MULTILINE)}


def final_loss(output: str) -> str:
    (loss,) = re.findall(r"^done final_loss=(\S+)$", output, re.MULTILINE)
    return loss


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def test_it_learns_and_goes_on_bit_for_bit_after_all_ranks_were_killed(tmp_path: Path) -> None:
    mesh = ["--mesh=pp=2,dp=2", "--steps=30", "--ckpt-every=6", *SMALL]
    undisturbed = train(4, *mesh, f"--ckpt-dir={tmp_path / 'undisturbed'}")
    assert losses(undisturbed)[30] < 0.6 * losses(undisturbed)[1]

    directory = f"--ckpt-dir={tmp_path / 'killed'}"
    with training(4, *mesh, directory) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 8 "):
                break
        ranks = children_of(process.pid)
        assert len(ranks) == 4
        kill(ranks)
        process.communicate(timeout=60)
    assert process.returncode != 0

    # A busy machine has them train on for a while before they are killed.
    saved = max(int(path.name.removeprefix("step-")) for path in (tmp_path / "killed").glob("step-????????"))
    assert saved in (6, 12, 18, 24)
    resumed = train(4, *mesh, directory)
    assert f"restored step {saved}" in resumed
    assert min(losses(resumed)) == saved + 1
    assert final_loss(resumed) == final_loss(undisturbed)
    expected = losses(undisturbed)
    assert losses(resumed) == {step: expected[step] for step in range(saved + 1, 31)}


@pytest.mark.long
def test_the_mesh_changes_the_loss_by_rounding_only(tmp_path: Path) -> None:
    arguments = ["--steps=6", "--ckpt-every=0", f"--ckpt-dir={tmp_path}"]
    # Each rank of torchrun imports torch for itself, so it launches only one.
    alone = losses(train(1, *arguments, launcher=TORCHRUN))
    split = losses(train(4, "--mesh=pp=2,tp=2", *arguments))
    assert split.keys() == alone.keys()
    assert split == pytest.approx(alone, rel=1e-4)
