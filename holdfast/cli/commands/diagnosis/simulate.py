"""`holdfast simulate`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import click
import msgspec

from holdfast.cli.connect.connect_options import json_option
from holdfast.cli.output.scoreboard_picture import picture
from holdfast.cli.output.tables import json_text, render
from holdfast.cli.values import FiniteNumber, WholeNumber
from holdfast.policy_scores import ComplaintCount, Estimate, PolicyScore, Scoreboard

_CAUSES_SHOWN_MAX = 4
_TEXT_CHARS_MAX = 160
_REFUSED = 2
_INTERRUPTED = 130


@click.command()
@click.option("--scenario", default="mixed", show_default=True, help="A scenario's name, or its TOML file.")
@click.option("--policy", multiple=True, metavar="NAME|FILE", help="TOML file with settings, or a name; repeatable.")
@click.option("--days", type=FiniteNumber(min=0.001, max=3650), help="Simulated days. Default: the scenario's.")
@click.option("--seeds", type=WholeNumber(min=1, max=10_000), default=3, show_default=True, help="Number of seeds.")
@click.option("--seed", type=WholeNumber(min=0), default=1, show_default=True, help="The first seed.")
@click.option("--list", "only_lists", is_flag=True, help="List the scenarios that come with Holdfast instead.")
@click.option("--picture", "svg", type=click.Path(dir_okay=False), help="Draw the policies side by side: FILE.svg.")
@json_option
def simulate(
    scenario: str,
    policy: tuple[str, ...],
    days: float | None,
    seeds: int,
    seed: int,
    only_lists: bool,
    svg: str | None,
    as_json: bool,
) -> None:
    """Try policies in a simulated cluster that knows who is at fault.

    \b
        holdfast simulate --list
        holdfast simulate --days 7
        holdfast simulate --policy today --policy cautious.toml --seeds 10
        holdfast simulate --scenario llama3 --policy today --policy byterobust --policy requeue --picture them.svg
        holdfast simulate --scenario known-lemon --seed 4 --seeds 1

    Controller, standby service and the decisions of agents are those of production. Machines, jobs and faults are
    simulated; all policies meet the same faults. A policy is a file with settings, as holdfast.toml, or a name: today
    (the default settings), oracle (it knows the truth), byterobust, transom, requeue, requeue_checked, torchrun, or one
    of the wrong policies of the tests. docs/simulate.md describes scenarios and results.

    Ctrl-C ends it and shows the seeds that are done.

    Exit codes: 0 no complaint but known ones, 3 others, 1 an error, 130 interrupted.
    """
    if only_lists:
        titles = msgspec.json.decode(_output("--list"), type=dict[str, str])
        click.echo(json_text(titles) if as_json else render(["scenario", "what it is"], map(list, titles.items())))
        return
    board = _simulated(scenario, policy, days, seeds, seed)
    if svg and board.scores:
        Path(svg).write_text(picture(board))
    if as_json:
        click.echo(json_text(board))
    elif board.scores:
        click.echo(_shown(board))
    if len(board.seeds) < board.seeds_wanted:
        click.echo(f"Interrupted: {len(board.seeds)} of {board.seeds_wanted} seeds are done.", err=True)
        sys.exit(_INTERRUPTED)
    if any(not complaint.is_known for score in board.scores for complaint in score.complaints):
        sys.exit(3)


def _simulated(scenario: str, policy: tuple[str, ...], days: float | None, seeds: int, seed: int) -> Scoreboard:
    asked = [f"--scenario={scenario}", *(f"--policy={name}" for name in policy)]
    asked += [f"--seeds={seeds}", f"--first-seed={seed}"]
    asked += [f"--days={days}"] if days is not None else []
    return msgspec.json.decode(_output(*asked), type=Scoreboard)


def _output(*asked: str) -> bytes:
    # The proving ground imports services, which the command line does not: it runs as a separate process.
    command = [sys.executable, "-P", "-m", "holdfast_proving", *asked]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        # Ctrl-C reaches that process as well, which answers it with what is done.
        before = signal.signal(signal.SIGINT, lambda number, frame: None)
        try:
            output, _ = process.communicate()
        finally:
            signal.signal(signal.SIGINT, before)
    if process.returncode == _REFUSED:
        raise click.ClickException(output.decode(errors="replace").strip())
    if process.returncode != 0:
        raise click.ClickException("the simulation failed")
    return output


def _shown(board: Scoreboard) -> str:
    seeds = f"seed {board.seeds[0]}" if len(board.seeds) == 1 else f"seeds {board.seeds[0]} to {board.seeds[-1]}"
    head = f"{board.scenario}: {board.title}\n{board.machines} machines, {board.days:g} days, {seeds}, "
    head += f"{board.faults} faults; {board.cpu_s:.1f} s of a core"
    headers = ["policy", "ETTR", "bad hour", "worst", "lost s/day", "than first", "regret s/day", "incidents"]
    headers += ["evicted", "wrongly", "cleared", "missed", "blocked well h", "pool h", "given up"]
    parts = [head, render(headers, [_row(score) for score in board.scores])]
    for score in board.scores:
        causes = list(score.lost_by_cause_s.items())[:_CAUSES_SHOWN_MAX]
        lost = ", ".join(f"{cause.replace('_', ' ')} {spent_s:.0f}" for cause, spent_s in causes if spent_s >= 0.5)
        parts.append(f"{score.policy} loses, in seconds a day: {lost or 'nothing'}")
    for score in board.scores:
        if score.complaints:
            headers = ["complaint", "known", "times", "seed", "first at", "about", "first"]
            table = render(headers, map(_complaint, score.complaints))
            parts.append(f"Complaints about {score.policy}:\n{table}")
        else:
            parts.append(f"No complaints about {score.policy}.")
    return "\n\n".join(parts)


def _row(score: PolicyScore) -> list[object]:
    return [
        score.policy + (" (cut short)" if score.cut_short else ""),
        _estimated(score.ettr, 4),
        f"{score.bad_hour:.2f}",
        f"{score.worst_hour:.2f}",
        _estimated(score.lost_s, 0),
        _estimated(score.than_first_s, 0) if score.than_first_s else "",
        _estimated(score.regret_s, 0),
        score.incidents,
        score.evictions,
        score.wrong_evictions,
        score.cleared_evictions,
        score.missed_culprits,
        round(score.blocked_well_h),
        round(score.pool_h),
        score.ended_jobs,
    ]


def _complaint(it: ComplaintCount) -> list[object]:
    about, text = it.node or it.job, it.text[:_TEXT_CHARS_MAX]
    return [it.wrong, it.is_known, it.count, it.seed, f"{it.at_s / 3600:.1f} h", about, text]


def _estimated(value: Estimate, digits: int) -> str:
    if value.low is None or value.high is None:
        return f"{value.mean:.{digits}f}"
    return f"{value.mean:.{digits}f} ±{(value.high - value.low) / 2:.{digits}f}"
