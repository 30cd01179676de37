"""`holdfast up` as root without any settings: a job's ranks run as a user of the job's own, or it is said why not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import HOLDFAST, JOBS, Cluster, cluster

from holdfast.node.users.own_users import WIDE
from tests.open_python import opened

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")]


WAITS = """
import os, sys, time
print("uid", os.getuid(), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-own-users-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def holdfast(place: Path) -> Iterator[Cluster]:
    (place / "holder").mkdir()
    # A new agent may take longer to come than the default, on a busy machine, and its node is not lost.
    patience = {"HOLDFAST_TIMEOUTS_NODE_LOST_S": "30"}
    with cluster(place / "cluster", 2, patience, prefix=opened(place / "holder")) as one:
        yield one


def submit(holdfast: Cluster, place: Path, name: str, *args: str) -> None:
    ports = holdfast.info.ports
    arguments = [str(holdfast.directory), *args, str(ports.postgres), str(ports.nats)]
    options = ["--dir", str(holdfast.directory), "-d", "--name", name, "--code", str(JOBS)]
    subprocess.run(
        [HOLDFAST, "run", *options, str(JOBS / "curious.py"), *arguments], check=True, capture_output=True, cwd=place
    )


def seen(holdfast: Cluster, job: str, generation: int) -> dict[str, Any]:
    path = holdfast.directory / "jobs" / job / f"seen-{generation}"
    holdfast.until(f"generation {generation} of {job} trains", path.exists)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def started(holdfast: Cluster, job: str) -> list[dict[str, Any]]:
    rows = holdfast.query(
        "select body from historian.events where job = $1 and type = 'ranks_started' order by at", job
    )
    return [json.loads(row["body"]) for row in rows]


def until_ended(holdfast: Cluster, job: str) -> int:
    rows = holdfast.until(
        f"{job} ends",
        lambda: holdfast.query("select exit_code from controller.jobs where key = $1 and exit_code is not null", job),
    )
    return int(rows[0]["exit_code"])


def test_a_job_reaches_nothing_beyond_its_own_and_goes_on_after_kills(holdfast: Cluster, place: Path) -> None:
    finish = str(place / "finish")
    submit(holdfast, place, "other", "", finish)
    other = seen(holdfast, "other", 1)
    (node,) = {event["node"] for event in started(holdfast, "other")}
    submit(holdfast, place, "curious", node, finish)
    first = seen(holdfast, "curious", 1)
    assert first["beyond"] == []
    assert WIDE.has(first["uid"]) and WIDE.has(other["uid"]) and first["uid"] != other["uid"]
    assert first["capabilities"] == 0
    assert first["user"] == f"job-{first['uid']}" and first["user"] in first["caches"]
    assert first["protects"] == other["protects"] == (Path("/dev/userfaultfd").exists())

    holdfast.until("the start is recorded", lambda: started(holdfast, "curious"))
    (event,) = started(holdfast, "curious")
    assert event["user"] == first["user"] and "root_because" not in event
    killed = holdfast.kill(event["node"])
    holdfast.until_mended(event["node"], killed)
    (pid,) = {rank["pid"] for rank in event["ranks"]}
    assert Path(f"/proc/{pid}").stat().st_uid == first["uid"], "the next agent lets its ranks train on"
    os.kill(pid, signal.SIGKILL)
    second = seen(holdfast, "curious", 2)
    step, weight = second["restored"]
    assert step == weight > 0
    assert second["uid"] == first["uid"] and second["protects"] == first["protects"]

    Path(finish).touch()
    assert until_ended(holdfast, "curious") == until_ended(holdfast, "other") == 0
    files = list((holdfast.directory / "jobs" / "curious").rglob("*"))
    assert {path.lstat().st_uid for path in files} == {first["uid"]}


def test_a_script_that_is_closed_to_others_runs_as_root_and_says_so(holdfast: Cluster, place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    script, finish = closed / "look.py", place / "finish-2"
    script.write_text(WAITS)
    command = [
        HOLDFAST,
        "run",
        "--dir",
        str(holdfast.directory),
        "--name",
        "closed",
        "--code",
        "none",
        str(script),
        str(finish),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place) as running:
        holdfast.until("its start is recorded", lambda: started(holdfast, "closed"))
        found = json.loads(holdfast.command("doctor", "--json", check=False).stdout)["findings"]
        finish.touch()
        out, errors = running.communicate(timeout=60)
    assert out == "uid 0\n"
    said = [line for line in errors.splitlines() if "as root" in line]
    assert len(said) == 1 and f"{closed} is closed to a user of the job's own" in said[0] and "--run-as" in said[0]
    assert [(it["about"], it["severity"]) for it in found if it["kind"] == "user"] == [("closed", "warning")]
    assert (holdfast.directory / "jobs" / "closed").stat().st_uid == 0


AT_ITS_PATH = """
import json, os, pathlib, sys, time
import part
here = pathlib.Path(__file__).parent
(here / "saved" / os.environ["HOLDFAST_GENERATION"]).write_text(part.WORD)
print(json.dumps([os.getuid(), sys.prefix, __file__, part.__file__, part.WORD]), flush=True)
while not (here / "finish").exists():
    time.sleep(0.05)
"""


def test_a_job_of_its_own_user_runs_at_its_own_path_with_its_own_python(holdfast: Cluster, place: Path) -> None:
    source, venv = place / "source", place / "venv"
    (source / "saved").mkdir(parents=True)
    (source / "saved").chmod(0o777)
    (source / "train.py").write_text(AT_ITS_PATH)
    (source / "part.py").write_text("WORD = 'one'\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    options, environment = ["--code", str(source)], {"VIRTUAL_ENV": str(venv)}
    job = holdfast.run(script=source / "train.py", nnodes=1, nproc=1, options=options, environment=environment)
    job.until("it runs", lambda: len(job.output().splitlines()) == 1)
    (source / "new").write_text("WORD = 'two'\n")
    (source / "new").rename(source / "part.py")
    (event,) = holdfast.until("the start is recorded", lambda: started(holdfast, job.name))
    os.kill(event["ranks"][0]["pid"], signal.SIGKILL)
    job.until("it runs again", lambda: len(job.output().splitlines()) == 2)
    (source / "finish").touch()
    assert job.exit_code() == 0, job.errors()
    (uid, *first), (second_uid, *second) = map(json.loads, job.output().splitlines())
    assert WIDE.has(uid) and uid == second_uid
    assert first == second == [str(venv), str(source / "train.py"), str(source / "part.py"), "one"]
    assert {path.name: path.read_text() for path in (source / "saved").iterdir()} == {"1": "one", "2": "one"}
