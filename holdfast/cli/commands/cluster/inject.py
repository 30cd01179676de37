"""`holdfast inject`: injection of faults into a cluster that allows it."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.bus import event_message
from holdfast.cli.connect.addresses import both_elsewhere
from holdfast.cli.connect.ask import asked_by
from holdfast.cli.connect.bus import connected
from holdfast.cli.connect.connect_options import json_option
from holdfast.cli.connect.directory import as_typed, cluster_errors, directory_option
from holdfast.cli.names import require_name
from holdfast.cli.output.duration import Duration
from holdfast.cli.output.tables import Column, cell, json_text, table
from holdfast.cli.values import WholeNumber
from holdfast.clock import system_now
from holdfast.embedded.control import is_running
from holdfast.embedded.errors import NoCluster
from holdfast.embedded.layout import ClusterInfo, ClusterLayout
from holdfast.events import FaultInjected
from holdfast.exit_codes import NOT_PERMITTED
from holdfast.faults.fault import Fault, FaultRefused, FaultScope
from holdfast.faults.injections import Injection, InjectionLog
from holdfast.faults.registry import FAULTS, find_fault
from holdfast.faults.requirements import lacking
from holdfast.faults.target import FaultTarget, TargetNotFound, find_target, running_ranks
from holdfast.fresh_ids import uuid7


class _NotPermitted(click.ClickException):
    exit_code = NOT_PERMITTED


@click.command()
@click.argument("fault", required=False)
@click.option("--rank", type=WholeNumber(min=0), help="Target rank.")
@click.option("--node", help="Target node.")
@click.option("--job", help="Job of the rank, if several run.")
@click.option("--option", "-o", "given", multiple=True, metavar="NAME=VALUE", help="Set an option of the fault.")
@click.option(
    "--for", "for_s", type=Duration(), metavar="TIME", help="Undo it after this time (30s, 5m), or on Ctrl-C."
)
@click.option("--undo", is_flag=True, help="Undo active faults: all, or the FAULT or id given.")
@click.option("--list", "listed", is_flag=True, help="List the faults with their requirements, and the active ones.")
@json_option
@directory_option
def inject(
    fault: str | None,
    rank: int | None,
    node: str | None,
    job: str | None,
    given: tuple[str, ...],
    for_s: float | None,
    undo: bool,
    listed: bool,
    as_json: bool,
    directory: Path,
) -> None:
    """Inject a real fault into a cluster that `holdfast up --allow-faults` started on this machine.

    Faults use real signals, control groups, mounts, links and kernel log lines; no component of the cluster simulates
    them. Each step is recorded before it is done, here and in the history (event fault_injected), and is undone after
    --for, on Ctrl-C, or by --undo, even after a crash.

    \b
    holdfast inject --list
    holdfast inject kill-rank --rank 3
    holdfast inject freeze-rank --rank 5 --for 2m
    holdfast inject slow-node --node node-1 -o cores=0.1
    holdfast inject xid -o xid=79 -o pci=0000:3b:00
    holdfast inject --undo

    Exit codes: 0 done, 1 it cannot be injected or undone, 2 wrong options, 77 the cluster does not allow faults.
    """
    layout = ClusterLayout(directory)
    with cluster_errors(), _refusals():
        if listed:
            _list(layout, as_json)
        elif undo:
            _undo(layout, fault, as_json)
        elif fault is None:
            raise click.UsageError("give a FAULT: `holdfast inject --list` shows them")
        else:
            wanted = find_fault(fault)
            settings = _parsed(given)
            info = _permitted(layout)
            for name, what in ((node, "node name"), (job, "job name")):
                if name is not None:
                    require_name(name, what)
            target = _aimed(wanted, layout, info, rank, node, job)
            _strike(wanted, target, settings, for_s, as_json)


def _permitted(layout: ClusterLayout) -> ClusterInfo:
    """Return the cluster. Raises ClickException if it is elsewhere, does not run, or does not allow faults."""
    if both_elsewhere(None, None) is not None:
        raise click.ClickException(
            "faults can be injected into a cluster of this machine only: name its directory with --dir"
        )
    try:
        info = layout.info()
    except NoCluster:
        raise click.ClickException(
            f"no cluster here ({layout.root}): start one for drills with `holdfast up --allow-faults`"
        ) from None
    if not is_running(layout):
        raise click.ClickException(
            f"the cluster in {layout.root} is not running: start it with `{as_typed('up', layout.root)} --allow-faults`"
        )
    if not info.allows_faults:
        raise _NotPermitted(
            f"the cluster in {layout.root} does not allow faults: stop it with `{as_typed('down', layout.root)}`, and "
            f"start it with `{as_typed('up', layout.root)} --allow-faults` if its jobs may be harmed"
        )
    return info


def _aimed(
    fault: Fault, layout: ClusterLayout, info: ClusterInfo, rank: int | None, node: str | None, job: str | None
) -> FaultTarget:
    if fault.at is FaultScope.RANK and rank is None:
        there = ", ".join(str(one.rank) for one in running_ranks(layout, info))
        raise click.UsageError(f"{fault.name} targets a rank: name it with --rank (running: {there or 'none'})")
    if fault.at is FaultScope.NODE and node is None:
        raise click.UsageError(f"{fault.name} targets a node: name it with --node ({', '.join(info.nodes)})")
    if fault.at is not FaultScope.RANK and (rank is not None or job is not None):
        raise click.UsageError(f"{fault.name} targets a {fault.at}: omit --rank and --job")
    return find_target(uuid7(), layout, info, node=node, rank=rank, job=job)


def _strike(fault: Fault, target: FaultTarget, given: dict[str, str], for_s: float | None, as_json: bool) -> None:
    if reasons := [reason for need in fault.needs if (reason := lacking(need))]:
        raise click.ClickException(f"{fault.name} cannot be injected here: {'; '.join(reasons)}")
    options = fault.configured(given)
    record = InjectionLog(target.layout)
    injected = Injection(
        id=target.id,
        fault=fault.name,
        at=system_now(),
        by=asked_by(),
        steps=fault.plan(target, options),  # type: ignore[arg-type]
        symptom=fault.symptom_with(options) or "",
        node=target.node,
        job=target.job,
        rank=target.rank.rank if target.rank else None,
        options=given,
    )
    if for_s is not None and not injected.lasts:
        raise click.UsageError(f"{fault.name} has no duration: omit --for")
    url = target.info.nats_url
    asyncio.run(_publish(url, injected, "injected"))
    with _ended_by_signals():
        record.inject(injected)
        if for_s is None:
            _print(fault, injected, target, for_s, as_json)
            return
        try:
            _print(fault, injected, target, for_s, as_json)
            time.sleep(for_s)
        finally:
            record.undo(injected)
            asyncio.run(_publish(url, injected, "undone"))
            click.echo(f"{fault.name} is undone", err=True)


def _undo(layout: ClusterLayout, which: str | None, as_json: bool) -> None:
    record = InjectionLog(layout)
    chosen = [one for one in record.all() if which is None or one.fault == which or one.id.startswith(which)]
    if which is not None and not chosen:
        active = ", ".join(f"{one.fault} ({one.id})" for one in record.all())
        raise click.ClickException(f"no fault {which} is active; active are: {active or 'none'}")
    url = layout.info().nats_url if is_running(layout) else None
    undone: list[Injection] = []
    failed: list[str] = []
    for injected in reversed(chosen):
        try:
            record.undo(injected)
        except FaultRefused as error:
            failed.append(str(error))
            continue
        undone.append(injected)
        if url is not None:
            asyncio.run(_publish(url, injected, "undone"))
    if as_json:
        click.echo(json_text([_shown(injected) for injected in undone], indent=2))
    elif undone:
        click.echo("\n".join(f"undone: {_in_words(injected)}" for injected in undone))
    elif not failed:
        click.echo("no fault is active")
    if failed:
        raise FaultRefused("; ".join(failed))


def _list(layout: ClusterLayout, as_json: bool) -> None:
    in_force = InjectionLog(layout).all()
    rows: list[dict[str, Any]] = [
        {
            "fault": fault.name,
            "symptom": fault.symptom,
            "strikes": fault.at.value,
            "what": fault.what,
            "options": fault.settings(),
            "needs": [need.value for need in fault.needs],
            "undo": fault.undo,
            "lacking": [reason for need in fault.needs if (reason := lacking(need))],
        }
        for fault in FAULTS.values()
    ]
    if as_json:
        click.echo(json_text({"faults": rows, "in_force": [_shown(injected) for injected in in_force]}, indent=2))
        return
    columns: dict[str, Column] = {
        "FAULT": "fault",
        "SYMPTOM": "symptom",
        "STRIKES": "strikes",
        "OPTIONS": lambda row: [f"{name}={'' if value is None else value}" for name, value in row["options"].items()],
        "NEEDS": "needs",
        "WHAT HAPPENS": "what",
        "UNDONE BY": "undo",
    }
    click.echo(table(columns, rows))
    for reason in dict.fromkeys(reason for row in rows for reason in row["lacking"]):
        names = ", ".join(row["fault"] for row in rows if reason in row["lacking"])
        click.echo(f"\nNot available here: {names}: {reason}")
    if in_force:
        click.echo("\nActive (`holdfast inject --undo` undoes them):")
        click.echo("\n".join(f"  {_in_words(injected)}" for injected in in_force))


def _print(fault: Fault, injected: Injection, target: FaultTarget, for_s: float | None, as_json: bool) -> None:
    undo = ""
    if injected.lasts and for_s is None:
        undo = f"{as_typed('inject --undo', target.layout.root)} {injected.id}"
    if as_json:
        click.echo(json_text(_shown(injected) | {"undo": undo}, indent=2))
    else:
        click.echo(f"{_in_words(injected)}: {fault.what}")
        if undo:
            click.echo(f"  undo it ({fault.undo}): {undo}")
        elif for_s is not None:
            click.echo(f"  undone in {for_s:g} s, or by Ctrl-C ({fault.undo})")
    sys.stdout.flush()


async def _publish(url: str, injected: Injection, state: str) -> None:
    """Publish the event for the history; without it, no fault is injected."""
    event = FaultInjected(
        id=injected.id if state == "injected" else uuid7(),
        at=injected.at if state == "injected" else system_now(),
        source="cli",
        job=injected.job,
        node=injected.node,
        injection=injected.id,
        fault=injected.fault,
        by=injected.by,
        state="injected" if state == "injected" else "undone",
        symptom=injected.symptom,
        rank=injected.rank,
        options=tuple(f"{name}={value}" for name, value in injected.options.items()),
    )
    async with connected(url, "inject") as bus:
        await bus.publish(event_message(event))


def _parsed(given: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if wrong := [name for name, sign, _ in pairs if not name or not sign]:
        raise click.UsageError(f"-o {wrong[0]}: give NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _shown(injected: Injection) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(injected, builtin_types=(type(injected.at),))
    return shown


def _in_words(injected: Injection) -> str:
    where = [f"rank {injected.rank} of {injected.job}"] if injected.rank is not None else []
    where += [injected.node] if injected.node else []
    options = "".join(f", {name}={value}" for name, value in injected.options.items())
    place = " on ".join(where) or "this machine"
    return f"{injected.fault} on {place}{options} at {cell(injected.at)} UTC ({injected.id})"


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (FaultRefused, TargetNotFound) as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, so that a fault with --for is undone."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
