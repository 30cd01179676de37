"""A script that only logs to TensorBoard has its NaN noticed, and what it prints is heard, without a change of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import JOBS, Cluster

pytestmark = pytest.mark.e2e

EVERY = 5


def test_a_nan_that_only_tensorboard_was_told_of_is_noticed(holdfast: Cluster, tmp_path: Path) -> None:
    poison, logs = tmp_path / "poison", tmp_path / "logs"
    arguments = ("--logs", logs, "--poison", poison, "--log-every", EVERY)
    job = holdfast.run(*arguments, script=JOBS / "tensorboard.py", nnodes=2, nproc=1)
    holdfast.until("steps are certified by the log", lambda: holdfast.events(job, "steps_certified")[1:])
    poison.touch()
    (fault, *_) = holdfast.until("the NaN is found", lambda: holdfast.events(job, "bad_number"))
    (poisoned,) = (int(path.read_text()) for path in logs.glob("poisoned-1"))
    # The log counts its steps from 1, the ledger from 0; the loss of the next step that is logged shows it.
    assert fault["logged_step"] == (poisoned // EVERY + 1) * EVERY == fault["step"] + 1
    assert (fault["told_by"], fault["tag"], fault["kind"], fault["rank"]) == ("tensorboard", "train/loss", "nan", 0)
    assert fault["certified"] < poisoned
    (said, *_) = holdfast.events(job, "numbers_logged")
    assert said["tags"] == {"loss": "train/loss"} and Path(said["path"]).parent == logs
    (sign, *_) = holdfast.until("what it printed is heard", lambda: holdfast.events(job, "log_signature"))
    assert (sign["signature"], sign["symptom"], sign["rank"], sign["stream"]) == ("nan_value", "nan_value", 0, "out")
    assert sign["lines"][0] == f"step {fault['logged_step']} loss: nan"
    (incident,) = holdfast.until("there is an incident", lambda: holdfast.incidents(job))
    assert incident["symptom"] == "nan"
    holdfast.until("it is started again", lambda: holdfast.events(job, "generation_started")[1:])
    # The new generation writes a file of its own, and is judged by it.
    holdfast.until(
        "the new file is read",
        lambda: [said for said in holdfast.events(job, "numbers_logged") if said["generation"] > 1],
    )
    assert len(holdfast.events(job, "bad_number")) == 1
    throughput = "select step_s, tokens_per_s from historian.throughput where job = $1 order by at"
    assert 0.01 < holdfast.until("its pace is told", lambda: holdfast.query(throughput, job.name))[0]["step_s"] < 5
    holdfast.until("it is shown", lambda: " s/step" in holdfast.command("status").stdout)
    assert " s/step" in holdfast.command("jobs", job.name).stdout
    holdfast.command("stop", job.name)
    job.exit_code()
