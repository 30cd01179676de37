"""A place in a DataLoader: which random numbers its order comes from, and an iteration that begins there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset


def generators_of(loader: Any) -> list[torch.Generator]:
    """Return the generators that a loader's order is drawn from, apart from torch's default one."""
    found: list[torch.Generator] = []
    waiting, seen = [loader], set[int]()
    while waiting:
        it = waiting.pop()
        if it is None or id(it) in seen:
            continue
        seen.add(id(it))
        if isinstance(generator := getattr(it, "generator", None), torch.Generator):
            found.append(generator)
        # Samplers in batch samplers, which accelerate and Lightning wrap once more.
        waiting += [getattr(it, name, None) for name in ("sampler", "batch_sampler")]
    unique = {id(generator): generator for generator in found}
    return list(unique.values())


def generator_states(loader: Any) -> list[bytes]:
    return [generator.get_state().numpy().tobytes() for generator in generators_of(loader)]


def set_generators(loader: Any, states: list[bytes]) -> None:
    for generator, state in zip(generators_of(loader), states, strict=False):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def begin_after(loader: DataLoader[Any], batches: int) -> None:
    """Have the next iteration of a loader begin after `batches` batches; later iterations begin at the first batch.

    Skipped batches are not read, only their order is drawn; an `IterableDataset` has no indices, so they are read.
    """
    if batches <= 0:
        return
    original = type(loader)
    later: type[Any] = type(original.__name__, (original,), {"__iter__": _iterate_from_place})
    loader.__dict__.update(_holdfast_class=original, _holdfast_batches=batches)
    # Not by assignment: accelerate's loaders have a property of this name.
    _set_class(loader, later)


def _iterate_from_place(loader: Any) -> Iterator[Any]:
    original, batches = loader.__dict__.pop("_holdfast_class"), loader.__dict__.pop("_holdfast_batches")
    _set_class(loader, original)
    loader._iterator = None  # workers that stay begin with the order of this iteration
    if isinstance(loader.dataset, IterableDataset):
        stream: Iterator[Any] = iter(loader)
        for _ in islice(stream, batches):
            pass
        return stream
    name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    whole = getattr(loader, name)
    # A loader refuses the assignment, lest its other settings disagree: they do not.
    loader.__dict__[name] = _After(whole, batches)
    try:
        iterator: Iterator[Any] = iter(loader)
    finally:
        # Workers that stay have it in later iterations too, where it leaves nothing out.
        loader.__dict__[name] = whole
    return iterator


class _After:
    """A sampler whose first iteration begins later."""

    def __init__(self, whole: Any, count: int) -> None:
        self._whole = whole
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        # At the first draw: a loader with workers that stay asks for two iterations, and draws from the second one.
        count, self._count = self._count, 0
        yield from islice(iter(self._whole), count, None)

    def __len__(self) -> int:
        return len(self._whole)

    def __getattr__(self, name: str) -> Any:
        if name == "_whole":
            raise AttributeError(name)
        return getattr(self._whole, name)


def _set_class(value: object, kind: type[Any]) -> None:
    object.__dict__["__class__"].__set__(value, kind)
