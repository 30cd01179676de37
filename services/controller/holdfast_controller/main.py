"""The controller's process: reads the settings once, wires, runs."""

from __future__ import annotations

import asyncio

from holdfast.bus.nats import connect
from holdfast.clock import system_now
from holdfast.daemon import process
from holdfast.daemon.orders.order_keys import signer_of
from holdfast.daemon.orders.order_repair import Correction, keep_orders, repair_orders
from holdfast.daemon.process import Daemon
from holdfast.daemon.retrying import until_available
from holdfast.daemon.service_shell import ServiceShell
from holdfast.engines.crash.rules import rule_book
from holdfast.store import StoreUnavailable
from holdfast.store.postgres import PostgresStore
from holdfast.subjects import JOBS_BUCKET
from holdfast_controller.code.librarian import Librarian
from holdfast_controller.code.shelf import PostgresShelf
from holdfast_controller.newer_orders import newest_generations
from holdfast_controller.node_order_repair import hints, truths
from holdfast_controller.plan.draft import Rules
from holdfast_controller.service import Controller
from holdfast_controller.stray_orders import end_stray_orders


async def serve(this: Daemon) -> None:
    """Run the controller until it is stopped."""
    signer = signer_of(this, "controller")
    bus = await connect(this.nats_url, "controller", network=this.settings.network)
    shelf = await PostgresShelf.connect(this.database_url)
    librarian = Librarian(bus, shelf)
    settings = this.settings
    rules = Rules(
        timeouts=settings.timeouts,
        ladder=settings.ladder,
        mechanisms=settings.mechanisms,
        hang=settings.hang,
        code=settings.code,
        record=settings.record,
        warm_up=settings.warm_up,
        manifests=librarian.manifests,
    )
    controller = Controller(rules, settings.retention)
    store = await PostgresStore.connect(this.database_url, "controller", application_name="holdfast-controller")
    try:
        # Before the first decision, which may be to roll back to one of them.
        await librarian.load()

        def in_force() -> dict[str, Correction]:
            return truths(controller.orders_in_force(), signer, system_now)

        async def repair() -> None:
            await repair_orders(bus, in_force)
            await repair_orders(bus, lambda: hints(controller.code_in_force(), signer, system_now), JOBS_BUCKET)

        async def count_forgotten() -> None:
            on_bus = await newest_generations(bus, controller.members(), signer)
            waiting = await until_available(lambda: store.pending(1), StoreUnavailable, "the outbox")
            controller.count_from(on_bus, system_now(), all_published=not waiting)

        shell = ServiceShell(controller, bus, store, signer=signer, repair=repair, prepare=count_forgotten)
        async with asyncio.TaskGroup() as group:
            group.create_task(librarian.run(), name="code")
            group.create_task(shell.run(), name="shell")
            group.create_task(keep_orders(bus, in_force), name="repair orders")
            await shell.loaded.wait()
            # Otherwise the first failure would wait until its rules are compiled.
            rule_book()
            group.create_task(end_stray_orders(bus, controller.has_job, signer, system_now), name="end stray orders")
    finally:
        await bus.close()
        await store.close()
        await shelf.close()


def main() -> None:
    process.run("holdfast_controller", serve, description="Jobs, generations, incidents and the recovery ladder.")
