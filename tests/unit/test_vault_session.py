"""One rank's connection to its vault, both in this process."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.vault_wire import (
    Answer,
    AskSteps,
    Done,
    Join,
    Lay,
    Request,
    Save,
    SealedStep,
    ShardName,
    Steps,
    receive_answer,
    send,
)
from holdfast_agent.vault import session
from holdfast_agent.vault.limits import Limits
from holdfast_agent.vault.node import Node
from holdfast_agent.vault.session import Session

NAME = ShardName(job="job", submitted_ms=1, world_size=2, rank=0)


class Rank:
    """Asks, and reads the answer."""

    def __init__(self, link: socket.socket, generation: int) -> None:
        self._link = link
        self._data = np.arange(1 << 16)
        assert self.ask(Join(name=NAME, generation=generation, pid=os.getpid())) == Done()
        nbytes = self._data.nbytes
        assert self.ask(Lay(nbytes=nbytes, index=b"", pieces=((self._data.ctypes.data, nbytes, 0),))) == Done()

    def ask(self, request: Request) -> Answer:
        send(self._link, request)
        return receive_answer(self._link)[0]

    def steps(self) -> tuple[SealedStep, ...]:
        answer = self.ask(AskSteps())
        assert isinstance(answer, Steps)
        return answer.sealed


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    it = Node(tmp_path, "127.0.0.1", Limits())
    yield it
    it.close()


@contextmanager
def rank(node: Node, generation: int = 1) -> Iterator[Rank]:
    ours, theirs = socket.socketpair()
    serving = threading.Thread(target=Session(theirs, node, copy_threads=1).run)
    serving.start()
    with ours:
        ours.settimeout(30)
        yield Rank(ours, generation)
    serving.join()


def at(step: int, generation: int = 1) -> SealedStep:
    return SealedStep(step=step, generation=generation)


@pytest.mark.parametrize("failure", [RuntimeError("can't start new thread"), MemoryError(), OSError(12, "no memory")])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_save_that_fails_holds_up_none_that_comes_after_it(
    node: Node, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rank(node) as asking:
        with monkeypatch.context() as patch:

            def fail(*_: object) -> Any:
                raise failure

            patch.setattr(session, "seal", fail)
            assert asking.ask(Save(step=1, objects=b"")) == Done()
            # Answered when that save is over.
            assert asking.steps() == ()
            assert not any(segment.is_filling for segment in node._shelves.of(NAME)._segments)
        assert asking.ask(Save(step=2, objects=b"")) == Done()
        assert asking.steps() == (at(2),)


def test_without_a_thread_for_it_a_rank_waits_for_its_save(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    with rank(node) as asking:
        with monkeypatch.context() as patch:

            def fail(*_: object) -> None:
                raise RuntimeError("can't start new thread")

            patch.setattr(threading.Thread, "start", fail)
            assert asking.ask(Save(step=1, objects=b"")) == Done()
        assert asking.steps() == (at(1),)
