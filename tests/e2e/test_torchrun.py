"""torchrun's command line under `holdfast run`: a cluster for one run, files, programs, bounds, the environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from cluster import HOLDFAST, UP_LIMIT_S, Cluster
from waiting import until

from holdfast.daemon.nursery import NURSERY_VARIABLE
from holdfast.embedded.layout import ClusterInfo
from holdfast.node.kernel import started_ticks
from tests.nursery import public_environment, worker_nursery

pytestmark = pytest.mark.e2e

SHAPE = ["--nproc_per_node=2", "--role", "trainer", "--max-restarts=3", "--rdzv-id=42", "--signals-to-handle=SIGTERM"]
PRINTS_ENVIRONMENT = """
import json, os, pathlib, sys, time
own = pathlib.Path(sys.argv[1]) / os.environ["RANK"]
own.with_suffix(".part").write_text(json.dumps(dict(os.environ)))
own.with_suffix(".part").rename(own)
while len(sys.argv) > 2:
    time.sleep(0.05)
"""
RENDEZVOUS = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"}
"""Variables with values of the launcher's own."""


def plain(names: Mapping[str, str]) -> dict[str, str]:
    """The environment without Holdfast's variables."""
    return {name: value for name, value in names.items() if not name.startswith("HOLDFAST_")}


def environments(folder: Path) -> list[dict[str, str]]:
    return [json.loads((folder / rank).read_text()) for rank in "01"]


def test_a_run_without_a_cluster_has_one_of_its_own_and_ranks_have_torchruns_environment(tmp_path: Path) -> None:
    script = tmp_path / "prints.py"
    script.write_text(PRINTS_ENVIRONMENT)
    ours, torchs = tmp_path / "ours", tmp_path / "torchs"
    for folder in (ours, torchs):
        folder.mkdir()
    caller = plain(os.environ)
    caller.pop("OMP_NUM_THREADS", None)
    with (tmp_path / "errors").open("wb") as errors:
        command = [HOLDFAST, "run", "--standalone", "--name", "alone", *SHAPE, str(script), str(ours), "--nnodes"]
        held = subprocess.Popen(command, cwd=tmp_path, env=caller, stderr=errors)
    line = (sys.executable, "-m", "torch.distributed.run", "--standalone", *SHAPE, str(script), str(torchs))
    subprocess.run(line, cwd=tmp_path, env=caller, check=True, capture_output=True, timeout=UP_LIMIT_S)
    told = (tmp_path / "errors").read_text
    until("both ranks run", lambda: len(list(ours.glob("[01]"))) == 2, within_s=UP_LIMIT_S, look=told)

    for wanted, found in zip(environments(torchs), environments(ours), strict=True):
        set_by_torchrun = {name: value for name, value in wanted.items() if caller.get(name) != value}
        assert set_by_torchrun.keys() <= found.keys()
        same = set_by_torchrun.keys() - RENDEZVOUS - {"TORCHELASTIC_RUN_ID"}
        assert {name: found[name] for name in same} == {name: wanted[name] for name in same}
        assert found["TORCHELASTIC_RUN_ID"] == "alone", "with --standalone torchrun makes one up"

    root = tmp_path / ".holdfast" / "runs" / "alone"
    assert f"starting a cluster of 1 node for this run, in {root}; it ends with the run" in told()
    info = ClusterInfo.load(root)
    pids = [info.pid, *(child.pid for child in info.children.values())]
    held.send_signal(signal.SIGINT)
    assert held.wait(60) != 0
    assert "stopping job alone" in told() and "Traceback" not in told()
    assert not [pid for pid in pids if pid and started_ticks(pid)]
    assert not (root / "postgres").exists() and not (root / "secrets.json").exists()
    assert (root / "nodes" / "node-0" / "logs" / "alone").is_dir()


def test_a_run_whose_cluster_ends_ends_with_the_reason(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(1000)\n")
    # A nursery that runs already spares it the import of torch.
    caller = plain(public_environment()) | {NURSERY_VARIABLE: str(worker_nursery())}
    with (tmp_path / "output").open("wb") as output:
        command = [HOLDFAST, "run", "--standalone", "--name", "alone", str(script)]
        held = subprocess.Popen(command, cwd=tmp_path, env=caller, stdout=output, stderr=output)
    told = (tmp_path / "output").read_text
    until("the rank runs", lambda: "up\n" in told(), within_s=UP_LIMIT_S, look=told)
    again = subprocess.run(command, cwd=tmp_path, env=caller, capture_output=True, text=True, timeout=60)
    assert again.returncode == 1 and "a run named alone is under way here: choose another --name" in again.stderr
    pid = ClusterInfo.load(tmp_path / ".holdfast" / "runs" / "alone").pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert held.wait(60) == 1
    assert "the cluster of this run ended: its supervisor is gone. See" in told() and "Traceback" not in told()


def test_tee_and_redirects_write_torchruns_files(holdfast: Cluster, tmp_path: Path) -> None:
    options = ["--log_dir", str(tmp_path / "logs"), "-t", "0:3,1:1", "-r", "1:2", "--rdzv_id=7", "--role=tr"]
    options += ["--max-restarts", "0"]
    script = tmp_path / "prints.py"
    script.write_text(
        "import os, sys\nrank = os.environ['RANK']\n"
        "for n in sys.stdout, sys.stderr: print(n.name[4:7], rank, file=n)\n"
        "if rank == '1':\n    raise ValueError('at the end')\n"
    )
    job = holdfast.run(script=script, nnodes=1, options=options)
    assert job.exit_code() == 1
    (run,) = (tmp_path / "logs").iterdir()
    assert run.name.startswith("7_")
    files = {str(path.relative_to(run)): path.read_text() for path in run.rglob("*") if path.is_file()}
    error = json.loads(files.pop("attempt_0/1/error.json"))["message"]
    assert error["message"] == "ValueError: at the end" and "prints.py" in error["extraInfo"]["py_callstack"]
    assert "ValueError" in files["attempt_0/1/stderr.log"]
    files["attempt_0/1/stderr.log"] = files["attempt_0/1/stderr.log"].partition("Traceback")[0]
    assert files == {
        "attempt_0/0/stdout.log": "out 0\n",
        "attempt_0/0/stderr.log": "err 0\n",
        "attempt_0/1/stdout.log": "out 1\n",
        "attempt_0/1/stderr.log": "err 1\n",
    }
    assert sorted(job.output().splitlines()) == ["[tr0]:out 0", "[tr1]:out 1"]
    assert "[tr0]:err 0" in job.errors() and "err 1" not in job.errors()


def test_a_program_of_its_own_runs_without_python_and_restarts_are_bounded(holdfast: Cluster, tmp_path: Path) -> None:
    program = tmp_path / "train.sh"
    program.write_text(
        f'#!/bin/sh\necho "$RANK of $WORLD_SIZE: $1 $TORCHELASTIC_RESTART_COUNT" >> {tmp_path}/seen\nexit 9\n'
    )
    program.chmod(0o755)
    options = ["--no-python", "--max-restarts", "0", "--rdzv-backend", "c10d"]
    job = holdfast.run("first", script=program, nnodes=1, nproc=1, options=options)
    assert job.exit_code() == 9
    assert (tmp_path / "seen").read_text() == "0 of 1: first 0\n"
    assert "--max-restarts allows no further restart" in job.errors()
    assert "--rdzv-backend: nodes meet over the cluster's bus" in job.errors()
