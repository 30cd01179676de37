"""`holdfast hang JOB`: stacks of a job's processes, and the ranks that hold it up."""

from __future__ import annotations

import re
from pathlib import Path

import click
import msgspec

from holdfast.cli.connect.addresses import both_urls
from holdfast.cli.connect.ask import asked_by
from holdfast.cli.connect.connect_options import cluster_options
from holdfast.cli.follow.awaited_finding import find
from holdfast.cli.names import require_name
from holdfast.cli.output.tables import cell, json_text, render
from holdfast.events import JobTraced
from holdfast.events.parts.ranks import CodePlace, HangSuspect
from holdfast.fresh_ids import uuid7
from holdfast.ids import derived_id
from holdfast.requests import TraceJob

FOUND_WITHIN_S = 20.0
"""Nodes have ten seconds to answer; the rest is for the verdict and its recording."""

MOVES_S = 2.0
"""Agents report once a second: a job with progress within this time is moving."""

_RANKS_SHOWN = 12
_FRAMES_SHOWN = 6


@click.command()
@click.argument("job")
@click.option("--native", is_flag=True, help="Include frames of compiled code: pauses each process for half a second.")
@click.option("--json", "as_json", is_flag=True, help="Print the finding as JSON.")
@cluster_options
def hang(
    job: str, native: bool, as_json: bool, directory: Path, nats_url: str | None, database_url: str | None
) -> None:
    """Trace the processes of JOB now: where each is, and which ranks hold the job up.

    \b
        holdfast hang my-job
        holdfast hang my-job --json | jq .suspects

    Reads the stacks of every rank, data loader worker and checkpoint writer on all nodes, and each rank's record of its
    collectives. Training continues meanwhile. A job that hangs is traced automatically; this command is for a look at
    any time, and for jobs whose hangs are only observed.

    Exit codes: 0 the job moves or there is no suspect, 1 the job makes no progress and there is a suspect, 2 it could
    not be traced.
    """
    require_name(job, "job name")
    bus, database = both_urls(directory, nats_url, database_url)
    request = TraceJob(id=uuid7(), asked_by=asked_by(), job=job, native=native)
    finding = find(
        request,
        JobTraced,
        derived_id(request.id, "traced"),
        command="hang",
        bus_url=bus,
        database_url=database,
        within_s=FOUND_WITHIN_S,
    )
    click.echo(json_text(msgspec.to_builtins(finding), indent=2) if as_json else "\n".join(_in_words(finding)))
    if finding.suspects and not _moves(finding):
        raise click.exceptions.Exit(1)


def _moves(finding: JobTraced) -> bool:
    return finding.still_s < MOVES_S


def _in_words(finding: JobTraced) -> list[str]:
    head = f"job {cell(finding.job)}, generation {finding.generation}"
    lines = [f"{head}: {finding.processes} processes in {finding.took_s:.1f} s", ""]
    rows = [(place.kind, place.count, _ranks(place.ranks), _location(place)) for place in finding.places]
    lines += render(["KIND", "COUNT", "RANKS", "IS IN"], rows).splitlines()
    for place in finding.places:
        if not place.is_usual and place.stack:
            whose = "" if place.kind == "rank" else f"{cell(place.kind)} of "
            lines += ["", f"{whose}rank {_ranks(place.ranks)}:"]
            lines += [f"  {cell(frame)}" for frame in _own_frames(place.stack)]
    lines += ["", *_verdict(finding)]
    if finding.working and not _moves(finding):
        lines.append(f"rank {_ranks(finding.working)}: is computing, reading or writing, and may only be slow")
    lines += [f"not read: {cell(line)}" for line in finding.unread]
    if finding.unanswered:
        lines.append(f"no answer from {', '.join(map(cell, finding.unanswered))}")
    return lines


def _verdict(finding: JobTraced) -> list[str]:
    if _moves(finding):
        if not finding.suspects:
            return ["the job makes progress; there is no suspect"]
        awaited = [f"  {_ranks_and_nodes(suspect)}: {cell(suspect.reason)}" for suspect in finding.suspects]
        return ["the job makes progress; others wait at this moment for these ranks, as in every step:", *awaited]
    still = f"no progress for {finding.still_s:.1f} s"
    if not finding.suspects:
        return [f"{still}; there is no suspect: {cell(finding.summary)}"]
    if len(finding.suspects) == 1:
        # The summary contains the reason for a single suspect, and what the kernel reports of its processes.
        only = finding.suspects[0]
        return [still, *_suspect(msgspec.structs.replace(only, reason=finding.summary or only.reason))]
    return [still, *(line for suspect in finding.suspects for line in _suspect(suspect)), cell(finding.summary)]


def _suspect(suspect: HangSuspect) -> list[str]:
    head = f"suspected: {_ranks_and_nodes(suspect)} ({suspect.confidence:.0%}): {cell(suspect.reason)}"
    return [head, *(f"  | {cell(line)}" for line in suspect.evidence)]


def _ranks_and_nodes(suspect: HangSuspect) -> str:
    where = f" on {', '.join(map(cell, suspect.nodes))}" if suspect.nodes else ""
    one_of = "one of the ranks" if len(suspect.ranks) > 1 else "rank"
    return f"{one_of} {_ranks(suspect.ranks)}{where}"


def _location(place: CodePlace) -> str:
    if place.waits_for:
        return place.waits_for
    return " < ".join(map(_short, _own_frames(place.stack)[:_FRAMES_SHOWN])) or "no stack"


_HOLDFAST_FRAME = re.compile(r"/(holdfast_agent|holdfast_checks|holdfast/trainer)/[^()]*\)$")


def _own_frames(stack: tuple[str, ...]) -> tuple[str, ...]:
    """Remove the frames of Holdfast: those that started the rank, and its hooks."""
    return tuple(frame for frame in stack if not _HOLDFAST_FRAME.search(frame)) or stack


_PLACE = re.compile(r"\((?:[^()]*/)([^()/]+)\)")


def _short(frame: str) -> str:
    """Return a frame without the folder of its file."""
    return _PLACE.sub(r"(\1)", frame)


def _ranks(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:_RANKS_SHOWN]))
    return f"{shown}, ... ({len(ranks)})" if len(ranks) > _RANKS_SHOWN else shown
