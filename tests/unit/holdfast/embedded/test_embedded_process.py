"""Real processes, no servers."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.embedded.errors import StartFailed
from holdfast.embedded.processes.child_process import describe_exit
from holdfast.embedded.processes.children import Child, ChildSpec, ChildState
from holdfast.embedded.processes.proctree import NODE_VARIABLE, kill_all, node_processes
from holdfast.embedded.processes.restart import RestartPolicy
from holdfast.node.kernel import started_ticks

READY = "from holdfast.daemon.ready import announce_ready as ready; "


def spec(tmp_path: Path, program: str, *, start_limit_s: float = 20.0, stop_grace_s: float = 5.0) -> ChildSpec:
    return ChildSpec(
        name="child",
        argv=(sys.executable, "-c", program),
        environment=dict(os.environ),
        directory=tmp_path,
        start_limit_s=start_limit_s,
        stop_grace_s=stop_grace_s,
        restart=RestartPolicy(base_s=0.01),
    )


def make(tmp_path: Path, spec: ChildSpec) -> Child:
    return Child(spec, tmp_path / "child.log", lambda child, line: None)


async def test_a_child_that_dies_is_restarted_at_once_and_keeps_its_last_words(tmp_path: Path) -> None:
    lines: list[str] = []
    ready_again = asyncio.Event()

    def report(child: Child, line: str | None) -> None:
        if line:
            lines.append(line)
        if child.restarts and child.state is ChildState.READY:
            ready_again.set()

    program = READY + "import time; print('hello', flush=True); ready(); time.sleep(99)"
    child = Child(spec(tmp_path, program), tmp_path / "child.log", report)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(child.run())
        child.switch_on()
        await child.until_ready()
        first = child.record
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            await ready_again.wait()
        assert (child.restarts, child.last_exit) == (1, "killed by SIGKILL")
        await child.stop()
        running.cancel()
    assert (tmp_path / "child.log").read_text() == "hello\nhello\n"
    assert lines[1] == "child: killed by SIGKILL; restarting (first end)"
    assert lines[-1] == "child stopped"


async def test_a_child_that_ignores_its_stop_signal_is_killed_after_the_grace(tmp_path: Path) -> None:
    heard = "lambda *_: print('heard', flush=True)"
    program = READY + f"import signal\nsignal.signal(15, {heard}); ready()\nwhile True: signal.pause()"
    child = make(tmp_path, spec(tmp_path, program, stop_grace_s=1.5))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(child.run())
        child.switch_on()
        await child.until_ready()
        await child.stop()
        assert (tmp_path / "child.log").read_text() == "heard\n"
        assert child.last_exit == "killed by SIGKILL"
        running.cancel()


async def test_a_start_that_hangs_is_ended_and_given_up_with_its_log(tmp_path: Path) -> None:
    # A shell speaks long before the limit, on a busy machine too.
    hangs = spec(tmp_path, "", start_limit_s=1.0)
    child = make(tmp_path, replace(hangs, argv=("sh", "-c", "echo waiting for the lock; exec sleep 99")))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(child.run())
        child.switch_on()
        with pytest.raises(StartFailed, match=r"(?s)not ready after 1 s.*waiting for the lock"):
            await child.until_ready()
        assert child.record is None
        running.cancel()


async def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    missing = ChildSpec(name="child", argv=("/no/such/program",), environment={}, directory=tmp_path)
    child = make(tmp_path, missing)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(child.run())
        child.switch_on()
        with pytest.raises(StartFailed, match="cannot run /no/such/program: No such file"):
            await child.until_ready()
        running.cancel()


async def test_cancelled_it_leaves_no_process_behind(tmp_path: Path) -> None:
    child = make(tmp_path, spec(tmp_path, READY + "import time; ready(); time.sleep(99)"))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(child.run())
        child.switch_on()
        await child.until_ready()
        record = child.record
        running.cancel()
    assert record is not None
    assert started_ticks(record.pid) is None


def test_children_die_with_their_supervisor(tmp_path: Path) -> None:
    program = """
import asyncio, os, signal, sys
from pathlib import Path
from holdfast.embedded.processes.child_process import spawn
async def main():
    child = spawn(["sleep", "99"], environment=os.environ, directory=Path("/"), output=2, death_signal=signal.SIGKILL)
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    supervisor = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert supervisor.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 30
    while started_ticks(int(supervisor.stdout)) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_node_that_forks_while_it_is_killed_is_killed_whole(tmp_path: Path) -> None:
    # At most 64 processes, each in a session of its own, and each ends by itself soon whatever becomes of this test.
    program = """
import os, signal, time
signal.alarm(20)
for _ in range(6):
    if os.fork() == 0:
        signal.alarm(20)
        os.setsid()
    time.sleep(0.02)
signal.pause()
"""
    root = subprocess.Popen([sys.executable, "-c", program], env=os.environ | {NODE_VARIABLE: str(tmp_path)})
    while len(node_processes(tmp_path, None)) < 8:
        assert root.poll() is None
    assert kill_all(lambda: node_processes(tmp_path, root.pid)) >= 8
    assert root.wait() == -signal.SIGKILL
    assert not node_processes(tmp_path, None)


def test_the_caller_is_no_process_of_the_node_even_below_its_agent(tmp_path: Path) -> None:
    assert os.getpid() not in node_processes(tmp_path, os.getppid())


def test_the_path_of_a_node_need_not_be_text(tmp_path: Path) -> None:
    directory = tmp_path / os.fsdecode(b"\xff")
    child = subprocess.Popen(["sleep", "99"], env=os.environ | {NODE_VARIABLE: str(directory)})
    try:
        assert node_processes(directory, None) == {child.pid}
    finally:
        child.kill()
        child.wait()


def test_a_zygote_pid_that_now_belongs_to_someone_else_is_not_believed(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "99"])
    try:
        file = tmp_path / "zygote.pid"
        file.write_text(str(stranger.pid))
        assert node_processes(tmp_path, None) == {stranger.pid}
        hour_ago = time.time() - 3600
        os.utime(file, (hour_ago, hour_ago))
        assert node_processes(tmp_path, None) == set()
        file.write_text("not a number")
        assert node_processes(tmp_path, None) == set()
    finally:
        stranger.kill()
        stranger.wait()


def test_exits_in_words() -> None:
    assert [describe_exit(code) for code in (0, 3, -9, -200)] == [
        "exit code 0",
        "exit code 3",
        "killed by SIGKILL",
        "killed by signal 200",
    ]
