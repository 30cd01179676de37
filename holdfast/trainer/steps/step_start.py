"""The step from which a process goes on, if its script does not report it: found in what the script restores.

The best witness is the optimizer: Adam and most others count their own steps and keep the count with their state, so a
count above 0 after the first step shows both that the script restored it and how far it was. Where the script makes a
new optimizer while it trains, that count is not the job's: what was noted when the file was saved relates the two.
Second is a number with a telling name in what the script loads, or the step at which that was saved, if they do not
agree. A script that has loaded nothing of this job, and begins with the weights of the job's first step or with an
optimizer that counts from 0, began at 0. In all other cases nothing shows from which step the script goes on.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.node.ledger.ledger_layout import Source

SUBMITTED_VARIABLE = "HOLDFAST_JOB_SUBMITTED_MS"
GENERATION_VARIABLE = "HOLDFAST_GENERATION"

NAMES = (
    "global_step",
    "global_steps",
    "iter_num",
    "iteration",
    "step",
    "steps",
    "num_updates",
    "train_step",
    "current_step",
    "step_num",
    "iter",
)
"""Names of a script's step counter, the most telling first."""
ENTRIES_MAX = 256
"""A larger mapping holds tensors, not counters."""
PARAMETERS_READ = 64
LATE_STEPS_MAX = 10
"""Number of steps that training may make from the copy of a state until its save begins, in another thread."""

OPTIMIZER_STATE = "the optimizer's restored state"
SAVED = "the save"
"""Stands for a number that was noted when a file was saved."""
NOT_THE_FIRST_WEIGHTS = "its weights are not those of the first step"
UNMOVED_WEIGHTS = "the first steps do not change its weights where they are compared"
NO_SAVED_WEIGHTS = "its weights are not those of a save with this number"
DIFFERENT_STEPS = "its files are of different steps"
BEGINS_AGAIN = "its optimizers begin again while it trains"


class Start(NamedTuple):
    """`done`: number of steps that were completed before, 0 if it is not known."""

    done: int
    source: Source
    name: str = ""
    is_known: bool = True


class Saved(NamedTuple):
    """When a file was saved: the number of steps that the job had completed, and its optimizer had counted, and a
    digest of the weights that this had reached.
    """

    done: int
    own_count: int | None = None
    weights: str | None = None


class Weights(enum.Enum):
    """The weights with which training begins, beside those of the job's first step, as digests show them."""

    FIRST = enum.auto()
    OTHER = enum.auto()
    UNMOVED = enum.auto()
    """They are the same, but the first steps did not change them either."""


class _Number(NamedTuple):
    done: int
    name: str
    is_of_job: bool
    weights: str | None
    """A digest of the weights when it was saved."""
    is_copy: bool


class _Save(NamedTuple):
    saved: Saved
    file: str
    is_copy: bool
    """It was found by its number only, which other saves may have had as well."""


class StepStart:
    """Evidence for the step from which this process goes on: what it loaded, its optimizer's count, its first
    weights."""

    def __init__(self) -> None:
        self._own_count: int | None = None
        self._numbers: list[_Number] = []
        self._saves: list[_Save] = []
        self._unnumbered = ""
        self._weights: str | None = None
        self._compared: Weights | None = None
        self._begins_again = False

    def note_loaded(
        self, value: object, place: object, saved: Saved | None = None, copies: Sequence[Saved] = ()
    ) -> None:
        """Note what the script has loaded, and the file or directory that it was in.

        `saved`: what was noted when the job saved that. `copies`: if that is not known, what was noted of saves that
        had the same number in them.
        """
        # The first step may be none: torch makes one without gradients to give an optimizer its state, before a load.
        self._weights = self._compared = None
        is_of_job, file = _is_of_job(place), _name_of(place)
        found = number_in(value)
        saves, is_copy = (copies, True) if saved is None else ((saved,), False)
        self._saves += [_Save(one, file, is_copy) for one in saves]
        numbers = [(_agreed(found, one.done), one.weights) for one in saves]
        if found is not None and not saves:
            numbers = [(found, None)]
        for (name, number), weights in numbers:
            name = f"{name} {'of' if name == SAVED else 'in'} {file}"
            self._numbers.append(_Number(number, name, is_of_job, weights, is_copy))
        if not numbers and is_of_job:
            self._unnumbered = file

    def note_optimizer(self, optimizer: Any) -> None:
        """Read the optimizer's own count after its first step in this process."""
        count = count_of(optimizer)
        self._own_count = None if count is None else max(0, count - 1)

    def note_weights(self, weights: str, compared: Weights | None) -> None:
        """Note the weights with which training began, compared with those of the job's first step; None: this is the
        first one.
        """
        self._weights, self._compared = weights, compared

    def note_that_counts_begin_again(self) -> None:
        """Note that in this job the optimizer's count is not that of the job's steps."""
        self._begins_again = True

    @property
    def is_counted(self) -> bool:
        """True if the optimizer keeps a count of its steps."""
        return self._own_count is not None

    def goes_on(self, own_count: int | None, done: int | None, tolerance: int = 0) -> bool:
        """Return True if the optimizer's own count is as far from the number of steps as at the start."""
        start = self.decide()
        if own_count is None or done is None or self._own_count is None or not start.is_known:
            return False
        return abs((done - own_count) - (start.done - self._own_count)) <= tolerance

    def decide(self) -> Start:
        if self._own_count:
            return self._by_count(self._own_count)
        of_job = [number for number in self._numbers if number.is_of_job]
        if len({number.done for number in of_job}) > 1:
            # One of them may have been read for something else, such as the best loss.
            of_job = [number for number in of_job if number.weights and number.weights == self._weights]
            if len({number.done for number in of_job}) != 1:
                return _unknown(DIFFERENT_STEPS)
        elif of_job and not any(self._may_be(number.weights, number.is_copy) for number in of_job):
            return _unknown(NO_SAVED_WEIGHTS)
        # An optimizer that begins at 0 beside an older file: these are weights to begin with, not the job's progress.
        numbers = of_job or (self._numbers if self._own_count is None else [])
        if numbers and not of_job and generation() > 1 and self._compared in (Weights.OTHER, Weights.UNMOVED):
            # An older file is what the job has begun with, and it may go on from something else.
            return _unknown(NOT_THE_FIRST_WEIGHTS if self._compared is Weights.OTHER else UNMOVED_WEIGHTS)
        if numbers:
            return Start(numbers[-1].done, Source.RESTORED, numbers[-1].name)
        # What the first generation has written itself, before its first step, is no step of the job.
        if generation() == 1:
            return Start(0, Source.OPTIMIZER)
        return self._by_weights()

    def _by_count(self, own_count: int) -> Start:
        """Return the start of a script that has restored an optimizer with this count."""
        # The state may have been copied first, and saved while training went on: then the weights are others as well.
        saves = [
            save
            for save in self._saves
            if save.saved.own_count != own_count or self._may_be(save.saved.weights, save.is_copy)
        ]
        counted = [(save.saved.own_count - own_count, save.saved) for save in saves if save.saved.own_count is not None]
        near = [(late, saved) for late, saved in counted if 0 <= late <= LATE_STEPS_MAX]
        if near:
            least = min(late for late, _ in near)
            nearest = [saved for late, saved in near if late == least]
            if len({saved.done for saved in nearest}) > 1:
                nearest = [saved for saved in nearest if saved.weights and saved.weights == self._weights]
            if len({saved.done for saved in nearest}) != 1:
                return _unknown(DIFFERENT_STEPS)
            return Start(nearest[0].done - least, Source.RESTORED, OPTIMIZER_STATE)
        if not self._begins_again:
            return Start(own_count, Source.RESTORED, OPTIMIZER_STATE)
        if len({save.saved.done for save in saves}) == 1:
            return Start(saves[0].saved.done, Source.RESTORED, f"{SAVED} of {saves[0].file}")
        return _unknown(BEGINS_AGAIN)

    def _may_be(self, weights: str | None, is_copy: bool) -> bool:
        """Return False if a save with this number had other weights than those with which training began."""
        return not is_copy or weights is None or self._weights is None or weights == self._weights

    def _by_weights(self) -> Start:
        """Return the start of a restart that shows no step."""
        if self._begins_again:
            return _unknown(BEGINS_AGAIN)
        if self._compared is Weights.FIRST:
            return Start(0, Source.OPTIMIZER)
        if self._unnumbered:
            return _unknown(f"no step in {self._unnumbered}")
        # There are more ways to restore than are hooked.
        if self._compared is Weights.OTHER:
            return _unknown(NOT_THE_FIRST_WEIGHTS)
        if self.is_counted:
            return Start(0, Source.OPTIMIZER)
        return _unknown(UNMOVED_WEIGHTS if self._compared is Weights.UNMOVED else "the optimizer keeps no count")


def _unknown(why: str) -> Start:
    return Start(0, Source.OPTIMIZER, why, is_known=False)


def _agreed(found: tuple[str, int] | None, saved_at: int) -> tuple[str, int]:
    """Return the step of a file that holds a number and was saved at a known step.

    A number that is far from that step counts something else: batches, frames, updates, or steps of an epoch. One that
    is a little lower counts steps: of a state that was copied first and then saved beside training. The last step's
    number is one below the number of steps.
    """
    if found is None or not saved_at - LATE_STEPS_MAX <= found[1] <= saved_at:
        return SAVED, saved_at
    name, number = found
    return name, saved_at if number == saved_at - 1 else number


def number_in(value: object) -> tuple[str, int] | None:
    """Return the name and value of the step counter in what was loaded; None if there is none."""
    for mapping in _mappings(value):
        for name in NAMES:
            if (number := _whole(mapping.get(name))) is not None:
                return name, number
    return None


def count_of(optimizer: Any) -> int | None:
    """Return how many steps an optimizer has counted; None if it does not count."""
    numbers: list[int] = []
    for group in optimizer.param_groups:
        if (number := _whole(group.get("step"))) is not None:
            numbers.append(number)
        for parameter in group["params"]:
            if len(numbers) >= PARAMETERS_READ:
                return max(numbers)
            state = optimizer.state.get(parameter)
            if state and (number := _whole(state.get("step"))) is not None:
                numbers.append(number)
    return max(numbers, default=None)


def _mappings(value: object) -> Iterator[Mapping[Any, Any]]:
    """Return where a step counter may be: in the value, and one level below."""
    if not isinstance(value, Mapping) or len(value) > ENTRIES_MAX or "param_groups" in value:
        return
    yield value
    for below in value.values():
        fields = below if isinstance(below, Mapping) else getattr(below, "__dict__", None)
        if (
            isinstance(fields, Mapping)
            and len(fields) <= ENTRIES_MAX
            and not {"param_groups", "_parameters"} & set(fields)
        ):
            yield fields


def _whole(value: Any) -> int | None:
    """Return a count from a number, or from a tensor or array with a single one."""
    if value is None or isinstance(value, bool | str | bytes | Mapping):
        return None
    if not isinstance(value, int | float):
        if getattr(value, "shape", None) not in ((), (1,)) or not hasattr(value, "item"):
            return None
        value = value.item()
    return int(value) if isinstance(value, int | float) and value >= 0 and value == int(value) else None


def _is_of_job(place: object) -> bool:
    """Return True if this job may have written what lies there: it is not older than the job."""
    path = path_of(place)
    if path is None:
        return generation() > 1
    try:
        # A directory may be older than what was written into it.
        newest = max((path.stat().st_mtime, *(entry.stat().st_mtime for entry in _entries(path))))
        return newest * 1000 >= int(os.environ.get(SUBMITTED_VARIABLE, "0"))
    except (OSError, ValueError):
        return True


def generation() -> int:
    return int(os.environ.get(GENERATION_VARIABLE, "1"))


def _entries(path: Path) -> Iterator[os.DirEntry[str]]:
    if path.is_dir():
        with os.scandir(path) as entries:
            yield from entries


def path_of(place: object) -> Path | None:
    """Return the path that something was loaded from; None if it is no file."""
    if not isinstance(place, str | os.PathLike):
        place = getattr(place, "name", None) or getattr(place, "path", None)
    return Path(place) if isinstance(place, str | os.PathLike) and isinstance(os.fspath(place), str) else None


def _name_of(place: object) -> str:
    path = path_of(place)
    return "a stream" if path is None else path.name
