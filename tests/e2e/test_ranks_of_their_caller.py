"""A job has its caller's environment, Python and paths, as under torchrun, and time to save when it is stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from job import Job

pytestmark = pytest.mark.e2e

SECRET = "wandb-key-that-nobody-may-see"

ENVIRONMENT = """
import ctypes, json, os
import beside_the_callers_path, torch
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
names = "WANDB_API_KEY NCCL_DEBUG OF_FILE OF_BOTH HOLDFAST_NATS_URL SLURM_PROCID CUDA_VISIBLE_DEVICES".split()
print(json.dumps({
    "python": {name: os.environ.get(name) for name in names},
    "c": {name: value.decode() if (value := getenv(name.encode())) else None for name in names},
    "hash": hash("holdfast"),
    "threads": torch.get_num_threads(),
}))
"""


def printed(job: Job) -> dict[str, Any]:
    assert job.exit_code() == 0, job.errors()
    found: dict[str, Any] = json.loads(job.output().splitlines()[-1])
    return found


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "beside_the_callers_path.py").touch()
    (tmp_path / "train.py").write_text(ENVIRONMENT)
    return tmp_path / "train.py"


def test_ranks_have_the_callers_environment_and_nobody_sees_its_values(holdfast: Cluster, script: Path) -> None:
    (script.parent / "env").write_text("# of a file\nOF_FILE='a b'\nexport OF_BOTH=file\n")
    theirs = {
        "WANDB_API_KEY": SECRET,
        "NCCL_DEBUG": "WARN",
        "CUDA_VISIBLE_DEVICES": "3",
        "OMP_NUM_THREADS": "2",
        "PYTHONPATH": str(script.parent / "packages"),
        # Ranks are not those of a scheduler's job, and get no address of a cluster.
        "SLURM_PROCID": "7",
        "HOLDFAST_NATS_URL": "",
    }
    options = ["--env-file", str(script.parent / "env"), "--env", "OF_BOTH=option"]
    job = holdfast.run(script=script, nnodes=1, nproc=1, options=options, environment=theirs)
    found = printed(job)
    wanted = {"WANDB_API_KEY": SECRET, "NCCL_DEBUG": "WARN", "OF_FILE": "a b", "OF_BOTH": "option"}
    assert (
        found["python"]
        == found["c"]
        == wanted
        | {
            "HOLDFAST_NATS_URL": None,
            "SLURM_PROCID": None,
            "CUDA_VISIBLE_DEVICES": "3",
        }
    )
    assert found["threads"] == 2

    (submitted,) = holdfast.until("it is recorded", lambda: holdfast.events(job, "job_submitted"))
    assert submitted["spec"]["env"]["WANDB_API_KEY"] == "***"
    assert not holdfast.query("select from historian.events where body::text like $1", f"%{SECRET}%")
    for command in (("jobs", "--json"), ("status", "--json"), ("versions", job.name)):
        assert SECRET not in holdfast.command(*command).stdout
    written = [path for path in holdfast.layout.logs.iterdir() if SECRET in path.read_text(errors="replace")]
    assert not written and SECRET not in job.errors()

    alone = holdfast.run(script=script, nnodes=1, nproc=1, options=["--env-none"], environment=theirs)
    assert alone.exit_code() == 1 and "beside_the_callers_path" in alone.errors()


def test_what_python_reads_when_it_starts_has_its_effect(holdfast: Cluster, script: Path) -> None:
    theirs = {"PYTHONPATH": str(script.parent / "packages"), "PYTHONHASHSEED": "123"}
    job = holdfast.run(script=script, nnodes=1, nproc=1, environment=theirs)
    wanted = subprocess.run(
        [sys.executable, "-c", "print(hash('holdfast'))"], env=theirs, capture_output=True, text=True, check=True
    )
    assert printed(job)["hash"] == int(wanted.stdout)
    assert "a new Python is started for each rank" in job.errors() and "PYTHONHASHSEED" in job.errors()


def test_the_callers_virtual_environment_is_used_without_holdfast_in_it(holdfast: Cluster, tmp_path: Path) -> None:
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "only_theirs.py").touch()
    script = tmp_path / "train.py"
    script.write_text(
        "import importlib.util, json, sys, only_theirs, holdfast\n"
        "found = [name for name in ('asyncpg', 'nats') if importlib.util.find_spec(name)]\n"
        "print(json.dumps({'prefix': sys.prefix, 'found': found, 'argv': sys.argv, 'first': sys.path[0]}))\n"
    )
    job = holdfast.run("--lr", "1", script=script, nnodes=1, nproc=1, environment={"VIRTUAL_ENV": str(place)})
    wanted = {"prefix": str(place), "found": [], "argv": [str(script), "--lr", "1"], "first": str(tmp_path)}
    assert printed(job) == wanted

    options = ["--python", str(tmp_path / "nowhere" / "python")]
    elsewhere = holdfast.run(script=script, nnodes=1, nproc=1, options=options)
    assert elsewhere.exit_code() == 1 and "only_theirs" in elsewhere.errors()
    assert f"has no {options[1]}: the ranks there run with {sys.executable}" in elsewhere.errors()


PLACES = """
import json, os, pathlib, sys, time
import part
here = pathlib.Path(__file__).parent
saved = here / "checkpoints"
saved.mkdir(exist_ok=True)
(saved / f"{os.environ['HOLDFAST_GENERATION']}.pt").write_text(part.WORD)
print(json.dumps([part.WORD, __file__, sys.argv[0], sys.path[0], part.__file__, os.getcwd()]))
while not (here / "finish").exists():
    time.sleep(0.05)
"""


def test_a_script_runs_at_its_own_path_whichever_version_it_is(holdfast: Cluster, tmp_path: Path) -> None:
    script, part = tmp_path / "train.py", tmp_path / "part.py"
    script.write_text(PLACES)
    part.write_text("WORD = 'one'\n")
    job = holdfast.run(script=script, nnodes=1, nproc=1, options=["--code", str(tmp_path)])

    def begins(words: list[str]) -> None:
        job.until(f"{words} began", lambda: [json.loads(line)[0] for line in job.output().splitlines()] == words)

    begins(["one"])
    # An editor writes a new file; a restart must not bring it in. It has another length: Python does not compile a file
    # again that has the length and the second of the one before.
    (tmp_path / "new").write_text("WORD = 'second'\n")
    (tmp_path / "new").rename(part)
    started = holdfast.until("ranks run", lambda: holdfast.events(job, "ranks_started"))
    os.kill(started[-1]["ranks"][0]["pid"], 9)
    begins(["one", "one"])
    holdfast.command("update", job.name, "--from", tmp_path, "--urgent")
    begins(["one", "one", "second"])
    holdfast.command("rollback", job.name, "--to", "1")
    begins(["one", "one", "second", "one"])
    (tmp_path / "finish").touch()
    assert job.exit_code() == 0, job.errors()

    places = [json.loads(line)[1:] for line in job.output().splitlines()]
    assert places == [[str(script), str(script), str(tmp_path), str(part), str(job.scratch)]] * 4
    kept = {path.name: path.read_text() for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {"1.pt": "one", "2.pt": "one", "3.pt": "second", "4.pt": "one"}
    assert part.read_text() == "WORD = 'second'\n"


SAVES = """
import signal, sys, time
def save(*_):
    time.sleep(4)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("began", flush=True)
time.sleep(600)
"""


def test_a_handler_that_saves_for_seconds_is_not_killed_when_the_job_is_stopped(
    holdfast: Cluster, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SAVES)
    job = holdfast.run(script=script, nnodes=1, nproc=1)
    job.until("it began", lambda: "began" in job.output())
    holdfast.command("stop", job.name)
    assert job.exit_code() == 143 and "saved" in job.output()
    stopped = holdfast.until(
        "its end is recorded", lambda: [event for event in holdfast.events(job, "ranks_stopped") if event["ranks"]]
    )
    assert [event["killed"] for event in stopped] == [0]
