"""Hooks on PyTorch's process groups: every operation that Python starts is in the rank's ring of collectives.

They sit on the methods of `ProcessGroup`, below all of torch.distributed's functions, so what imported those by name,
FSDP2 and pipelines are covered. What C++ starts by itself (DDP's buckets, functional collectives of DTensor) does not
pass here: of it the ring has how many operations the group's backend has begun, read by a thread twice a second.

What runs on a device is marked: its times are the host's, when it was queued and when the host went on.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from holdfast.node.collectives.ring_layout import GROUP_UNKNOWN, IS_P2P, ON_DEVICE, OPERATIONS
from holdfast.trainer.hooks.holding import wait_if_held
from holdfast.trainer.hooks.kernel_starts import Marks
from holdfast.trainer.hooks.ring_writer import RingWriter
from holdfast.trainer.phases import binding

LOOK_AFTER_EVERY_S = 0.5
PENDING_MAX = 4096
"""Asynchronous operations that no thread has waited for yet; older ones count as over."""

ASK_EVERY = 16
"""Distance of the collectives at which a group's backend is asked for its sequence number, once C++ code had begun no
collective at as many such questions. All ranks ask at the same collectives, so they number them alike.
"""

_METHODS: dict[str, tuple[str, int]] = {
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("all_reduce_coalesced", 0),
    "allgather": ("all_gather", 1),
    "_allgather_base": ("all_gather_into_tensor", 1),
    "all_gather_single": ("all_gather_into_tensor", 1),
    "allgather_coalesced": ("all_gather_coalesced", 1),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor_coalesced", 1),
    "all_gather_single_coalesced": ("all_gather_into_tensor_coalesced", 1),
    "reduce_scatter": ("reduce_scatter", 1),
    "_reduce_scatter_base": ("reduce_scatter_tensor", 1),
    "reduce_scatter_single": ("reduce_scatter_tensor", 1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", 1),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced", 1),
    "alltoall": ("all_to_all", 1),
    "alltoall_base": ("all_to_all_single", 1),
    "all_to_all_single": ("all_to_all_single", 1),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
    "gather": ("gather", 1),
    "scatter": ("scatter", 0),
    "barrier": ("barrier", -1),
    "monitored_barrier": ("monitored_barrier", -1),
}
"""Methods of `ProcessGroup`: the operation, and the argument that has its size (the input; of a scatter the output)."""

_RETURN_FUTURES = {"allreduce_coalesced", "allgather_coalesced"}
"""Methods whose asynchronous calls give the script no `Work`."""

_P2P_METHODS = {"send": "send", "recv": "recv", "recv_anysource": "recv"}


_weak = weakref.ref


class RingGroup:
    __slots__ = ("agreed", "backend_counts_p2p", "collectives", "group", "p2p", "place", "ranks", "unasked")

    def __init__(self, group: Any, place: int, ranks: tuple[int, ...]) -> None:
        self.group = weakref.ref(group)
        self.place = place
        self.ranks = ranks
        self.collectives = 0
        self.p2p = 0
        self.backend_counts_p2p: bool | None = None
        self.unasked = 0
        """Collectives that follow before the backend is asked again."""
        self.agreed = 0
        """Number of answers in a row by which C++ had begun none."""

    def next_sequence(self, group: Any) -> int:
        """Return the number of the collective that begins. C++ may have begun some meanwhile, which only the backend
        counts.
        """
        self.collectives = sequence = self.collectives + 1
        if self.unasked:
            self.unasked -= 1
            return sequence
        begun = self.begun_by_backend(group)
        self.agreed = self.agreed + 1 if begun in (-1, sequence - 1) else 0
        self.unasked = ASK_EVERY - 1 if self.agreed >= ASK_EVERY else 0
        if begun >= 0:
            self.collectives = sequence = begun + 1
        return sequence

    def begun_by_backend(self, group: Any) -> int:
        """Return the collectives that the backend has begun, by any caller; -1: it does not report them."""
        try:
            begun: int = group._get_sequence_number_for_group()
        except RuntimeError:
            return -1
        return begun - self.p2p if self.backend_counts_p2p else begun


class _Marked:
    marks: Marks | None = None


def put_marks(marks: Marks) -> None:
    """Mark what runs on a device where it begins, from now on."""
    if binding.ring is not None:
        _Marked.marks = marks
        binding.ring.marks_are_put()


class _Looking:
    after: RingWriter | None = None


_groups: dict[int, RingGroup] = {}
"""Ring entries by the identity of the process group, until it is gone or replaced."""

_pending: dict[int, tuple[Any, int, int, int, int]] = {}
"""Asynchronous operations by the identity of their `Work`, an object of C++ that accepts no attributes: a weak
reference to it, then what `RingWriter.leave` asks for."""


def patch_process_groups(module: ModuleType) -> None:
    process_group = module.ProcessGroup
    ranks_of = module.get_process_group_ranks
    for name, (operation, payload) in _METHODS.items():
        original = getattr(process_group, name, None)
        if original is not None:
            number, returns_work = OPERATIONS.index(operation), name not in _RETURN_FUTURES
            hook = _recorded(original, number, payload, ranks_of, returns_work=returns_work)
            setattr(process_group, name, hook)
    for name, operation in _P2P_METHODS.items():
        original = getattr(process_group, name, None)
        if original is not None:
            setattr(process_group, name, _recorded_p2p(original, OPERATIONS.index(operation), name, ranks_of))
    module.Work.wait = _recorded_wait(module.Work.wait)


def group_known(group: Any, ring: RingWriter) -> RingGroup:
    """Return the group as the ring has it."""
    from torch.distributed import get_process_group_ranks

    known = _groups.get(id(group))
    return known if known is not None and known.group() is group else _group_of(group, ring, get_process_group_ranks)


def _group_of(group: Any, ring: RingWriter, ranks_of: Callable[[Any], list[int]]) -> RingGroup:
    try:
        ranks = tuple(ranks_of(group))
    except (KeyError, ValueError):
        # A group that was made beside torch.distributed.
        ranks = ()
    known = RingGroup(group, ring.add_group(str(group.group_name), str(group.group_desc), ranks), ranks)
    _groups[id(group)] = known
    if _Looking.after is not ring:
        _Looking.after = ring
        threading.Thread(target=_look_after_for_good, args=(ring,), name="holdfast-collectives", daemon=True).start()
    return known


def recorded_call(original: Callable[..., Any], name: bytes, work_type: type) -> Callable[..., Any]:
    """Hook a function of torch.distributed that can wait for another rank.

    The one collective that it begins is over when it returns, unless it returns the `Work` of it.
    """

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        ledger = binding.ledger
        if ledger is None:
            return original(*args, **kwargs)
        here = ledger.calls.here
        before, here.begun = here.begun, None
        ledger.enter_collective(name)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            # A wait that fails leaves its operation as it is: it has not ended.
            here.begun = before
            raise
        finally:
            ledger.leave_collective()
        begun, here.begun = here.begun, before
        if begun is not None:
            ring, index, place, sequence, flags = begun
            if isinstance(result, work_type):
                _issued(ring, result, index, place, sequence, flags)
            else:
                ring.leave(index, place, sequence, flags)
        return result

    return call


def _recorded(
    original: Callable[..., Any],
    operation: int,
    payload: int,
    ranks_of: Callable[[Any], list[int]],
    *,
    returns_work: bool,
) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        ring = binding.ring
        if ring is None:
            return original(group, *args, **kwargs)
        if ring.hold_wanted:
            wait_if_held()
        known = _groups.get(id(group))
        if known is None or known.group() is not group:
            known = _group_of(group, ring, ranks_of)
        sequence = known.next_sequence(group)
        size, flags = _payload(args[payload]) if 0 <= payload < len(args) else (0, 0)
        place = known.place
        index = ring.enter(place, sequence, operation, size, -1, flags)
        if flags and _Marked.marks is not None:
            _Marked.marks.put(index)
        try:
            work = original(group, *args, **kwargs)
        except BaseException:
            ring.leave(index, place, sequence, flags)
            raise
        if work is None:
            ring.leave(index, place, sequence, flags)
            return None
        ledger = binding.ledger
        if returns_work and ledger is not None and (here := ledger.calls.here).depth and here.begun is None:
            # `recorded_call` sees the end.
            here.begun = (ring, index, place, sequence, flags)
        else:
            _issued(ring, work, index, place, sequence, flags)
        return work

    return call


def _recorded_p2p(
    original: Callable[..., Any], operation: int, name: str, ranks_of: Callable[[Any], list[int]]
) -> Callable[..., Any]:
    has_peer = name != "recv_anysource"

    @functools.wraps(original)
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        ring = binding.ring
        if ring is None:
            return original(group, *args, **kwargs)
        if ring.hold_wanted:
            wait_if_held()
        known = _groups.get(id(group))
        if known is None or known.group() is not group:
            known = _group_of(group, ring, ranks_of)
        peer = -1
        if has_peer and len(args) > 1 and 0 <= args[1] < len(known.ranks):
            peer = known.ranks[args[1]]
        before = known.begun_by_backend(group) if known.backend_counts_p2p is None else 0
        known.p2p = sequence = known.p2p + 1
        size, flags = _payload(args[0]) if args else (0, 0)
        index = ring.enter(known.place, sequence, operation, size, peer, flags | IS_P2P)
        if _Marked.marks is not None and flags & ON_DEVICE:
            _Marked.marks.put(index)
        work = None
        try:
            work = original(group, *args, **kwargs)
        finally:
            if work is None:
                ring.leave(index, known.place, sequence, flags | IS_P2P)
            else:
                _issued(ring, work, index, known.place, sequence, flags | IS_P2P)
        if known.backend_counts_p2p is None:
            known.backend_counts_p2p = known.begun_by_backend(group) > before
        return work

    return call


def _issued(ring: RingWriter, work: Any, index: int, place: int, sequence: int, flags: int) -> None:
    """Note that a call has come back with a `Work`: the operation is over when that has been waited for."""
    ring.issued(index)
    key = id(work)
    if key in _pending:
        # One at this address was dropped: this one takes its place there.
        _over(ring, _pending.pop(key, None))
    _pending[key] = (_weak(work), index, place, sequence, flags)
    if len(_pending) > PENDING_MAX:
        with contextlib.suppress(StopIteration, KeyError, RuntimeError):
            _over(ring, _pending.pop(next(iter(_pending))))


def _over(ring: RingWriter, pending: tuple[Any, int, int, int, int] | None) -> None:
    if pending is not None:
        _, index, place, sequence, flags = pending
        ring.leave(index, place, sequence, flags)


def _recorded_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        ledger, ring = binding.ledger, binding.ring
        here = None if ledger is None else ledger.calls.here
        if here is not None and here.begun is not None:
            return original(work, *args, **kwargs)
        begun = None if ring is None else _pending.get(id(work))
        if ring is not None and begun is not None:
            ring.wait(begun[1])
        # An asynchronous collective blocks here, not in its call. A call that waits itself is in the ledger already.
        if ledger is None or here is None or here.depth:
            # A wait that fails leaves it as it is: it has not ended.
            result = original(work, *args, **kwargs)
        else:
            ledger.enter_collective(b"wait")
            try:
                result = original(work, *args, **kwargs)
            finally:
                ledger.leave_collective()
        if ring is not None and begun is not None and _pending.pop(id(work), None) is begun:
            ring.leave(begun[1], begun[2], begun[3], begun[4])
        return result

    return wait


def _payload(payload: Any) -> tuple[int, int]:
    """Return the bytes of a tensor or of lists of them, and the flag for where they are."""
    while type(payload) is list:
        if len(payload) != 1:
            parts = [_payload(part) for part in payload]
            return sum(size for size, _ in parts), max((flags for _, flags in parts), default=0)
        (payload,) = payload
    try:
        return payload.nbytes, 0 if payload.is_cpu else ON_DEVICE
    except AttributeError:
        return 0, 0


def look_after(ring: RingWriter) -> None:
    """Note what the backends have begun and what was dropped without a wait; if asked, the marks that were reached."""
    if _Marked.marks is not None and (wanted := ring.marks_wanted):
        ring.answer_marks(wanted, _Marked.marks.reached())
    for key, known in list(_groups.items()):
        group = known.group()
        if group is None:
            if _groups.get(key) is known:
                del _groups[key]
            continue
        begun = -1 if known.place == GROUP_UNKNOWN else known.begun_by_backend(group)
        if begun >= 0:
            ring.backend_has_begun(known.place, begun)
    for key, pending in list(_pending.items()):
        if pending[0]() is None and _pending.get(key) is pending:
            del _pending[key]
            _over(ring, pending)


def _look_after_for_good(ring: RingWriter) -> None:
    # A separate thread: the others may be in C++ when it matters.
    while binding.ring is ring:
        look_after(ring)
        time.sleep(LOOK_AFTER_EVERY_S)
