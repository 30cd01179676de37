"""The nursery serves the process that connected, and no other one that gets its number later."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_agent.zygote import inherited
from holdfast_agent.zygote.__main__ import listen
from holdfast_agent.zygote.birth import BirthRequest, Declined
from holdfast_agent.zygote.nursery import Nursery, _open_places
from tests.integration.nursery_agents import CLONE_NEWNET, CLONE_NEWNS, unshare
from tests.integration.test_vault_held_process import WHERE_NUMBERS_CAN_BE_CHOSEN, process_of_number

pytestmark = pytest.mark.integration

AGENTS = 40


@pytest.mark.skipif(os.geteuid() != 0, reason="numbers cannot be chosen here")
def test_no_other_process_is_taken_for_an_agent_that_has_ended_and_no_descriptor_is_lost(tmp_path: Path) -> None:
    if subprocess.run((*WHERE_NUMBERS_CAN_BE_CHOSEN, "true"), capture_output=True, check=False).returncode:
        pytest.skip("no namespace of processes can be made here")
    argv = (*WHERE_NUMBERS_CAN_BE_CHOSEN, sys.executable, "-m", "tests.integration.test_nursery_peer", str(tmp_path))
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_all_agents_of_a_machine_can_ask_while_the_nursery_imports(tmp_path: Path) -> None:
    with listen(tmp_path, "nursery.sock"), contextlib.ExitStack() as opened:
        for _ in range(AGENTS):
            agent = opened.enter_context(socket.socket(socket.AF_UNIX))
            agent.setblocking(False)
            agent.connect(str(tmp_path / "nursery.sock"))


def _ask_by_a_number_given_twice(directory: Path) -> None:
    request = BirthRequest(
        state_dir=str(directory),
        address="127.0.0.1",
        environment=tuple(name + b"=" + value for name, value in os.environb.items()),
        python=inherited.python(),
        release=inherited.RELEASE,
        blocked=inherited.blocked_signals(),
    )
    with listen(directory, "nursery.sock") as listener:
        nursery = Nursery(listener, request.environment, None)
        held, held_in = os.pipe()
        agent = _agent_with_a_child(directory / "nursery.sock", held, held_in)
        os.waitpid(agent, 0)
        connection, _ = listener.accept()
        received = [os.open(os.devnull, os.O_RDWR), os.open(os.devnull, os.O_RDWR)]
        with connection, process_of_number(agent):
            reply, _ = nursery._answer(connection, request, received)
        os.close(held_in)
    assert reply == Declined(reason="[Errno 3] No such process")


def _agent_with_a_child(place: Path, held: int, held_in: int) -> int:
    """Return a process that connects and ends; its child keeps the connection until the pipe is closed."""
    agent = os.fork()
    if agent:
        return agent
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(place))
    if os.fork() == 0:
        os.close(held_in)
        os.read(held, 1)
    os._exit(0)


def _open_with_too_few_descriptors() -> None:
    """What is open when an error is raised is known, so that it can be closed."""
    ready, ready_in = os.pipe()
    agent = os.fork()
    if agent == 0:
        unshare(CLONE_NEWNS | CLONE_NEWNET)
        os.write(ready_in, b"1")
        signal.pause()
    os.read(ready, 1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(ready)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, limits[1]))
    opened: list[int] = []
    with pytest.raises(OSError, match="Too many open files"):
        _open_places(agent, opened)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    assert opened == [free, free + 1]


if __name__ == "__main__":
    _open_with_too_few_descriptors()
    _ask_by_a_number_given_twice(Path(sys.argv[1]))
