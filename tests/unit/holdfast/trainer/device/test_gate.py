"""What optimizers own, and what happens when one of them steps."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import nn

from holdfast.trainer.device import gate
from holdfast.trainer.device.gate import Gate, Owned, owned_by, owner_of


class Device:
    """An adapter of a device whose stream may be recorded into a graph."""

    can_register = False
    capturing = False

    def register(self, address: int, nbytes: int) -> None: ...

    def unregister(self, address: int) -> None: ...

    def is_capturing(self) -> bool:
        return self.capturing


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    gate.watch()
    return torch.optim.AdamW(nn.Linear(4, 4).parameters(), lr=0.1)


def stepped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def test_memory_is_owned_if_all_of_it_lies_in_one_stretch() -> None:
    owned = (Owned(100, 200, 1), Owned(200, 300, 0))
    assert [owner_of(address, 50, owned) for address in (100, 150, 200, 250)] == [1, 1, 0, 0]
    assert [owner_of(address, 51, owned) for address in (50, 99, 150, 250, 300)] == [None] * 5
    assert owner_of(0, 1, ()) is None


def test_parameters_and_their_state_are_owned_in_the_order_of_updates(optimizer: torch.optim.Optimizer) -> None:
    weight, bias = optimizer.param_groups[0]["params"]
    assert [owner_of(it.data_ptr(), it.nbytes, owned_by([optimizer])) for it in (weight, bias)] == [0, 1]
    state = stepped(optimizer).state
    order = [weight, *state[weight].values(), bias, *state[bias].values()]
    owned = owned_by([optimizer])
    assert [owner_of(it.data_ptr(), it.nbytes, owned) for it in order] == list(range(len(order)))
    part = state[bias]["exp_avg"][1:3]
    whole = next(place for place, it in enumerate(order) if it is state[bias]["exp_avg"])
    assert owner_of(part.data_ptr(), part.nbytes, owned) == whole
    other = torch.zeros(4)
    assert owner_of(other.data_ptr(), other.nbytes, owned) is None


def test_an_optimizer_is_known_from_its_first_step_until_it_is_gone(optimizer: torch.optim.Optimizer) -> None:
    assert optimizer not in gate.seen()
    other = stepped(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    stepped(stepped(optimizer))
    assert [it for it in gate.seen() if it in (optimizer, other)] == [other, optimizer]
    del other
    gc.collect()
    assert [it for it in gate.seen() if it is optimizer] == gate.seen()


def test_what_follows_the_first_step_behind_a_gate_is_done_once(optimizer: torch.optim.Optimizer) -> None:
    passed: list[None] = []
    it = Gate(Device())
    it._on_pass = lambda: passed.append(None)
    stepped(stepped(optimizer))
    assert len(passed) == 1


def test_a_step_that_is_recorded_into_a_graph_waits_on_the_host_and_is_noted(optimizer: torch.optim.Optimizer) -> None:
    device = Device()
    it = Gate(device)
    it.shut(object(), on_pass=pytest.fail)  # type: ignore[arg-type]  # a graph must not ask for its event
    device.capturing = True
    step = threading.Thread(target=stepped, args=(optimizer,))
    step.start()
    step.join(0.05)
    assert step.is_alive() and it.has_met_graph
    it.open()
    step.join(30)
    assert not step.is_alive()
    stepped(optimizer)
