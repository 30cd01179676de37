"""A production service that dies now and then: its store survives, its memory does not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from holdfast.bus import BusUnavailable
from holdfast.daemon.orders.order_repair import EVERY_S, repair_orders
from holdfast.requests import Answer, AnyRequest
from holdfast_agent.plan.node_state import Durable
from holdfast_controller.node_order_repair import truths
from holdfast_controller.service import Controller
from holdfast_proving.chaos.node_disk import ForgetfulDisk
from holdfast_proving.chaos.publishing import PublishingBus
from holdfast_proving.inside.bus import Delivery
from holdfast_proving.inside.chaotic_bus import ChaoticBus
from holdfast_proving.inside.service import Service, at_once
from holdfast_proving.scenario.scenario import ChaosPlan
from holdfast_proving.world.machine import Machine

AWAY_S = 4.0
LOOKS_EVERY_S = 20.0
"""Deadlines count from the start of the process, which `next_due` knows nothing of."""
REPAIRED_FOR_S = 60.0


class ChaoticService(Service):
    """A service under chaos, on a bus under chaos."""

    def begin_chaos(self, bus: ChaoticBus, crashes: float) -> None:
        self._chaotic_bus = bus
        self._crashes = crashes
        self._is_up = True
        self.deaths = 0
        bus.on_return.append(self._bus_is_back)
        self._begin(PublishingBus(bus, self._dies))
        if crashes:
            self._agenda.after(LOOKS_EVERY_S, self._look)

    def ask(self, request: AnyRequest) -> Answer:
        # A person who finds the service away asks again.
        self._come_back()
        return super().ask(request)

    def receive(self, delivery: Delivery) -> None:
        if not self._is_up:
            return
        at_once(self.shell.handle(delivery))
        if self._chaotic_bus.chaos.happens(self._crashes):
            # Before it publishes what follows; perhaps before it acknowledges.
            delivery.is_settled = self._chaotic_bus.chaos.happens(0.5)
            self._crash()
        else:
            self._go_on()

    def _look(self) -> None:
        if self._is_up:
            self._tick_now()
        self._agenda.after(LOOKS_EVERY_S, self._look)

    def _tick_now(self) -> None:
        if self._is_up:
            super()._tick_now()

    def _publish(self) -> None:
        if self._is_up:
            with contextlib.suppress(BusUnavailable):
                super()._publish()

    async def _dies(self) -> bool:
        if self._chaotic_bus.chaos.happens(self._crashes):
            self._crash()
            return True
        return False

    def _crash(self) -> None:
        self._is_up = False
        self.deaths += 1
        self._agenda.after(self._chaotic_bus.chaos.random.uniform(0.1, AWAY_S), self._come_back)

    def _come_back(self) -> None:
        if not self._is_up:
            self._is_up = True
            self._begin(PublishingBus(self._chaotic_bus, self._dies))
            self._go_on()

    def _bus_is_back(self) -> None:
        # The relay looks for what the bus has lost, though nothing is to be published.
        if self._is_up:
            with contextlib.suppress(BusUnavailable):
                at_once(self._relay.publish_pending())
            self._go_on()
        if isinstance(self.decider, Controller):
            self._repair_orders(self._agenda.seconds + REPAIRED_FOR_S)

    def _repair_orders(self, until_s: float) -> None:
        """Do for a while what the controller does all the time: put orders in place that the bus has lost."""
        decider, signer, now = self.decider, self._signer, self._agenda.now
        assert isinstance(decider, Controller) and signer is not None
        if self._is_up and self._chaotic_bus.connected_since is not None:
            bus = self._chaotic_bus
            at_once(repair_orders(bus, lambda: truths(decider.orders_in_force(), signer, now)))  # type: ignore[arg-type]
        if self._agenda.seconds < until_s:
            self._agenda.after(EVERY_S, lambda: self._repair_orders(until_s))


def disturb(bus: ChaoticBus, plan: ChaosPlan, services: Iterable[Service], machines: Iterable[Machine]) -> None:
    """Switch the chaos on for these services and the disks of these machines."""
    for service in services:
        assert isinstance(service, ChaoticService)
        service.begin_chaos(bus, plan.crashes)
    for machine in machines:
        _forget(machine, lambda: bus.chaos.random.uniform(0.0, plan.forgets_s))


def _forget(machine: Machine, loses_s: Callable[[], float]) -> None:
    disk = ForgetfulDisk(Durable(), lambda: machine.agenda.seconds, loses_s)
    machine.on_write = disk.write
    machine.disk_after_loss = lambda _: disk.after_loss()
