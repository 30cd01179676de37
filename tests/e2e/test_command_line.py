"""What a person meets on the command line when something is not as it should be: one line, soon, and no traceback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cluster import HOLDFAST, Cluster

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__))
COMMANDS = [("stop", "job-1"), ("nodes", "release", "node-0"), ("run", SCRIPT)]


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a command said before it ended with exit code 1."""
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("wrong", ["address", "password", "nonsense"])
def test_a_bus_that_is_not_there_or_refuses_is_told_soon(holdfast: Cluster, wrong: str) -> None:
    url, expected = {
        "address": ("nats://127.0.0.1:1", "no usable NATS server at 127.0.0.1:1"),
        "password": (re.sub(r":[^:@]+@", ":guessed@", holdfast.info.nats_url), "refuses these credentials"),
        "nonsense": ("nats://127.0.0.1:port", "'127.0.0.1:port' is not an address of NATS"),
    }[wrong]

    def told(command: tuple[str, ...]) -> str:
        *words, last = command
        return _complaint(holdfast.command(*words, "--nats-url", url, last, check=False))

    # Beside each other: each waits for seconds that there may be a server.
    with ThreadPoolExecutor() as pool:
        lines = list(pool.map(told, COMMANDS))
    assert [line for line in lines if expected not in line] == []


def test_a_name_that_is_taken_is_refused_in_one_line(holdfast: Cluster) -> None:
    job = holdfast.run(nnodes=1, nproc=1)
    job.until_step(2)
    taken = _complaint(holdfast.command("run", "--name", job.name, "--code", "none", SCRIPT, check=False))
    assert taken == f"Error: a job named {job.name} exists already; choose another --name"
    job.finish()


@pytest.mark.parametrize("command", [("stop", "a b"), ("nodes", "release", "a.b")], ids=["stop", "release"])
def test_what_cannot_be_a_name_is_explained(holdfast: Cluster, command: tuple[str, ...]) -> None:
    assert "use 1 to 63 letters, digits and inner hyphens" in _complaint(holdfast.command(*command, check=False))


def test_the_second_ctrl_c_leaves_even_if_nobody_answers_the_first(holdfast: Cluster) -> None:
    job = holdfast.run(nnodes=1, nproc=1)
    job.until_step(2)
    controller = holdfast.pid("controller")
    os.kill(controller, signal.SIGSTOP)
    try:
        job.interrupt()
        job.until("the first Ctrl-C is heard", lambda: "press Ctrl-C again" in job.errors())
        job.interrupt()
        assert job.exit_code() == 130  # while there is still nobody who could answer
    finally:
        os.kill(controller, signal.SIGCONT)
    assert "Traceback" not in job.errors()
    assert f"left job {job.name} to stop by itself" in job.errors()
    holdfast.until("it does", lambda: {node["state"] for node in holdfast.nodes().values()} == {"standby"})


def test_ctrl_c_leaves_a_job_that_was_never_answered(holdfast: Cluster) -> None:
    controller = holdfast.pid("controller")
    os.kill(controller, signal.SIGSTOP)
    try:
        # Its code would have to be taken into keeping first.
        job = holdfast.run(nnodes=1, nproc=1, options=("--code", "none"))
        job.until("the controller is found silent", lambda: "does not answer yet" in job.errors())
        job.interrupt()
        job.until("the first Ctrl-C is heard", lambda: "press Ctrl-C again" in job.errors())
        job.interrupt()
        assert job.exit_code() == 130  # while there is still nobody who could answer
    finally:
        os.kill(controller, signal.SIGCONT)
    assert "left before the controller answered" in job.errors()
    submitted = "select 1 from controller.jobs where key = $1"
    holdfast.until("what had been asked is done all the same", lambda: holdfast.query(submitted, job.name))


def test_a_job_goes_on_when_nobody_reads_its_output(holdfast: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "talk.py"
    script.write_text(
        "import pathlib, time\n"
        f"finish = pathlib.Path({str(tmp_path / 'finish')!r})\n"
        "while not finish.exists():\n    print('a line', flush=True)\n    time.sleep(0.05)\n"
    )
    command = [HOLDFAST, "run", "--dir", str(holdfast.directory), "--name", "unread", str(script)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
    assert run.stdout is not None and run.stderr is not None
    assert run.stdout.readline() == b"a line\n"
    run.stdout.close()
    errors = run.stderr.read().decode()
    assert run.wait(60) == 141
    assert "job unread continues" in errors and "Traceback" not in errors and "ignored" not in errors

    (row,) = holdfast.query("select phase from controller.jobs where key = 'unread'")
    assert row["phase"] == "starting"  # it makes no steps

    # Whoever wants to see it again attaches; so does who comes when it is over.
    attach = [HOLDFAST, "attach", "--dir", str(holdfast.directory), "unread"]
    attached = subprocess.Popen(attach, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert attached.stdout is not None
    assert attached.stdout.readline() == b"a line\n"
    (tmp_path / "finish").touch()
    assert b"unread: completed: every rank exited" in attached.communicate(timeout=60)[1] and attached.returncode == 0
    ended = "select 1 from historian.events where job = 'unread' and type = 'job_finished'"
    holdfast.until("its end is recorded", lambda: holdfast.query(ended))
    again = holdfast.command("attach", "unread")
    assert again.stderr == "[holdfast] job unread has ended, completed: every rank exited with code 0\n"
    assert "a line\n" in holdfast.command("logs", "unread", "--rank", "0", "-n", "1").stdout


def test_values_of_the_environment_are_in_no_event_and_reach_the_ranks(holdfast: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "tell.py"
    script.write_text("import os\nprint('token', os.environ['TOKEN'])\n")
    told = holdfast.command("run", "--name", "masked", "--env", "TOKEN=hunter2", str(script))
    assert told.stdout == "token hunter2\n"
    count = "select count(*) as n from historian.events where job = 'masked' and body::text like "
    holdfast.until("it is recorded", lambda: holdfast.query(count + "'%job_submitted%'")[0]["n"])
    assert holdfast.query(count + "'%hunter2%'")[0]["n"] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="pseudo-terminals as Linux has them")
def test_a_terminal_gets_colours_and_no_other_control(holdfast: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "paint.py"
    script.write_text("print('\\x1b[31mred\\x1b[0m and \\x1b]0;title\\x07')\nraise SystemExit('\\x1b[2Jcleared')\n")
    ours, theirs = os.openpty()
    command = [HOLDFAST, "run", "--dir", str(holdfast.directory), "--name", "painted", str(script)]
    run = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:
            break  # the other end is closed
    os.close(ours)
    assert run.wait(60) != 0
    assert b"\x1b[31mred\x1b[0m and \\x1b]0;title\\x07" in shown
    assert b"\x1b[2J" not in shown
