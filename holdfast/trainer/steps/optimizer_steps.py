"""Turns steps of an optimizer into steps of the job, and at the first one finds the step from which the job goes on."""

from __future__ import annotations

import time
import weakref
from typing import Any, ClassVar, NamedTuple

from holdfast.trainer.hooks.holding import wait_if_held
from holdfast.trainer.known_imports import note_imports
from holdfast.trainer.phases import binding
from holdfast.trainer.steps.counted_optimizer import CountedOptimizer
from holdfast.trainer.steps.guard import harmless
from holdfast.trainer.steps.notes import COUNTS_BEGIN_AGAIN, is_marked, mark
from holdfast.trainer.steps.step_start import count_of
from holdfast.trainer.steps.weights import compared, note_unmoved, weights_of

MOVED_BY_STEPS = 10
"""Number of steps after which the weights are others than the first: a rate that warms up may begin at 0."""


class State(NamedTuple):
    """An optimizer's own count of steps, and a digest of its weights; None: it has none, or cannot be read."""

    own_count: int | None = None
    weights: str | None = None


class _Now:
    counted = CountedOptimizer()
    read = State()
    read_at = -1
    """Number of steps at which it was read: a script may save many files after one step."""
    module: Any = None
    """torch.optim.optimizer."""
    before_first: Any = None
    """Handle of the hook on the first step."""
    weights: str | None = None
    watched: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()
    """Optimizers that have a hook on loads of their state."""


def begin() -> None:
    """Forget which optimizer counts, and the weights that the first one began with."""
    _Now.counted, _Now.weights, _Now.read_at = CountedOptimizer(), None, -1


def state() -> State:
    """Return what the optimizer that counts has counted by itself, and the weights that it has reached."""
    steps_done = 0 if binding.ledger is None else binding.ledger.steps_done
    if _Now.read_at != steps_done:
        _Now.read, _Now.read_at = State(), steps_done
        _read_state()
    return _Now.read


@harmless
def _read_state() -> None:
    if (optimizer := _Now.counted.optimizer) is not None:
        _Now.read = State(count_of(optimizer), weights_of(optimizer))


def hook(module: Any) -> None:
    """Hook the steps of all optimizers."""
    _Now.module, _Now.before_first = module, module.register_optimizer_step_pre_hook(_before_step)
    module.register_optimizer_step_post_hook(_on_step)


@harmless
def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    is_known = binding.explicit or binding.framework or binding.is_begun
    if _Now.weights is None and binding.ledger is not None and not is_known:
        _Now.weights = weights_of(optimizer)


def _on_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    ledger, recorder = binding.ledger, binding.recorder
    if recorder is None and (ledger is None or ((binding.explicit or binding.framework) and ledger.steps_done)):
        return
    now = time.time_ns(), time.monotonic_ns()
    taken = _Now.counted.take(optimizer, now)
    if recorder is not None:
        recorder.optimizer_stepped(optimizer, is_counted=bool(taken.moments))
    if ledger is None or not taken.moments:
        return
    if ledger.steps_done == 0 and binding.unsettled_ns is None:
        _note_start(optimizer)
        _watch_loads(optimizer)
        note_imports()
    if binding.explicit or binding.framework:
        return
    moments = taken.moments
    if binding.unsettled_ns is None and ledger.steps_done == 0:
        binding.unsettled_ns = now
        return
    binding.settle()
    for moment in moments:
        ledger.complete_step(at_ns=moment)
    if ledger.steps_done == MOVED_BY_STEPS:
        _compare_weights(optimizer)
    if taken.has_changed:
        _note_change(optimizer)
        _watch_loads(optimizer)
    wait_if_held()


@harmless
def _watch_loads(optimizer: Any) -> None:
    if optimizer not in _Now.watched:
        _Now.watched.add(optimizer)
        optimizer.register_load_state_dict_post_hook(_on_load)


@harmless
def _on_load(optimizer: Any) -> None:
    """An older state that is loaded while it trains counts from there: steps that were thrown away, or the best
    state.
    """
    if binding.explicit or binding.framework or binding.ledger is None or optimizer is not _Now.counted.optimizer:
        return
    if binding.is_begun:
        _note_change(optimizer)
    elif binding.unsettled_ns is not None:
        # The one step before it is thrown away: `torch.distributed.checkpoint.state_dict` makes one so that an
        # optimizer has a state that a checkpoint can be loaded into.
        binding.unsettled_ns = _Now.weights = None
        _Now.before_first = _Now.module.register_optimizer_step_pre_hook(_before_step)


@harmless
def _note_start(optimizer: Any) -> None:
    if _Now.before_first is not None:
        _Now.before_first.remove()
        _Now.before_first = None
    if is_marked(COUNTS_BEGIN_AGAIN):
        binding.start.note_that_counts_begin_again()
    if _Now.weights is not None:
        binding.start.note_weights(_Now.weights, compared(_Now.weights))
    binding.start.note_optimizer(optimizer)


@harmless
def _compare_weights(optimizer: Any) -> None:
    """See whether training has changed the weights, as the digest shows them."""
    if _Now.weights is not None and weights_of(optimizer) == _Now.weights:
        note_unmoved(_Now.weights)


@harmless
def _note_change(optimizer: Any) -> None:
    """Another optimizer counts from now on, or the same one from another state. If its own count does not go on from
    the one before, it shows nothing to later generations.
    """
    if not binding.start.goes_on(count_of(optimizer), binding.steps_completed()):
        mark(COUNTS_BEGIN_AGAIN)
