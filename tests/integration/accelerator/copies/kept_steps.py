"""Trainings on the simulated accelerator that keep every step in a vault, and read each back during the next one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest import mock

import torch
from torch import nn

from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.trainer.device import copies as copies_module
from holdfast.trainer.device import gate, lay_out
from holdfast.trainer.device.checks import FIRST, INTERVAL_VARIABLE, Samples, Writes
from holdfast.trainer.device.copies import DeviceCopies
from holdfast.trainer.device.follower import Follower
from holdfast.trainer.device.guards import CopySizes, Guard, StateTensor
from holdfast.trainer.device.landings import Landing, Landings
from holdfast.trainer.device.step_copy import StepCopy
from holdfast.trainer.vault_client.client import BrokenSeal, VaultClient
from tests import accelerator
from tests.integration.accelerator.trainings import Optimizing, batches, gpt, optimizer_of

SIZES = CopySizes(small_bytes=1 << 10, slice_bytes=24 << 10, mark_bytes=48 << 10)
"""So small that the GPT of a test has tensors of each kind, and some that are cut."""
LINK = 8e6
Pinned = Literal["at once", "later", "never"]
"""When the vault's memory is: `later` is when the vault has settled it, as in a job."""
DIRECT_MIN = 4
LOADED_AT = 3
BETWEEN_CHECKS = FIRST + 1
"""A step without a check."""


class Mutant(Enum):
    """A wait of the path that is left out."""

    NO_GATE = "the optimizer does not wait"
    NO_WAIT_FOR_TRAINING = "the copies do not wait for training"
    SEALED_BEFORE_THE_EVENT = "steps are sealed before they have come"
    FREED_EARLY = "what is copied is not held"
    NO_WAIT_AT_ONCE = "training does not wait for what there is no memory to shadow"
    NO_SHADOW = "what no optimizer has is copied without a shadow"
    NO_SAMPLES = "what came is not compared in steps without a check"


class Result(NamedTuple):
    """Steps whose restored state is not what it was in the order of training; all that were sealed; how they went; the
    steps before which the state was laid out anew.
    """

    torn: list[int]
    sealed: list[int]
    direct: list[int]
    skipped: list[int]
    laid: list[int]


def name_of(world_size: int = 1) -> ShardName:
    return ShardName(job="job", submitted_ms=1, world_size=world_size, rank=0)


def slow_link(seed: int, bytes_per_s: float = LINK) -> None:
    """Let the copies of a step take about as long as its forward and backward, or longer."""
    accelerator.seed(seed)
    accelerator.delay(longest_us=100, chance=0.5)
    accelerator.bandwidth(bytes_per_s)
    accelerator.slice_bytes(16 << 10)


class Job:
    """A GPT, its optimizer, an average over steps that no optimizer has, and what is on the host."""

    def __init__(self, how: Optimizing, steps: int, seed: int, device: str = "sim") -> None:
        self.model: nn.Module = gpt(device)
        self.optimizer = optimizer_of(self.model, how)
        self.average = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.data = batches(device, steps, seed)
        self.done = 0

    def forward(self) -> None:
        with torch.no_grad():
            # Before the optimizer comes to the gate: nothing but a shadow helps.
            for mean, parameter in zip(self.average, self.model.parameters(), strict=True):
                # torch does not count a write to `data`.
                mean.data.lerp_(parameter, 0.1)
        self.model(self.data[self.done]).backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1

    def state(self) -> dict[str, Any]:
        moments = {str(at): dict(state) for at, state in enumerate(self.optimizer.state.values())}
        turned = {"turned": self.average[0].t()} if self.average[0].dim() == 2 else {}
        return {
            "model": dict(self.model.state_dict()),
            "moments": moments,
            "average": list(self.average),
            "other": {"step": self.done, **turned},
            # Made for this step alone, at whatever address.
            "made": [torch.get_rng_state(), torch.full((3,), float(self.done), device=self.average[0].device)],
        }


def flat(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from flat(item, (*path, index))
    else:
        yield path, value


def truth_of(state: dict[str, Any]) -> dict[tuple[Any, ...], Any]:
    """Return copies of all tensors, taken in the order of training."""
    return {path: it.detach().clone() if isinstance(it, torch.Tensor) else it for path, it in flat(state)}


def is_as(truth: dict[tuple[Any, ...], Any], found: dict[str, Any]) -> bool:
    """Return True if a state is the same to the bit, NaN or not."""
    restored = dict(flat(found))
    if restored.keys() != truth.keys():
        return False
    return all(
        bits_of(it).equal(bits_of(restored[path])) if isinstance(it, torch.Tensor) else it == restored[path]
        for path, it in truth.items()
    )


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)


@contextmanager
def mutated(mutant: Mutant | None) -> Iterator[None]:
    """Leave out one wait of the path."""

    def nothing(*_: object) -> None: ...

    queue = DeviceCopies._queue

    def queue_and_let_go(it: DeviceCopies, copy: StepCopy, *streams: torch.Stream) -> None:
        queue(it, copy, *streams)
        copy.parts, copy.writes = (), Writes(())

    def guards_without_shadow(sources: Sequence[StateTensor], *_: object) -> list[Guard]:
        return [Guard.HOST if it.is_host else Guard.GATED if it.is_plain else Guard.SHADOWED for it in sources]

    def laid_without_wait(*args: Any) -> lay_out.Layout:
        laid = lay_out.lay_out(*args)
        return laid._replace(plan=laid.plan._replace(awaited=None))

    patches = {
        Mutant.NO_GATE: mock.patch.object(gate.Gate, "hold_back", nothing),
        Mutant.NO_WAIT_FOR_TRAINING: mock.patch.object(copies_module, "_wait_for_training", nothing),
        Mutant.SEALED_BEFORE_THE_EVENT: mock.patch.object(Follower, "_wait", nothing),
        Mutant.FREED_EARLY: mock.patch.object(DeviceCopies, "_queue", queue_and_let_go),
        Mutant.NO_WAIT_AT_ONCE: mock.patch.object(copies_module, "lay_out", laid_without_wait),
        Mutant.NO_SAMPLES: mock.patch.object(Samples, "differ", nothing),
        Mutant.NO_SHADOW: mock.patch.object(lay_out, "guards_of", guards_without_shadow),
    }
    with patches[mutant] if mutant is not None else nullcontext():
        yield


def kept(
    directory: Path,
    how: Optimizing = "foreach",
    *,
    seed: int = 1,
    steps: int = 10,
    mutant: Mutant | None = None,
    shadows_all: bool = False,
    checks: int = 0,
    pinned: Pinned = "at once",
    behind: bool = False,
    late_copies: bool = False,
    link: float = LINK,
    is_full: bool = False,
    disturb: Callable[[Job, int], None] | None = None,
) -> Result:
    """Train and keep each step; read it back when the optimizer's next one is queued. `disturb` follows each `keep`.

    Every so many steps have `checks`, 0: none. `behind`: the host is ahead of training when it keeps a step.
    `late_copies`: copies begin only after the optimizer's next step is queued. `is_full`: the device has no memory for
    shadows of large tensors. With memory that is pinned `later` it
    ends when some steps have gone straight there.
    """
    slow_link(seed, link)
    job = Job(how, steps, seed)
    result, truth = Result([], [], [], [], []), dict[tuple[Any, ...], Any]()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict("os.environ", {INTERVAL_VARIABLE: str(checks)}))
        if pinned == "never":
            stack.enter_context(mock.patch.object(torch.sim, "register_host", None))  # type: ignore[attr-defined]
        elif pinned == "at once":
            stack.enter_context(pinned_at_once())
        stack.enter_context(mutated(mutant))
        if is_full:
            stack.enter_context(mock.patch.object(lay_out, "free_bytes", return_value=0))
        copies = DeviceCopies(directory, name_of(), 1, None, shadows_all=shadows_all, sizes=SIZES)
        stack.callback(copies.close)
        client = VaultClient(directory, name_of(), 1, copies=copies)
        reader = VaultClient(directory, name_of(), 1)
        stack.callback(reader.close)
        stack.callback(client.close)
        late = stack.enter_context(ExitStack())
        made: list[object] = []
        for step in range(1, steps + 1):
            job.forward()
            if not behind:
                job.update()
            if mutant is Mutant.NO_GATE and late_copies:
                # It waits for no copy, however busy the machine is.
                torch.accelerator.current_stream().synchronize()
            late.close()
            if step > 1:
                _read_back(step - 1, truth, copies, reader, result)
            if pinned == "later" and len(result.direct) >= DIRECT_MIN:
                return result
            # The vault answers the first step only when it is sealed.
            training = torch.accelerator.current_stream()
            with held_for_a_while(training) if behind and step > 1 else nullcontext():
                if behind:
                    job.update()
                state = job.state()
                truth = truth_of(state)
                if late_copies and step > 1:
                    late.enter_context(held_for_a_while(copies._stream))
                laid = copies._laid
                client.save(step, state)
                if copies._laid is not laid:
                    result.laid.append(step)
                made.append(state["made"])
                del state
                if disturb is not None:
                    disturb(job, step)
                    if late_copies and step > 1:
                        # What is queued so far comes before the gate.
                        training.synchronize()
                if mutant is Mutant.NO_WAIT_FOR_TRAINING and behind and step > 1:
                    assert copies._stream is not None
                    copies._stream.synchronize()
        late.close()
        _read_back(steps, truth, copies, reader, result)
        result.skipped.extend(range(copies.skipped))
    return result


def pinned_at_once() -> AbstractContextManager[object]:
    """Have the vault's memory pinned from the first step on."""
    return mock.patch.object(Landings, "of", _pinned_at_once)


def _pinned_at_once(known: Landings, descriptor: int, nbytes: int) -> Landing:
    found = _landing_of(known, descriptor, nbytes)
    if not found.is_pinned:
        found.pin(known._adapter)
    return found


_landing_of = Landings.of


@contextmanager
def held_for_a_while(stream: torch.Stream | None) -> Iterator[None]:
    """Let a stream begin what is queued in this block when another one that does not wait for it is through."""
    with accelerator.held(stream):
        yield
        time.sleep(0.1)


def _read_back(
    step: int, truth: dict[tuple[Any, ...], Any], copies: DeviceCopies, reader: VaultClient, result: Result
) -> None:
    assert copies.wait_sealed(60)
    if copies.is_direct:
        result.direct.append(step)
    if copies.sealed != step:
        return
    result.sealed.append(step)
    try:
        is_whole = is_as(truth, reader.restore(SealedStep(generation=1, step=step)))
    except BrokenSeal:
        is_whole = False
    if not is_whole:
        result.torn.append(step)


def replace_everything(job: Job, step: int) -> None:
    """Let go of all memory that is just being copied, and use as much anew: the values go on."""
    with torch.no_grad():
        for parameter in job.model.parameters():
            for name, value in list(job.optimizer.state[parameter].items()):
                if value.device.type == "sim":
                    job.optimizer.state[parameter][name] = value.clone()
        used = [torch.full_like(mean, -1.0) for mean in job.average]
        del used


def write_late(job: Job, step: int) -> None:
    """Change parameters outside an optimizer, in a way that torch does not count."""
    for parameter in job.model.parameters():
        parameter.data.mul_(0.5)


def write_late_once(job: Job, step: int) -> None:
    """Change parameters in one of the steps that have no check."""
    if step == BETWEEN_CHECKS:
        write_late(job, step)


def evaluate_average(job: Job, step: int) -> None:
    """Bring in the average while a step without a check is copied, and then the weights again: none is counted."""
    if step != BETWEEN_CHECKS:
        return
    parameters = list(job.model.parameters())
    weights = [parameter.detach().clone() for parameter in parameters]
    torch._foreach_copy_([it.data for it in parameters], job.average)  # pyright: ignore[reportPrivateImportUsage]
    job.model(job.data[0])
    torch.accelerator.synchronize()
    torch._foreach_copy_([it.data for it in parameters], weights)  # pyright: ignore[reportPrivateImportUsage]


def exchange_memory(job: Job, step: int) -> None:
    """Exchange the memory of parameters and averages in a step without a check, and change what was a parameter's."""
    if step != BETWEEN_CHECKS:
        return
    with torch.no_grad():
        for parameter, mean in zip(job.model.parameters(), job.average, strict=True):
            parameter.data, mean.data = mean.data, parameter.data
            mean.lerp_(parameter, 0.5)


def load_once(job: Job, step: int) -> None:
    """Load other weights during one step's copies, as a script does that validates an average."""
    if step == LOADED_AT:
        job.model.load_state_dict({name: it * 2 for name, it in job.model.state_dict().items()})


def load_often(job: Job, step: int) -> None:
    load_once(job, LOADED_AT)


def load_every_second(job: Job, step: int) -> None:
    """Load other weights during each second step's copies."""
    if step % 2 == 0:
        load_once(job, LOADED_AT)


def leave_optimizer(job: Job, step: int) -> None:
    """Take parameters away from the optimizer; then change them by hand, in ways that torch does not count."""
    group = job.optimizer.param_groups[0]
    if step == LOADED_AT:
        group["params"] = group["params"][::2]
    if step > LOADED_AT:
        for parameter in list(job.model.parameters())[1::2]:
            parameter.data.mul_(0.9)


def take_memory_away(job: Job, step: int) -> None:
    """Give memory back that is just being copied, and bring the values back elsewhere, as torch does not count."""
    if step != LOADED_AT:
        return
    for parameter in job.model.parameters():
        values, storage = parameter.detach().clone(), parameter.untyped_storage()
        nbytes = storage.nbytes()
        storage.resize_(0)
        used = torch.full_like(values, -7.0)
        storage.resize_(nbytes)
        parameter.data.copy_(values)
        del used
