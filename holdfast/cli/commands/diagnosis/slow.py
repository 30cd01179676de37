"""`holdfast slow JOB`: how the ranks of a job spend their time, and which of them make it slow."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from holdfast.cli.connect.addresses import both_urls
from holdfast.cli.connect.ask import asked_by
from holdfast.cli.connect.connect_options import cluster_options
from holdfast.cli.follow.awaited_finding import find
from holdfast.cli.names import require_name
from holdfast.cli.output.tables import cell, json_text, render
from holdfast.events import FailSlowLocated
from holdfast.events.parts.samples import FlaggedGroup
from holdfast.fresh_ids import uuid7
from holdfast.ids import derived_id
from holdfast.requests import LocateSlowness
from holdfast.settings import load

FOUND_WITHIN_S = 90.0
"""Tests wait for the end of a step, which may be long."""

RANKS_SHOWN = 12


@click.command()
@click.argument("job")
@click.option("--test", is_flag=True, help="Pause training at the end of a step, and test the suspects.")
@click.option("--stacks", is_flag=True, help="Read stacks in rounds, and name the ranks that differ from most.")
@click.option("--json", "as_json", is_flag=True, help="Print the finding as JSON.")
@cluster_options
def slow(
    job: str, test: bool, stacks: bool, as_json: bool, directory: Path, nats_url: str | None, database_url: str | None
) -> None:
    """Show how the ranks of JOB spend their time, and name the slow machines and links.

    \b
        holdfast slow my-job
        holdfast slow my-job --test
        holdfast slow my-job --stacks
        holdfast slow my-job --json | jq .nodes

    Iterations are found from the collectives that ranks call, independent of the script's steps. Ranks of one pipeline
    stage are compared with each other, and groups of one kind by the duration of their collectives once all ranks have
    joined. A job that becomes slow is analyzed automatically; this command is for a look at any time.

    With --test, all ranks pause at the end of a step, suspects multiply matrices on their devices, and the links of
    suspected groups are tested; training continues after some seconds at most.

    With --stacks, the stacks of all processes are read in rounds ([slow] vote_rounds, vote_every_s) while the job
    trains; a round with too few readable ranks is repeated. In each round the machine or parallel group with the most
    deviating ranks is flagged, and the one flagged most often is suspected. Use it for jobs whose collectives show
    nothing.

    Exit codes: 0 no suspect, 1 a suspect, 2 the analysis failed.
    """
    require_name(job, "job name")
    if test and stacks:
        raise click.UsageError("--test pauses training, --stacks needs it to run: use one of them")
    bus, database = both_urls(directory, nats_url, database_url)
    request = LocateSlowness(id=uuid7(), asked_by=asked_by(), job=job, test=test, stacks=stacks)
    within_s = FOUND_WITHIN_S
    if stacks:
        policy = load.load(os.environ)[0].slow
        # Rounds that do not count are taken again, up to twice as many.
        within_s += 2 * policy.vote_rounds * (policy.vote_every_s + policy.answer_s)
    finding = find(
        request,
        FailSlowLocated,
        derived_id(request.id, "voted" if stacks else "located"),
        command="slow",
        bus_url=bus,
        database_url=database,
        within_s=within_s,
    )
    click.echo(json_text(msgspec.to_builtins(finding), indent=2) if as_json else "\n".join(_in_words(finding)))
    if finding.nodes or finding.links or finding.suspects:
        raise click.exceptions.Exit(1)


def _in_words(finding: FailSlowLocated) -> list[str]:
    healthy = f", {finding.healthy_s:.4g} s before" if finding.healthy_s else ""
    head = f"job {cell(finding.job)}, generation {finding.generation}: {finding.pace_s:.4g} s an iteration{healthy}"
    lines = [head]
    if finding.pace:
        rows = [
            (rank.rank, rank.node, f"{rank.iteration_s:.4g}", f"{rank.work_s:.4g}", f"{rank.in_calls_s:.4g}")
            for rank in finding.pace
        ]
        lines += ["", *render(["RANK", "NODE", "ITERATION S", "OWN WORK S", "IN COLLECTIVES S"], rows).splitlines()]
    if finding.groups:
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
            for group in finding.groups
        ]
        heads = ["GROUP", "KIND", "RANKS", "COLLECTIVE", "BYTES", "TAKES MS", "WAITS MS"]
        lines += ["", *render(heads, calls).splitlines()]
    lines += ["", *_verdict(finding)]
    return lines


def _verdict(finding: FailSlowLocated) -> list[str]:
    lines: list[str] = []
    tested = f"tested, training paused for {finding.held_s:.1f} s" if finding.is_validated else "not tested"
    if finding.nodes:
        lines.append(f"slow ({finding.fault}; {tested}): {', '.join(map(cell, finding.nodes))}")
    lines += [f"slow link ({tested}): {cell(sender)} to {cell(receiver)}" for sender, receiver in finding.links]
    if finding.suspects and finding.rounds:
        several = "one of " if len(finding.suspects) > 1 else ""
        lines.append(f"suspected ({finding.confidence:.0%}): {several}{', '.join(map(cell, finding.suspects))}")
    elif finding.suspects and not (finding.nodes or finding.links):
        lines.append(f"suspected ({finding.fault}; {tested}): {', '.join(map(cell, finding.suspects))}")
    lines.append(cell(finding.summary))
    lines += [f"  | {cell(line)}" for line in finding.evidence]
    rounds = sum(taken.is_counted for taken in finding.rounds)
    lines += [_flagged(group, rounds) for group in finding.flagged]
    lines += [f"not a fault of a machine: {cell(line)}" for line in finding.harmless]
    if finding.unanswered:
        lines.append(f"no answer from {', '.join(map(cell, finding.unanswered))}")
    return lines


def _flagged(group: FlaggedGroup, rounds: int) -> str:
    ranks = ", ".join(map(str, group.ranks[:RANKS_SHOWN])) + (", ..." if len(group.ranks) > RANKS_SHOWN else "")
    kind = group.kind if group.kind == "machine" else f"{group.kind} group"
    nodes = ", ".join(map(cell, group.nodes))
    return f"flagged in {group.times} of {rounds} rounds: {cell(kind)} of rank {ranks} ({nodes})"
