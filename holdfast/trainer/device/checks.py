"""The check of a step that what was copied is what the device had when the step was kept, to the bit.

The gate knows optimizers. A script that writes to parameters in another way, such as an average over steps that is
copied into them, may do so in the middle of a copy. So in some steps the device adds up the bits of what it has: when
the step is kept, and again when the optimizer comes to the gate. The host adds up what has come. A step whose sums
differ is not kept, and from then on everything is copied aside on the device first. In all other steps the device puts
blocks of copies aside when the step is kept, and the host compares what has come with these.

(A sum of the bits as integers. `torch.hash_tensor` takes their exclusive or, in which two equal elements cancel out: a
tensor of ones that becomes one of twos has the same.)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from holdfast.trainer.device.copy_plan import SHADOW, Copy

INTERVAL_VARIABLE = "HOLDFAST_DEVICE_CHECK_EVERY"
FIRST = 4
"""Number of the first steps after a change of layout that are all checked."""
EVERY = 64
"""Distance of the checked steps after the first ones. A check reads the state twice on the device (10 GB in some 7 ms)
and once in the host's memory."""
BLOCK_BYTES = 4096
"""Size of a block that is put aside."""
SAMPLED_MAX = 128
"""Number of copies of which blocks are put aside in one step, for it takes the host some microseconds each."""

log = logging.getLogger("holdfast.trainer.checkpoint")


def interval(text: str) -> int:
    """Return the number of steps from one check to the next, by its setting; what is no such number is logged."""
    if text.isdecimal():
        return int(text)
    log.warning("%s is %r: use a number of steps, or 0 for no checks; it is %d now", INTERVAL_VARIABLE, text, EVERY)
    return EVERY


def is_checked(kept: int, every: int = EVERY) -> bool:
    """Return True if a step is checked, given the number of steps that were kept before it in this layout."""
    return every > 0 and (kept < FIRST or kept % every == 0)


def has_words(tensor: torch.Tensor) -> bool:
    """Return True if a contiguous tensor's memory can be read in words of four bytes."""
    return tensor.nbytes % 4 == 0 and tensor.storage_offset() * tensor.element_size() % 4 == 0


def sum_of(tensor: torch.Tensor, *, in_words: bool) -> torch.Tensor:
    """Return the sum of a contiguous tensor's bits, on its device."""
    flat = tensor.detach().view(-1)
    return flat.view(torch.int32 if in_words else torch.uint8).sum(dtype=torch.int64)


class Check:
    """Sums over one step's `parts`, which are on the device: it holds no reference to them after the gate."""

    def __init__(self, parts: Sequence[torch.Tensor]) -> None:
        """Queue the sums on the current stream."""
        self._parts: Sequence[torch.Tensor] = parts
        self._in_words = [has_words(part) for part in parts]
        self._before = self._summed(parts)
        self._after: torch.Tensor | None = None
        self._event: torch.Event | None = None
        self._found: list[int] | None = None

    @torch.no_grad()
    def at_gate(self) -> None:
        """Queue the second sums on the current stream, which has waited for the copies."""
        if not self._parts:
            return  # let go of
        self._after = self._summed(self._parts)
        self._parts = ()
        self._event = torch.accelerator.current_stream().record_event()

    def let_go(self) -> None:
        self._parts = ()

    def differing(self, landed: Sequence[torch.Tensor]) -> list[int]:
        """Return the parts that did not come as they were. Waits for the current stream, which is behind the copies."""
        return self._unequal(self._summed(landed).tolist())

    def changed(self) -> list[int]:
        """Return the parts that something had changed when the optimizer came. Waits as `differing`."""
        if self._after is None or self._event is None:
            return []
        torch.accelerator.current_stream().wait_event(self._event)
        return self._unequal(self._after.cpu().tolist())

    def _summed(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack([sum_of(part, in_words=it) for part, it in zip(parts, self._in_words, strict=True)])

    def _unequal(self, sums: Sequence[int]) -> list[int]:
        if self._found is None:
            self._found = self._before.cpu().tolist()
        return [at for at, (was, now) in enumerate(zip(self._found, sums, strict=True)) if was != now]


class Samples:
    """Blocks of one step's copies, put aside on the device when the step is kept.

    A writer that changes all of a model, as one that brings in an average for a while, is found by them in each step:
    copies that began before it came differ at their end, and those that ended before it undid its work. If nothing but
    a part of the first copy was made meanwhile, that differs at its beginning. One that changes some rows is not found.
    """

    def __init__(self, parts: Sequence[torch.Tensor], copies: Sequence[Copy], turn: int = 0) -> None:
        """Queue it on the current stream. `parts`: what each copy reads, as bytes; shadows change no more. Of more
        than `SAMPLED_MAX` copies a part is taken, another part in the next `turn`.
        """
        taken = [number for number, copy in enumerate(copies) if copy.source != SHADOW]
        every = max(1, -(-len(taken) // SAMPLED_MAX))
        self._places: list[tuple[int, int]] = []
        blocks: list[torch.Tensor] = []
        for number in {*taken[:1], *taken[turn % every :: every]}:
            copy, part = copies[number], parts[number]
            for begin, end in _blocks(copy.nbytes, is_first=number == taken[0]):
                self._places.append((copy.offset + begin, copy.offset + end))
                blocks.append(part[begin:end])
        self._kept = torch.empty(sum(map(len, blocks)), dtype=torch.uint8, device=parts[0].device)
        if blocks:
            views = list(self._kept.split_with_sizes(list(map(len, blocks))))
            # In no stub of torch; its optimizers call it as well.
            torch._foreach_copy_(views, blocks)  # pyright: ignore[reportPrivateImportUsage]

    def differ(self, landed: torch.Tensor) -> bool:
        """Return True if the shard that came has others. Waits for the current stream, which is behind the copies."""
        kept = self._kept.cpu()
        return bool(self._places) and not torch.equal(torch.cat([landed[a:b] for a, b in self._places]), kept)


def _blocks(nbytes: int, *, is_first: bool) -> tuple[tuple[int, int], ...]:
    """Return the stretches of a copy that are put aside."""
    end = (max(0, nbytes - BLOCK_BYTES), nbytes)
    return ((0, min(BLOCK_BYTES, nbytes)), end) if is_first else (end,)


class Writes:
    """Counts of writes to one step's gated tensors: whether any came before an optimizer reached the gate, or their
    memory was taken away from under the copies.

    torch counts the writes to a tensor when they are queued, so a write that is counted after the copies have ended is
    in none of them. It does not count those to `tensor.data`, nor those of fused optimizers.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], parts: Sequence[torch.Tensor] = ()) -> None:
        """`parts` are the views by which they are copied: they stay with a storage that is resized."""
        self._tensors, self._parts = tensors, parts
        self._places = _places(parts)
        self._before = _counts(tensors)
        self._at_gate: list[int] | None = None

    def at_gate(self) -> None:
        """Note how often the tensors were written to so far; called before the optimizer writes."""
        if self._at_gate is None:
            self._at_gate = _counts(self._tensors)

    def were_made(self) -> bool:
        """Return the answer, once the copies have ended; from then on this holds no reference to the tensors."""
        now = _counts(self._tensors)
        # In this order, for an optimizer may come between the two lines.
        found = self._before != (now if self._at_gate is None else self._at_gate)
        found |= self._places != _places(self._parts)
        self._tensors = self._parts = ()
        return found


def _places(parts: Sequence[torch.Tensor]) -> list[int]:
    return [it.data_ptr() for it in parts]


def _counts(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [0 if it.is_inference() else it._version for it in tensors]
