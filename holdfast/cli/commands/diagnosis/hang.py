"""`holdfast hang JOB`: what the processes of a job do just now, and who holds it up by that."""

from __future__ import annotations

import re
from pathlib import Path

import click
import msgspec

from holdfast.cli.connect.addresses import both_urls, database_option, nats_option
from holdfast.cli.connect.ask import asked_by
from holdfast.cli.connect.directory import directory_option
from holdfast.cli.follow.findings import find
from holdfast.cli.names import require_name
from holdfast.cli.output.tables import cell, json_text, render
from holdfast.events import JobTraced
from holdfast.events.parts.ranks import HangSuspect, StandingPlace
from holdfast.fresh_ids import uuid7
from holdfast.ids import derived_id
from holdfast.requests import TraceJob

FOUND_WITHIN_S = 20.0
"""Nodes have ten seconds to answer; then it is judged and recorded."""

MOVES_S = 2.0
"""Agents tell once a second: what a job has noted this short a time ago is as new as can be known."""

_RANKS_SHOWN = 12
_FRAMES_SHOWN = 6


@click.command()
@click.argument("job")
@click.option("--native", is_flag=True, help="Frames of compiled code too: pauses each process for half a second.")
@click.option("--json", "as_json", is_flag=True, help="Print the finding as JSON.")
@directory_option
@nats_option
@database_option
def hang(
    job: str, native: bool, as_json: bool, directory: Path, nats_url: str | None, database_url: str | None
) -> None:
    """Trace the processes of JOB now, and say who stands where and who holds it up.

    The stacks of every rank, data loader worker and checkpoint writer are read on all nodes, and what each rank
    remembers of its collectives. Training goes on meanwhile. A job that hangs is traced without being asked; this is
    for a look at any time, and for jobs whose hangs are only observed.

    The exit code is 1 if the job stands still and somebody is suspected, 2 if it could not be traced, else 0.

    \b
        holdfast hang my-job
        holdfast hang my-job --json | jq .suspects
    """
    require_name(job, "job name")
    bus, database = both_urls(directory, nats_url, database_url)
    request = TraceJob(id=uuid7(), asked_by=asked_by(), job=job, native=native)
    told = find(
        request,
        JobTraced,
        derived_id(request.id, "traced"),
        command="hang",
        bus_url=bus,
        database_url=database,
        within_s=FOUND_WITHIN_S,
    )
    click.echo(json_text(msgspec.to_builtins(told), indent=2) if as_json else "\n".join(_in_words(told)))
    if told.suspects and not _moves(told):
        raise click.exceptions.Exit(1)


def _moves(told: JobTraced) -> bool:
    return told.still_s < MOVES_S


def _in_words(told: JobTraced) -> list[str]:
    head = f"job {cell(told.job)}, generation {told.generation}"
    lines = [f"{head}: {told.processes} processes in {told.took_s:.1f} s", ""]
    rows = [(place.kind, place.count, _ranks(place.ranks), _where(place)) for place in told.places]
    lines += render(["KIND", "COUNT", "RANKS", "STANDS IN"], rows).splitlines()
    for place in told.places:
        if not place.is_usual and place.stack:
            whose = "" if place.kind == "rank" else f"{cell(place.kind)} of "
            lines += ["", f"{whose}rank {_ranks(place.ranks)}:"]
            lines += [f"  {cell(frame)}" for frame in _own_frames(place.stack)]
    lines += ["", *_verdict(told)]
    if told.working and not _moves(told):
        lines.append(f"rank {_ranks(told.working)}: computes, reads or writes, so it may only be slow")
    lines += [f"not read: {cell(line)}" for line in told.unread]
    if told.unanswered:
        lines.append(f"no answer from {', '.join(map(cell, told.unanswered))}")
    return lines


def _verdict(told: JobTraced) -> list[str]:
    if _moves(told):
        if not told.suspects:
            return ["the job moves; nobody is suspected"]
        waited_for = [f"  {_whose(suspect)}: {cell(suspect.reason)}" for suspect in told.suspects]
        return ["the job moves; who others wait for just now, as happens in every step:", *waited_for]
    stands = f"the job has noted nothing for {told.still_s:.1f} s"
    if not told.suspects:
        return [f"{stands}; nobody is suspected: {cell(told.summary)}"]
    if len(told.suspects) == 1:
        # Of a single suspect the summary says all that its reason does, and what the kernel says of its processes.
        only = told.suspects[0]
        return [stands, *_suspect(msgspec.structs.replace(only, reason=told.summary or only.reason))]
    return [stands, *(line for suspect in told.suspects for line in _suspect(suspect)), cell(told.summary)]


def _suspect(suspect: HangSuspect) -> list[str]:
    head = f"suspected: {_whose(suspect)} ({suspect.confidence:.0%}): {cell(suspect.reason)}"
    return [head, *(f"  | {cell(line)}" for line in suspect.evidence)]


def _whose(suspect: HangSuspect) -> str:
    where = f" on {', '.join(map(cell, suspect.nodes))}" if suspect.nodes else ""
    one_of = "one of the ranks" if len(suspect.ranks) > 1 else "rank"
    return f"{one_of} {_ranks(suspect.ranks)}{where}"


def _where(place: StandingPlace) -> str:
    if place.waits_for:
        return place.waits_for
    return " < ".join(map(_short, _own_frames(place.stack)[:_FRAMES_SHOWN])) or "no stack"


_HOLDFAST = re.compile(r"/(holdfast_agent|holdfast_checks|holdfast/trainer)/[^()]*\)$")


def _own_frames(stack: tuple[str, ...]) -> tuple[str, ...]:
    """Without the frames of what started the rank, and of the hooks in it."""
    return tuple(frame for frame in stack if not _HOLDFAST.search(frame)) or stack


_PLACE = re.compile(r"\((?:[^()]*/)([^()/]+)\)")


def _short(frame: str) -> str:
    """A frame without the folder that its file lies in."""
    return _PLACE.sub(r"(\1)", frame)


def _ranks(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:_RANKS_SHOWN]))
    return f"{shown}, ... ({len(ranks)})" if len(ranks) > _RANKS_SHOWN else shown
