"""Ranks that run as another user than their agent, and what they cannot reach."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.events import FirstStep, ProcessExited, RanksFinished, RanksStarted, RanksStopped
from holdfast.events.parts.job import JobSpec
from holdfast.node.forks import EXIT_SETUP_FAILED
from holdfast.node.users.user_rights import JobUserRefused, find_job_user
from holdfast_agent.files.directories import Directories
from tests.integration.agent_node import WAIT_S, Node, node

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]

USER = "nobody"

# What it imports, the zygote has imported: the checkout may be closed to the user.
LOOK = """
import json, os, signal, socket, sys
def reach(path):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").close()
    except OSError as error:
        return type(error).__name__
    return "open"
state, agent = sys.argv[1], sys.argv[2]
def connect(path):
    try:
        socket.socket(socket.AF_UNIX).connect(path)
    except OSError as error:
        return type(error).__name__
    return "open"
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
seen = {
    "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
    "privileges": [status["NoNewPrivs"].strip(), status["CapEff"].strip(), status["CapPrm"].strip()],
    "home": os.environ["HOME"],
    "files": {name: reach(f"{state}/{name}") for name in ("", "agent.db", "logs", "reports", "errors", "code")},
    "sockets": {name: connect(f"{state}/{name}") for name in ("zygote.sock", "vault.sock")},
    "agent": [reach(f"/proc/{agent}/environ"), reach(f"/proc/{os.getppid()}/environ")],
    "own": [reach(os.environ["HOLDFAST_LEDGER"]), reach("/proc/self/environ")],
}
with open(f"{os.environ['HOLDFAST_JOB_DIR']}/seen", "w") as file:
    json.dump(seen, file)
from holdfast.trainer import report, step
step(step=1, loss=0.5)
report("note", text="written")
if len(sys.argv) > 3:
    signal.pause()
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can pass through, wherever temporary files of tests lie."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-job-user-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    _end_zygote(folder / "state")
    Directories(folder / "state").forget_ledgers()
    shutil.rmtree(folder)


def _end_zygote(state: Path) -> None:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
        pid = int((state / "zygote.pid").read_text())
        zygote = os.pidfd_open(pid)
        # The number may be of another process by now.
        if str(state).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            signal.pidfd_send_signal(zygote, signal.SIGKILL)
            select.select([zygote], [], [], WAIT_S)
        os.close(zygote)


def spec(place: Path, it: Node, *args: str, script: str = "look.py") -> JobSpec:
    for folder, mode in ((place, 0o755), (place / "closed", 0o700)):
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
        (folder / "look.py").write_text(LOOK)
    with contextlib.suppress(FileExistsError):
        (place / "link.py").symlink_to(place / "closed" / "look.py")
    return JobSpec(
        name="job-1",
        script=str(place / script),
        args=(str(it.directory), str(it.process.pid), *args),
        cwd=str(place),
        directory=str(place / "jobs" / "job-1"),
    )


async def order(it: Node, job: JobSpec | None, generation: int) -> None:
    await it.order(job, generation, (await it.registered()).facts.store_ports[generation % 4])


async def test_a_rank_runs_as_its_user_and_reaches_only_what_is_its_own(
    place: Path, nursery: Path, embedded_nats: str
) -> None:
    nobody = pwd.getpwnam(USER)
    async with node("job-user", place / "state", embedded_nats, {"HOLDFAST_JOBS_RUN_AS": USER}) as it:
        await it.complete()
        await order(it, spec(place, it, "wait"), 1)
        started = await it.heard.wait(RanksStarted)
        await it.heard.wait(FirstStep)
        assert Path(f"/proc/{started.ranks[0].pid}").stat().st_uid == nobody.pw_uid
        seen = json.loads((place / "jobs" / "job-1" / "seen").read_text())
        assert seen["ids"] == [[nobody.pw_uid] * 3, [nobody.pw_gid] * 3, []]
        assert seen["privileges"] == ["1", "0" * 16, "0" * 16]
        assert seen["home"] == nobody.pw_dir
        assert set(seen["files"].values()) == {"PermissionError"}, seen["files"]
        assert seen["sockets"] == {"zygote.sock": "PermissionError", "vault.sock": "open"}
        assert seen["agent"] == ["PermissionError", "PermissionError"]
        assert seen["own"] == ["open", "open"]
        await order(it, None, 2)
        stopped = await it.heard.wait(RanksStopped)
        assert stopped.ranks == (0,), "the agent ends ranks of another user"
        await order(it, spec(place, it), 3)
        await it.heard.wait(RanksFinished, lambda event: event.generation == 3)
        await order(it, spec(place, it, script="link.py"), 4)
        exited = await it.heard.wait(ProcessExited)
        assert exited.exit_code == EXIT_SETUP_FAILED
        assert f"the user {USER}, that ranks run as" in exited.log_tail
        assert f"{place / 'closed'} is closed to it" in exited.log_tail
        assert "Traceback" not in exited.log_tail


def test_a_user_that_is_missing_is_refused_with_its_name() -> None:
    with pytest.raises(JobUserRefused, match="'no-such-user': this machine has no such user"):
        find_job_user("no-such-user")
    assert find_job_user("") is None
    assert find_job_user(pwd.getpwuid(os.geteuid()).pw_name) is None
