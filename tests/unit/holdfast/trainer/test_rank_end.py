"""What the end of a rank leaves out: work for a process that goes on, which the kernel does away with anyway."""

from __future__ import annotations

import weakref

import torch

from holdfast.trainer.rank import _keep_operators


def test_operators_stay_registered_and_what_a_script_wants_done_is_done() -> None:
    registry = weakref.finalize._registry  # type: ignore[attr-defined]
    before = set(registry)
    library = torch.library.Library("holdfast_test", "DEF")  # type: ignore[no-untyped-call]
    (deregister,) = set(registry) - before
    wanted = weakref.finalize(library, print)
    assert deregister.atexit
    _keep_operators()
    assert not deregister.atexit
    assert wanted.atexit
    wanted.detach()
