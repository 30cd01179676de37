"""Zygotes that the nursery forks: like those that agents start, for agents that are like it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.daemon.nursery import NURSERY_VARIABLE
from holdfast.events import ProcessExited, Progress, RanksStarted
from holdfast.events.parts.job import JobSpec
from holdfast_agent.companions import nursery_link
from holdfast_agent.zygote.zygote import PID_FILE
from tests.integration.agent_node import Node, gone, node, parent_of, until
from tests.integration.servers import stands
from tests.nursery import public_environment, start_nursery

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

HERE = Path(__file__).parent
REASONS = {
    "variable": "variable OMP_NUM_THREADS",
    "preload": "variable LD_PRELOAD",
    "limit": "Max open files",
    "umask": "Umask",
    "priority": "priority",
    "processors": "Cpus_allowed",
    "oom": "OOM score",
    "ignored": "SigIgn",
    "blocked": "blocks other signals",
    "host name": "namespace uts",
    "cgroup": "cgroup",
    "code": "/torch",
    "release": "release 0.0.1",
}
ACCEPTED = ("same", "long variable", "interface", "network", "mounts")
STEPS = "import time, holdfast.trainer\nwhile True:\n    holdfast.trainer.step(loss=1.0)\n    time.sleep(0.01)\n"


def words(pid: int, what: str) -> list[str]:
    return Path(f"/proc/{pid}/{what}").read_bytes().rstrip(b"\0").decode().split("\0")


def opened(pid: int) -> set[str]:
    """Files, pipes and sockets, each with what distinguishes it from others."""
    names = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    return {name for name in names if not name.startswith("anon_inode:")}


def births(log: Path) -> list[int]:
    """The zygotes that a nursery has forked."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line["pid"] for line in lines if line["event"] == "a zygote is born"]


async def start_rank(it: Node, folder: Path, generation: int = 1) -> int:
    """Order a rank that steps for as long as it lives, and wait for its first steps; return its pid."""
    script = folder / "steps.py"
    script.write_text(STEPS)
    job = JobSpec(name="job-1", script=str(script), cwd=str(folder), directory=str(folder))
    await it.order(job, generation, (await it.registered()).facts.store_ports[0])
    started = await it.heard.wait(RanksStarted, lambda event: event.generation == generation)
    await it.heard.wait(Progress, lambda event: event.generation == generation and event.step >= 0)
    return started.ranks[0].pid


@pytest.fixture(autouse=True)
def _environment_at_start(environment_at_start: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what other tests of this worker have left in the environment, and what pytest changes for each."""
    for name in set(os.environ) - set(environment_at_start):
        if not name.startswith("HOLDFAST_"):
            monkeypatch.delenv(name)
    for name, value in environment_at_start.items():
        if not name.startswith("HOLDFAST_"):
            monkeypatch.setenv(name, value)


@pytest.fixture
def own_place(tmp_path: Path) -> Iterator[Path]:
    """A node's state that no other test has used, so that its zygote is new."""
    place = tmp_path / "state"
    yield place
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int((place / PID_FILE).read_text()), signal.SIGKILL)


@pytest.fixture(scope="module")
def answers(
    tmp_path_factory: pytest.TempPathFactory, nursery: Path, environment_at_start: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """What agents that differ from the nursery in one thing each were answered; by then it has imported torch."""
    script = HERE / "nursery_agents.py"
    done = subprocess.run(
        [sys.executable, "-P", str(script), str(tmp_path_factory.mktemp("agents")), *ACCEPTED, *REASONS],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
        stdin=subprocess.DEVNULL,
        env=environment_at_start | {NURSERY_VARIABLE: os.environ[NURSERY_VARIABLE]},
    )
    assert done.returncode == 0, done.stderr
    return {answer["case"]: answer for answer in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("case", ACCEPTED)
def test_an_agent_like_the_nursery_gets_its_child(answers: dict[str, dict[str, Any]], nursery: Path, case: str) -> None:
    answer = answers[case]
    if "missing" in answer:
        pytest.skip(answer["missing"])
    assert "reason" not in answer, answer
    assert answer["pid"] in births(nursery)
    assert not answer["mine"]
    assert answer["namespaces"] == answer["agents_namespaces"]
    assert answer["directory"] == answer["agents_directory"]


@pytest.mark.parametrize("case", REASONS)
def test_an_agent_that_differs_is_declined(answers: dict[str, dict[str, Any]], case: str) -> None:
    answer = answers[case]
    if "missing" in answer:
        pytest.skip(answer["missing"])
    assert REASONS[case] in answer.get("reason", ""), answer


@pytest.mark.usefixtures("answers")
async def test_a_zygote_of_the_nursery_is_like_one_of_the_agent(
    own_place: Path, nursery: Path, embedded_nats: str
) -> None:
    settings = {"HOLDFAST_NODE_DIR": str(own_place)}
    async with node("nu-same", own_place, embedded_nats, settings, is_executed=True) as it:
        await it.complete()
        zygote, agent = it.zygote, it.process.pid
        assert zygote in births(nursery)
        assert os.getsid(zygote) == os.getpgid(zygote) == zygote
        flags = ["--state-dir", str(own_place), "--address", "127.0.0.1"]
        assert words(zygote, "cmdline")[1:] == ["-P", "-m", "holdfast_agent.zygote", *flags]
        shown = set(words(zygote, "environ"))
        private = ("HOLDFAST_NATS_URL", "HOLDFAST_NETWORK_ORDER_KEYS", NURSERY_VARIABLE)
        assert shown == {entry for entry in words(agent, "environ") if entry.partition("=")[0] not in private}
        assert f"HOLDFAST_NODE_DIR={own_place}" in shown
        output = os.stat(own_place / "zygote.log")
        for descriptor in (1, 2):
            assert os.path.samestat(os.stat(f"/proc/{zygote}/fd/{descriptor}"), output)
        assert os.readlink(f"/proc/{zygote}/fd/0") == os.devnull
        assert opened(zygote) & opened(parent_of(zygote)) == {os.devnull}


@pytest.mark.usefixtures("answers")
async def test_a_killed_zygote_of_the_nursery_takes_its_rank_and_is_replaced(
    own_place: Path, nursery: Path, tmp_path: Path, embedded_nats: str
) -> None:
    async with node("nu-zygote", own_place, embedded_nats) as it:
        before = await it.complete()
        rank, zygote = await start_rank(it, tmp_path), it.zygote
        os.kill(zygote, signal.SIGKILL)
        exited = await it.heard.wait(ProcessExited)
        assert "zygote" in exited.detail
        await gone(rank)
        await it.complete(after=before)
        assert it.zygote != zygote
        assert {zygote, it.zygote} <= set(births(nursery))
        await start_rank(it, tmp_path, generation=2)


@pytest.mark.usefixtures("answers")
async def test_a_zygote_of_the_nursery_ends_when_its_agent_does_not_come_back(
    own_place: Path, nursery: Path, tmp_path: Path, embedded_nats: str
) -> None:
    (tmp_path / "holdfast.toml").write_text(
        "[timeouts]\norphan_s = 1.0\nheartbeat_s = 0.1\nnode_lost_s = 0.5\nlease_s = 5.0"
    )
    settings = {"HOLDFAST_CONFIG": str(tmp_path / "holdfast.toml")}
    async with node("nu-orphan", own_place, embedded_nats, settings) as it:
        await it.complete()
        rank, zygote = await start_rank(it, tmp_path), it.zygote
        assert zygote in births(nursery)
        it.kill_agent()
        await gone(rank)
        await gone(zygote)


@pytest.fixture
def unfit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A nursery that cannot import torch, for this process."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    socket = tmp_path / "nursery.sock"
    process = start_nursery(socket, tmp_path / "nursery.log", public_environment() | {"PYTHONPATH": str(tmp_path)})
    monkeypatch.setenv(NURSERY_VARIABLE, str(socket))
    yield process
    process.kill()
    process.wait()


async def test_a_stopped_nursery_is_not_waited_for(unfit: subprocess.Popen[bytes], tmp_path: Path) -> None:
    unfit.send_signal(signal.SIGSTOP)
    await until(lambda: stands(unfit.pid))
    with pytest.raises(nursery_link.NoBirth, match="stopped"):
        await nursery_link.ask(tmp_path / "nursery.sock", tmp_path, "127.0.0.1", tmp_path / "zygote.log")
    unfit.send_signal(signal.SIGCONT)
    # The agent starts its zygote itself now: there must not be a second one.
    await until(lambda: "the agent no longer waits" in (tmp_path / "nursery.log").read_text())


async def test_without_an_answer_in_time_the_agent_starts_its_zygote_itself(
    unfit: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfit.send_signal(signal.SIGSTOP)
    within_s = nursery_link.LOOK_EVERY_S / 2
    assert await nursery_link.born(tmp_path, "127.0.0.1", tmp_path / "zygote.log", within_s) is None


async def test_a_nursery_without_torch_declines_and_leaves_in_order(
    unfit: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    socket = tmp_path / "nursery.sock"
    with pytest.raises(nursery_link.NoBirth, match="no torch here"):
        await nursery_link.ask(socket, tmp_path, "127.0.0.1", tmp_path / "zygote.log")
    unfit.terminate()
    assert await asyncio.to_thread(unfit.wait) == 0
    assert not socket.exists()
