"""Scripts whose optimizers, or frameworks, count from 0 again while they train: the job's steps are counted on, and a
restart goes on from the job's step or from none that is known.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.node.ledger.ledger_reader import LedgerReader
from holdfast.trainer.phases import bind, binding
from holdfast.trainer.steps import frameworks, loads, optimizer_steps, saves
from holdfast.trainer.steps.step_start import GENERATION_VARIABLE

REGISTER = ("register_optimizer_step_pre_hook", "register_optimizer_step_post_hook")
ADAM, SGD = torch.optim.Adam, torch.optim.SGD


class Shown(NamedTuple):
    """What a generation's ledger shows: its first and last step, and whether the first one is known."""

    first: int | None
    last: int
    is_known: bool


class Job:
    """A script's generations, each in this process: torch, as far as the hooks know it, and fresh weights."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self._monkeypatch, self.generation = path, monkeypatch, 0
        self.torch: Any = SimpleNamespace(save=torch.save, load=torch.load, serialization=SimpleNamespace())
        saves.patch_torch_save(self.torch)
        loads.patch_torch_load(self.torch)
        self._hooks: list[Any] = []

    def begin(self) -> None:
        self.generation += 1
        self._monkeypatch.setenv(GENERATION_VARIABLE, str(self.generation))
        bind(LedgerWriter(self.path / "ledger", rank=0, generation=self.generation))
        self.end()
        optimizer_steps.begin()
        module = import_module("torch.optim.optimizer")
        kept = [self._kept(getattr(module, name)) for name in REGISTER]
        optimizer_steps.hook(SimpleNamespace(**dict(zip(REGISTER, kept, strict=True))))

    def _kept(self, register: Callable[..., Any]) -> Callable[..., Any]:
        def call(hook: Any) -> Any:
            self._hooks.append(register(hook))
            return self._hooks[-1]

        return call

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def shown(self) -> Shown:
        binding.settle()
        reader = LedgerReader(self.path / "ledger")
        snapshot = reader.snapshot()
        reader.close()
        return Shown(snapshot.first, snapshot.step, snapshot.is_start_known)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setenv("HOLDFAST_JOB_DIR", str(tmp_path / "job"))
    monkeypatch.setenv("RANK", "0")
    names = ("ledger", "explicit", "is_begun", "is_start_known", "unsettled_ns", "framework", "start", "ring")
    for name in (*names, "trained_before"):
        monkeypatch.setattr(binding, name, getattr(binding, name))
    running = Job(tmp_path, monkeypatch)
    yield running
    running.end()


def model(seed: int = 0) -> torch.nn.Linear:
    torch.manual_seed(seed)
    return torch.nn.Linear(4, 1)


def train(network: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        network(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()


def restore(job: Job, path: Path, network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = job.torch.load(path)
    network.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def save(job: Job, path: Path, network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    job.torch.save({"model": network.state_dict(), "optimizer": optimizer.state_dict()}, path)


def test_a_range_test_of_the_rate_comes_before_training_once(job: Job) -> None:
    path = job.path / "ck.pt"
    job.begin()
    network = model()
    trial = copy.deepcopy(network)
    train(trial, ADAM(trial.parameters()), 40)
    optimizer = ADAM(network.parameters())
    train(network, optimizer, 25)
    save(job, path, network, optimizer)
    train(network, optimizer, 5)
    assert job.shown().last == 69
    job.begin()
    network = model()
    optimizer = ADAM(network.parameters())
    restore(job, path, network, optimizer)
    train(network, optimizer, 2)
    assert job.shown() == Shown(65, 66, True)


def test_a_stage_has_an_optimizer_of_its_own_while_the_first_ones_lives(job: Job) -> None:
    first, second = job.path / "first.pt", job.path / "second.pt"
    job.begin()
    network, other = model(), model(1)
    optimizer, of_other = ADAM(network.parameters()), ADAM(other.parameters())
    train(network, optimizer, 60)
    save(job, first, network, optimizer)
    train(other, of_other, 40)
    save(job, second, other, of_other)
    train(other, of_other, 9)
    assert job.shown().last == 108
    job.begin()
    network, other = model(), model(1)
    optimizer, of_other = ADAM(network.parameters()), ADAM(other.parameters())
    restore(job, first, network, optimizer)
    restore(job, second, other, of_other)
    train(other, of_other, 2)
    assert job.shown() == Shown(100, 101, True)


def test_the_best_state_is_loaded_again_while_it_trains(job: Job) -> None:
    best, last = job.path / "best.pt", job.path / "last.pt"
    job.begin()
    network = model()
    optimizer = ADAM(network.parameters())
    train(network, optimizer, 30)
    save(job, best, network, optimizer)
    train(network, optimizer, 30)
    restore(job, best, network, optimizer)
    train(network, optimizer, 15)
    save(job, last, network, optimizer)
    job.begin()
    network = model()
    optimizer = ADAM(network.parameters())
    restore(job, last, network, optimizer)
    train(network, optimizer, 2)
    assert job.shown() == Shown(75, 76, True)


@pytest.mark.parametrize("kind", [ADAM, SGD])
def test_steps_that_warm_up_are_thrown_away_before_the_load(job: Job, kind: type[torch.optim.Optimizer]) -> None:
    """As modded-nanogpt does, for its kernels."""
    path = job.path / "ck.pt"
    for generation in range(2):
        job.begin()
        network = model()
        optimizer = kind(network.parameters(), lr=0.01)  # type: ignore[call-arg]
        first = copy.deepcopy((network.state_dict(), optimizer.state_dict()))
        train(network, optimizer, 10)
        network.load_state_dict(first[0])
        optimizer.load_state_dict(first[1])
        if generation:
            restore(job, path, network, optimizer)
        train(network, optimizer, 25)
        save(job, path, network, optimizer)
    assert not job.shown().is_known


def test_an_optimizer_that_loads_the_state_that_it_has_goes_on(job: Job) -> None:
    path = job.path / "ck.pt"
    job.begin()
    network = model()
    optimizer = ADAM(network.parameters())
    for _ in range(2):
        train(network, optimizer, 20)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    torch.save({"model": network.state_dict(), "optimizer": optimizer.state_dict()}, path)
    job.begin()
    network = model()
    optimizer = ADAM(network.parameters())
    restore(job, path, network, optimizer)
    train(network, optimizer, 2)
    assert job.shown() == Shown(40, 41, True)


@pytest.mark.parametrize("kind", [ADAM, SGD])
def test_it_is_unknown_which_folds_are_done(job: Job, kind: type[torch.optim.Optimizer]) -> None:
    """Each fold begins with the same weights, and the script remembers those that are done in a file of its own."""
    job.begin()
    for _ in range(2):
        network = model()
        train(network, kind(network.parameters(), lr=0.01), 50)  # type: ignore[call-arg]
    assert job.shown().last == 99
    job.begin()
    network = model()
    train(network, kind(network.parameters(), lr=0.01), 2)  # type: ignore[call-arg]
    assert not job.shown().is_known


@pytest.mark.parametrize("kind", [ADAM, SGD])
def test_a_script_that_begins_with_the_first_weights_began_again(job: Job, kind: type[torch.optim.Optimizer]) -> None:
    for generation in range(2):
        job.begin()
        network = model()
        train(network, kind(network.parameters(), lr=0.01), 9 - generation)  # type: ignore[call-arg]
    assert job.shown() == Shown(0, 7, True)


def test_with_other_weights_it_may_have_restored_them_in_any_way(job: Job) -> None:
    job.begin()
    network = model()
    train(network, ADAM(network.parameters()), 9)
    job.begin()
    train(network, ADAM(network.parameters()), 9)
    assert not job.shown().is_known


@pytest.mark.parametrize(("is_loaded", "shown"), [(True, Shown(40, 41, True)), (False, Shown(0, 1, False))])
def test_of_several_files_the_one_counts_whose_weights_are_trained_on(job: Job, is_loaded: bool, shown: Shown) -> None:
    """The best one is read for its loss."""
    best, last = job.path / "best.pt", job.path / "last.pt"
    job.begin()
    network = model()
    optimizer = SGD(network.parameters(), lr=0.01)
    for path in (best, last):
        train(network, optimizer, 20)
        save(job, path, network, optimizer)
    job.begin()
    network = model(7)
    optimizer = SGD(network.parameters(), lr=0.01)
    job.torch.load(last)
    if is_loaded:
        restore(job, last, network, optimizer)
    job.torch.load(best)
    train(network, optimizer, 2)
    assert job.shown() == shown


def test_optimizers_that_step_beside_it_add_nothing(job: Job) -> None:
    """A critic that steps five times for each step of the generator counts from its second step on."""
    job.begin()
    generator, critic = model(), model(1)
    both = SGD(generator.parameters(), lr=0.01), SGD(critic.parameters(), lr=0.01)
    for _ in range(4):
        train(generator, both[0], 1)
        train(critic, both[1], 5)
    assert job.shown().last + 1 == 21
    job.begin()
    for _ in range(6):
        train(generator, both[0], 1)
        train(critic, both[1], 1)
    assert job.shown().last + 1 == 6


def test_a_framework_that_trains_twice_goes_on_and_a_restart_does_not_know_where(job: Job) -> None:
    def fit(steps: int, done: int = 0) -> None:
        frameworks.note_begin("transformers", done)
        for step in range(done, steps):
            frameworks.note_step("transformers", step + 1)

    job.begin()
    fit(40)
    fit(60, done=40)
    assert job.shown() == Shown(1, 60, True)
    job.begin()
    fit(70, done=60)
    assert job.shown() == Shown(61, 70, True), "it went on where the first one had ended"
    fit(35)
    assert job.shown().last == 105
    job.begin()
    fit(10)
    assert job.shown() == Shown(1, 10, False)


def test_of_several_engines_of_deepspeed_one_counts(job: Job) -> None:
    class Engine:
        global_steps = 0

        def step(self) -> None:
            self.global_steps += 1

    frameworks.patch_deepspeed(SimpleNamespace(DeepSpeedEngine=Engine))  # type: ignore[arg-type]
    job.begin()
    critic, actor = Engine(), Engine()
    for iteration in range(30):
        critic.step()
        if iteration >= 20:
            actor.step()
    assert job.shown() == Shown(1, 30, True)


def test_a_step_that_only_makes_an_optimizers_state_comes_before_the_load(job: Job) -> None:
    """As torch.distributed.checkpoint makes it."""
    path = job.path / "ck.pt"
    for generation in range(2):
        job.begin()
        network = model()
        optimizer = ADAM(network.parameters(), lr=0.0)
        train(network, optimizer, 1)
        if generation:
            network.load_state_dict(job.torch.load(path)["model"])
        optimizer.param_groups[0]["lr"] = 0.01
        train(network, optimizer, 20)
        job.torch.save({"model": network.state_dict(), "step": 21}, path)
    assert job.shown() == Shown(21, 41, True)


def test_a_step_that_only_gives_an_optimizer_its_state_is_none_of_the_job(job: Job) -> None:
    """FSDP2 and the like load a checkpoint into an optimizer that has made no step yet: torch makes one for that."""
    state_dict = import_module("torch.distributed.checkpoint.state_dict")
    saved: Any = None
    for shown in (Shown(0, 6, True), Shown(5, 9, True)):
        job.begin()
        network = model()
        optimizer = ADAM(network.parameters())
        if saved is not None:
            state_dict.get_optimizer_state_dict(network, optimizer)
            state_dict.set_optimizer_state_dict(network, optimizer, saved)
        train(network, optimizer, 5)
        saved = copy.deepcopy(state_dict.get_optimizer_state_dict(network, optimizer))
        train(network, optimizer, 2 if job.generation == 1 else 0)
        assert job.shown() == shown
