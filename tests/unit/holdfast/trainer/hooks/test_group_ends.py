"""Before a process group ends, threads that wait for the interpreter's lock have it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.trainer.hooks import install_hooks
from holdfast.trainer.hooks.group_ends import after_last_collective


@pytest.fixture
def no_turns() -> Iterator[None]:
    """No thread has to hand the interpreter's lock to another one: so it is in a destructor of C++."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("no_turns")
@pytest.mark.parametrize(("hook", "is_over"), [(after_last_collective, True), (lambda destroy: destroy, False)])
def test_a_thread_lets_go_of_the_last_collective(
    hook: Callable[[Callable[..., Any]], Callable[..., Any]], is_over: bool
) -> None:
    may_go, has_gone = threading.Lock(), threading.Event()
    may_go.acquire()

    def let_go() -> None:
        with may_go:
            has_gone.set()

    worker = threading.Thread(target=let_go)
    worker.start()
    may_go.release()
    assert hook(lambda group: (group, has_gone.is_set()))("group") == ("group", is_over)
    worker.join()


def test_torch_has_the_hook() -> None:
    def destroy() -> None: ...

    torch_distributed = SimpleNamespace(init_process_group=lambda: None, destroy_process_group=destroy)
    install_hooks._patch_distributed(torch_distributed)  # type: ignore[arg-type]
    assert torch_distributed.destroy_process_group.__wrapped__ is destroy
