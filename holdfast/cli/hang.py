"""`holdfast hang JOB`: what the processes of a job do just now, and who holds it up by that."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import click
import msgspec

from holdfast.cli.addresses import both_urls, database_option, nats_option
from holdfast.cli.ask import ask, asked_by
from holdfast.cli.bus import connected
from holdfast.cli.database import reading
from holdfast.cli.directory import directory_option
from holdfast.cli.names import checked_or_complain
from holdfast.cli.tables import cell, json_text, render
from holdfast.event_parts import HangSuspect, StandingPlace
from holdfast.events import JobTraced
from holdfast.ids import uuid7
from holdfast.requests import ANALYZER_REQUESTS, TraceJob

FOUND_WITHIN_S = 20.0
"""Nodes have ten seconds to answer; then it is judged and recorded."""

LOOK_EVERY_S = 0.1
MOVES_S = 2.0
"""Agents tell once a second: what a job has noted this short a time ago is as new as can be known."""

_RANKS_SHOWN = 12
_FRAMES_SHOWN = 6

_FINDING = """
select body from historian.events where type = 'job_traced' and job = $1 and body->>'trace' = $2
"""


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

    The exit code is 1 if the job stands still and somebody is suspected, else 0.

    \b
        holdfast hang my-job
        holdfast hang my-job --json | jq .suspects
    """
    checked_or_complain(job, "job name")
    bus, database = both_urls(directory, nats_url, database_url)
    found = asyncio.run(_trace(job, bus, database, native=native))
    click.echo(json_text(msgspec.to_builtins(found), indent=2) if as_json else "\n".join(_in_words(found)))
    if found.suspects and not _moves(found):
        raise click.exceptions.Exit(1)


async def _trace(job: str, bus_url: str, database_url: str, *, native: bool) -> JobTraced:
    request = TraceJob(id=uuid7(), asked_by=asked_by(), job=job, native=native)
    async with connected(bus_url, "hang") as bus:
        answer = await ask(bus, ANALYZER_REQUESTS, request, "analyzer")
    if not answer.accepted:
        raise click.ClickException(answer.message)
    try:
        async with asyncio.timeout(FOUND_WITHIN_S), reading(database_url) as connection:
            while True:
                if row := await connection.fetchrow(_FINDING, job, request.id):
                    return msgspec.convert(row["body"], JobTraced)
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise click.ClickException(
            f"no finding within {FOUND_WITHIN_S:g} s: the job may have ended, or moved to another generation; "
            "`holdfast status` shows the job, the analyzer and the historian"
        ) from None


def _moves(found: JobTraced) -> bool:
    return found.still_s < MOVES_S


def _in_words(found: JobTraced) -> list[str]:
    head = f"job {cell(found.job)}, generation {found.generation}"
    lines = [f"{head}: {found.processes} processes in {found.took_s:.1f} s", ""]
    rows = [(place.kind, place.count, _ranks(place.ranks), _where(place)) for place in found.places]
    lines += render(["KIND", "COUNT", "RANKS", "STANDS IN"], rows).splitlines()
    for place in found.places:
        if not place.is_usual and place.stack:
            lines += ["", f"{cell(place.kind)} of rank {_ranks(place.ranks)}:"]
            lines += [f"  {cell(frame)}" for frame in place.stack]
    lines.append("")
    if _moves(found):
        lines.append("the job moves; suspected is who others wait for just now")
    else:
        lines.append(f"the job has noted nothing for {found.still_s:.1f} s")
    lines += [line for suspect in found.suspects for line in _suspect(suspect)] or ["nobody is suspected"]
    if found.summary:
        lines.append(cell(found.summary))
    if found.working:
        lines.append(f"rank {_ranks(found.working)}: computes, reads or writes, so it may only be slow")
    lines += [f"not read: {cell(line)}" for line in found.unread]
    if found.unanswered:
        lines.append(f"no answer from {', '.join(map(cell, found.unanswered))}")
    return lines


def _suspect(suspect: HangSuspect) -> list[str]:
    where = f" on {', '.join(map(cell, suspect.nodes))}" if suspect.nodes else ""
    one_of = "one of the ranks" if len(suspect.ranks) > 1 else "rank"
    head = f"suspected: {one_of} {_ranks(suspect.ranks)}{where} ({suspect.confidence:.0%}): {cell(suspect.reason)}"
    return [head, *(f"  | {cell(line)}" for line in suspect.evidence)]


def _where(place: StandingPlace) -> str:
    if place.waits_for:
        return place.waits_for
    return " < ".join(map(_short, place.stack[:_FRAMES_SHOWN])) or "no stack"


_PLACE = re.compile(r"\((?:[^()]*/)([^()/]+)\)")


def _short(frame: str) -> str:
    """A frame without the folder that its file lies in."""
    return _PLACE.sub(r"(\1)", frame)


def _ranks(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:_RANKS_SHOWN]))
    return f"{shown}, ... ({len(ranks)})" if len(ranks) > _RANKS_SHOWN else shown
