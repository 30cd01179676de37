"""`holdfast slow JOB`: how the ranks of a job spend their time just now, and who makes it slow."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from holdfast.cli.connect.addresses import both_urls, database_option, nats_option
from holdfast.cli.connect.ask import asked_by
from holdfast.cli.connect.directory import directory_option
from holdfast.cli.follow.findings import find
from holdfast.cli.names import require_name
from holdfast.cli.output.tables import cell, json_text, render
from holdfast.events import FailSlowLocated
from holdfast.events.parts.samples import FlaggedGroup
from holdfast.fresh_ids import uuid7
from holdfast.ids import derived_id
from holdfast.requests import LocateSlowness
from holdfast.settings import load

FOUND_WITHIN_S = 90.0
"""Tests wait for the end of a step, and steps may be long."""

RANKS_SHOWN = 12


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
    A round in which too few ranks could be read does not count, and another is taken, up to ten in all.

    The exit code is 0 if nobody is suspected, 1 if somebody is, and 2 if it could not be found out.

    \b
        holdfast slow my-job
        holdfast slow my-job --test
        holdfast slow my-job --stacks
        holdfast slow my-job --json | jq .nodes
    """
    require_name(job, "job name")
    if test and stacks:
        raise click.UsageError("--test holds training, and --stacks looks at it while it goes on: use one of them")
    bus, database = both_urls(directory, nats_url, database_url)
    request = LocateSlowness(id=uuid7(), asked_by=asked_by(), job=job, test=test, stacks=stacks)
    within_s = FOUND_WITHIN_S
    if stacks:
        policy = load.load(os.environ)[0].slow
        # Rounds that do not count are taken again, up to twice as many.
        within_s += 2 * policy.vote_rounds * (policy.vote_every_s + policy.answer_s)
    told = find(
        request,
        FailSlowLocated,
        derived_id(request.id, "voted" if stacks else "located"),
        command="slow",
        bus_url=bus,
        database_url=database,
        within_s=within_s,
    )
    click.echo(json_text(msgspec.to_builtins(told), indent=2) if as_json else "\n".join(_in_words(told)))
    if told.nodes or told.links or told.suspects:
        raise click.exceptions.Exit(1)


def _in_words(told: FailSlowLocated) -> list[str]:
    healthy = f", {told.healthy_s:.4g} s before" if told.healthy_s else ""
    head = f"job {cell(told.job)}, generation {told.generation}: {told.pace_s:.4g} s an iteration{healthy}"
    lines = [head]
    if told.pace:
        rows = [
            (rank.rank, rank.node, f"{rank.iteration_s:.4g}", f"{rank.work_s:.4g}", f"{rank.in_calls_s:.4g}")
            for rank in told.pace
        ]
        lines += ["", *render(["RANK", "NODE", "ITERATION S", "OWN WORK S", "IN COLLECTIVES S"], rows).splitlines()]
    if told.groups:
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
            for group in told.groups
        ]
        heads = ["GROUP", "KIND", "RANKS", "COLLECTIVE", "BYTES", "TAKES MS", "WAITS MS"]
        lines += ["", *render(heads, calls).splitlines()]
    lines += ["", *_verdict(told)]
    return lines


def _verdict(told: FailSlowLocated) -> list[str]:
    lines: list[str] = []
    tested = f"tested, training stood still for {told.held_s:.1f} s" if told.is_validated else "not tested"
    if told.nodes:
        lines.append(f"slow ({told.fault}; {tested}): {', '.join(map(cell, told.nodes))}")
    lines += [f"slow link ({tested}): {cell(sender)} to {cell(receiver)}" for sender, receiver in told.links]
    if told.suspects and told.rounds:
        several = "one of " if len(told.suspects) > 1 else ""
        lines.append(f"suspected ({told.confidence:.0%}): {several}{', '.join(map(cell, told.suspects))}")
    elif told.suspects and not (told.nodes or told.links):
        lines.append(f"suspected ({told.fault}; {tested}): {', '.join(map(cell, told.suspects))}")
    lines.append(cell(told.summary))
    lines += [f"  | {cell(line)}" for line in told.evidence]
    rounds = sum(taken.is_counted for taken in told.rounds)
    lines += [_flagged(group, rounds) for group in told.flagged]
    lines += [f"no machine's fault: {cell(line)}" for line in told.harmless]
    if told.unanswered:
        lines.append(f"no answer from {', '.join(map(cell, told.unanswered))}")
    return lines


def _flagged(group: FlaggedGroup, rounds: int) -> str:
    ranks = ", ".join(map(str, group.ranks[:RANKS_SHOWN])) + (", ..." if len(group.ranks) > RANKS_SHOWN else "")
    kind = group.kind if group.kind == "machine" else f"{group.kind} group"
    nodes = ", ".join(map(cell, group.nodes))
    return f"flagged in {group.times} of {rounds} rounds: {cell(kind)} of rank {ranks} ({nodes})"
