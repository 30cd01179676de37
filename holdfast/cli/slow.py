"""`holdfast slow JOB`: how the ranks of a job spend their time just now, and who makes it slow."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click
import msgspec

from holdfast import config
from holdfast.cli.addresses import both_urls, database_option, nats_option
from holdfast.cli.ask import ask, asked_by
from holdfast.cli.bus import connected
from holdfast.cli.database import reading
from holdfast.cli.directory import directory_option
from holdfast.cli.names import checked_or_complain
from holdfast.cli.tables import cell, json_text, render
from holdfast.event_parts import FlaggedGroup
from holdfast.events import FailSlowLocated
from holdfast.ids import uuid7
from holdfast.requests import ANALYZER_REQUESTS, LocateSlowness

FOUND_WITHIN_S = 90.0
"""Tests wait for the end of a step, and steps may be long."""

LOOK_EVERY_S = 0.1
RANKS_SHOWN = 12

_FINDING = """
select body from historian.events where type = 'fail_slow_located' and job = $1 and body->>'asked' = $2
"""


@click.command()
@click.argument("job")
@click.option("--test", is_flag=True, help="Hold training for a moment at the end of a step, and test the suspects.")
@click.option("--stacks", is_flag=True, help="Take its stacks in rounds, and say who stands elsewhere than most.")
@click.option("--json", "as_json", is_flag=True, help="Print the finding as JSON.")
@directory_option
@nats_option
@database_option
def slow(
    job: str, test: bool, stacks: bool, as_json: bool, directory: Path, nats_url: str | None, database_url: str | None
) -> None:
    """Say how the ranks of JOB spend their time, and who makes it slow.

    Iterations are told by the collectives that ranks call, whatever the script says of steps. Ranks of one pipeline
    stage are compared with each other, and groups of one kind by what their collectives take once all are there. A job
    that gets slow is looked at without being asked; this is for a look at any time.

    With --test all ranks stand still at the end of a step, suspects multiply matrices on their devices, the links
    of suspected groups are tried out, and training goes on where it stood, some seconds later at the most.

    With --stacks the stacks of all its processes are read five times, ten seconds apart ([slow] vote_rounds,
    vote_every_s), while it goes on. Each time the machine or parallel group with the most ranks that stand elsewhere
    than the others is flagged, and the one that is so most often is suspected: for jobs whose collectives show nothing.

    The exit code is 0 if nobody is suspected, and 1 if somebody is.

    \b
        holdfast slow my-job
        holdfast slow my-job --test
        holdfast slow my-job --stacks
        holdfast slow my-job --json | jq .nodes
    """
    checked_or_complain(job, "job name")
    if test and stacks:
        raise click.UsageError("--test holds training, and --stacks looks at it while it goes on: use one of them")
    bus, database = both_urls(directory, nats_url, database_url)
    found = asyncio.run(_locate(job, bus, database, test=test, stacks=stacks))
    click.echo(json_text(msgspec.to_builtins(found), indent=2) if as_json else "\n".join(_in_words(found)))
    if found.nodes or found.links or found.suspects:
        raise click.exceptions.Exit(1)


async def _locate(job: str, bus_url: str, database_url: str, *, test: bool, stacks: bool) -> FailSlowLocated:
    request = LocateSlowness(id=uuid7(), asked_by=asked_by(), job=job, test=test, stacks=stacks)
    within_s = FOUND_WITHIN_S
    if stacks:
        policy = config.load(os.environ)[0].slow
        within_s += policy.vote_rounds * (policy.vote_every_s + policy.answer_s)
    async with connected(bus_url, "slow") as bus:
        answer = await ask(bus, ANALYZER_REQUESTS, request, "analyzer")
    if not answer.accepted:
        raise click.ClickException(answer.message)
    try:
        async with asyncio.timeout(within_s), reading(database_url) as connection:
            while True:
                if row := await connection.fetchrow(_FINDING, job, request.id):
                    return msgspec.convert(row["body"], FailSlowLocated)
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise click.ClickException(
            f"no finding within {within_s:g} s: the job may have ended, or moved to another generation; "
            "`holdfast status` shows the job, the analyzer and the historian"
        ) from None


def _in_words(found: FailSlowLocated) -> list[str]:
    healthy = f", {found.healthy_s:.4g} s before" if found.healthy_s else ""
    head = f"job {cell(found.job)}, generation {found.generation}: {found.pace_s:.4g} s an iteration{healthy}"
    lines = [head]
    if found.pace:
        rows = [
            (rank.rank, rank.node, f"{rank.iteration_s:.4g}", f"{rank.work_s:.4g}", f"{rank.in_calls_s:.4g}")
            for rank in found.pace
        ]
        lines += ["", *render(["RANK", "NODE", "ITERATION S", "OWN WORK S", "IN COLLECTIVES S"], rows).splitlines()]
    if found.groups:
        calls = [
            (
                group.group,
                group.kind,
                group.ranks,
                group.operation,
                group.bytes,
                f"{1000 * group.transfer_s:.4g}",
                f"{1000 * group.waiting_s:.4g}",
            )
            for group in found.groups
        ]
        heads = ["GROUP", "KIND", "RANKS", "COLLECTIVE", "BYTES", "TAKES MS", "WAITS MS"]
        lines += ["", *render(heads, calls).splitlines()]
    lines += ["", *_verdict(found)]
    return lines


def _verdict(found: FailSlowLocated) -> list[str]:
    lines: list[str] = []
    tested = f"tested, training stood still for {found.held_s:.1f} s" if found.is_validated else "not tested"
    if found.nodes:
        lines.append(f"slow ({found.fault}; {tested}): {', '.join(map(cell, found.nodes))}")
    lines += [f"slow link ({tested}): {cell(sender)} to {cell(receiver)}" for sender, receiver in found.links]
    if found.suspects and found.rounds:
        several = "one of " if len(found.suspects) > 1 else ""
        lines.append(f"suspected ({found.confidence:.0%}): {several}{', '.join(map(cell, found.suspects))}")
    elif found.suspects and not (found.nodes or found.links):
        lines.append(f"suspected ({found.fault}; {tested}): {', '.join(map(cell, found.suspects))}")
    lines.append(cell(found.summary))
    lines += [f"  | {cell(line)}" for line in found.evidence]
    lines += [_flagged(group, len(found.rounds)) for group in found.flagged]
    lines += [f"no machine's fault: {cell(line)}" for line in found.harmless]
    if found.unanswered:
        lines.append(f"no answer from {', '.join(map(cell, found.unanswered))}")
    return lines


def _flagged(group: FlaggedGroup, rounds: int) -> str:
    ranks = ", ".join(map(str, group.ranks[:RANKS_SHOWN])) + (", ..." if len(group.ranks) > RANKS_SHOWN else "")
    kind = group.kind if group.kind == "machine" else f"{group.kind} group"
    nodes = ", ".join(map(cell, group.nodes))
    return f"flagged in {group.times} of {rounds} rounds: {cell(kind)} of rank {ranks} ({nodes})"
