"""A production service in simulated time: its decider in the real shell, over the store in memory.

A real shell asks its decider every half second whether something is due. Here it is asked at the half seconds at which
something can be: `next_due` reads that from the decider's state. `tests/unit/proving` compares both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from holdfast.daemon.liveness import TICK_S, BusLiveness
from holdfast.daemon.relay import Relay
from holdfast.daemon.service_shell import Decider, ServiceShell
from holdfast.orders.signatures import OrderSigner
from holdfast.requests import Answer, AnyRequest
from holdfast.store.in_memory import MemoryStore
from holdfast_proving.chaos.publishing import RelayBus
from holdfast_proving.inside.bus import Delivery, ProvingBus
from holdfast_proving.world.agenda import Agenda, seconds_of

T = TypeVar("T")
PRUNED_EVERY_S = 6 * 3600.0


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing: store and bus in memory answer at once."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    coroutine.close()
    raise AssertionError("a service waited for something in simulated time")


class UnbrokenLiveness(BusLiveness):
    """A process that was never frozen, though its time is not ticked."""

    def tick(self) -> None:
        """Do nothing: quiet half seconds are left out."""


class Service:
    def __init__(
        self,
        decider: Decider,
        next_due: Callable[[], datetime | None],
        agenda: Agenda,
        bus: ProvingBus,
        signer: OrderSigner | None,
        every_tick: bool = False,
    ) -> None:
        """`every_tick`: ask every half second, as in production; for comparison."""
        self.decider = decider
        self.store = MemoryStore(now=agenda.now)
        self._agenda = agenda
        self._next_due = next_due
        self._every_tick = every_tick
        self._asked_for: float | None = None
        self._bus = bus
        self._signer = signer
        self._asleep_until_s = 0.0
        self._begin(bus)
        for kind in self.shell.subscriptions:
            bus.receivers.setdefault(kind, []).append(self.receive)
        agenda.after(PRUNED_EVERY_S, self._prune)
        if every_tick:
            agenda.after(TICK_S, self._tick)

    def _begin(self, of_relay: RelayBus) -> None:
        """Start the process, which knows what is in the store and nothing else."""
        now, bus = self._agenda.now, self._bus
        self.liveness = liveness = UnbrokenLiveness(bus, now)  # type: ignore[arg-type]
        self.shell = ServiceShell(self.decider, bus, self.store, now, self._signer, liveness)  # type: ignore[arg-type]
        self._relay = Relay(self.store, of_relay, source=self.decider.name, now=now)  # type: ignore[arg-type]
        at_once(self.shell.load())

    def sleep(self, until_s: float) -> None:
        """Freeze: no message is handled and no time is looked at, until this process goes on and notices."""
        self._asleep_until_s = until_s
        self._agenda.at(until_s, self._wake)

    def _wake(self) -> None:
        self.liveness.interrupt()
        self._tick_now()

    def receive(self, delivery: Delivery) -> None:
        if self._agenda.seconds < self._asleep_until_s:
            self._agenda.at(self._asleep_until_s, partial(self.receive, delivery))
            return
        at_once(self.shell.handle(delivery))
        assert delivery.is_settled
        self._go_on()

    def ask(self, request: AnyRequest) -> Answer:
        answer = at_once(self.shell.ask(request))
        self._go_on()
        return answer

    def look_at(self, seconds: float) -> None:
        """Let the decider look at the time then; a decision is due that its own state does not show."""
        self._agenda.at(_tick_from(seconds, self._agenda.seconds), self._tick_now)

    def _tick(self) -> None:
        self._tick_now()
        self._agenda.after(TICK_S, self._tick)

    def _tick_now(self) -> None:
        if self._agenda.seconds < self._asleep_until_s:
            return
        at_once(self.shell.pass_time())
        self._go_on()

    def _go_on(self) -> None:
        self._publish()
        if self._every_tick:
            return
        due = self._next_due()
        if due is None:
            return
        at_s = _tick_from(seconds_of(due), self._agenda.seconds)
        if self._asked_for is None or not self._agenda.seconds < self._asked_for <= at_s:
            self._asked_for = at_s
            self._agenda.at(at_s, self._due)

    def _publish(self) -> None:
        while self.store.database.unpublished:
            at_once(self._relay.publish_pending())

    def _due(self) -> None:
        if self._asked_for == self._agenda.seconds:
            self._asked_for = None
        self._tick_now()

    def _prune(self) -> None:
        at_once(self.store.prune(self._agenda.now()))
        self._agenda.after(PRUNED_EVERY_S, self._prune)


def _tick_from(due_s: float, now_s: float) -> float:
    """Return the first tick at which this is due, after the present time."""
    return max(math.ceil(due_s / TICK_S), math.floor(now_s / TICK_S) + 1) * TICK_S
