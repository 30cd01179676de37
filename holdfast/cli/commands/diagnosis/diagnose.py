"""`holdfast diagnose`: stop-time checks on request, on nodes that no job uses."""

from __future__ import annotations

import asyncio
import secrets
import sys
from pathlib import Path

import click
import msgspec

from holdfast.cli.connect.addresses import both_urls
from holdfast.cli.connect.connect_options import cluster_options
from holdfast.cli.connect.database import Connection, read
from holdfast.cli.follow.checks_run import ChecksNotRun, ChecksOutcome, run_checks
from holdfast.cli.names import require_name
from holdfast.cli.output.tables import json_text, printable, render
from holdfast.cli.values import FiniteNumber, WholeNumber
from holdfast.engines.checks.checks_program import PROGRAM, checks_of
from holdfast.engines.checks.references import AnswerKey, References
from holdfast.engines.checks.suites import END, SUITES
from holdfast.events.parts.job import JobSpec

_REFERENCES = "select test, hardware, program, digest from controller.reference_digests"
_NODES = "select key, state, job, reason from standby.nodes order by key"

_TESTABLE_STATES = ("standby", "evicted")

_WORST_FIRST = ("failed", "broken", "passed", "skipped")


class _Node(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    state: str
    job: str | None
    reason: str | None


@click.command()
@click.option(
    "--nodes", metavar="NODE,...", help="Nodes to test; they may be on the blocklist. Default: all idle nodes."
)
@click.option(
    "--suite",
    type=click.Choice(list(SUITES)),
    default="quick",
    show_default=True,
    help="Tests: " + "; ".join(f"{name}: {', '.join(tests)}" for name, tests in SUITES.items()) + ".",
)
@click.option(
    "--workers",
    type=WholeNumber(min=0),
    default=0,
    help="Devices to test on each node. Default: all its GPUs, or two CPU workers if it has none.",
)
@click.option("--limit-s", type=FiniteNumber(min=1.0), help="Time limit of each test in seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print the results and the verdict as JSON.")
@cluster_options
def diagnose(
    nodes: str | None,
    suite: str,
    workers: int,
    limit_s: float | None,
    as_json: bool,
    directory: Path,
    nats_url: str | None,
    database_url: str | None,
) -> None:
    """Test nodes that no job uses: devices, disks and the connections between them. Name the faulty ones.

    \b
        holdfast diagnose
        holdfast diagnose --nodes node-3,node-4 --suite network

    The nodes leave the pool during the tests, and return afterwards; Ctrl-C stops the tests. A node on the blocklist
    stays on it: if it passes, `holdfast nodes release NODE` takes it off.

    Exit codes: 0 every node passed; 1 a node is faulty, in doubt or could not be tested; 2 the tests could not run; 130
    after Ctrl-C.
    """
    bus, database = both_urls(directory, nats_url, database_url)
    names = tuple(dict.fromkeys(name.strip() for name in nodes.split(","))) if nodes is not None else ()
    for name in names:
        require_name(name, "node name")

    async def fetch(connection: Connection) -> tuple[list[_Node], References]:
        nodes = [msgspec.convert(dict(row), _Node) for row in await connection.fetch(_NODES)]
        rows = await connection.fetch(_REFERENCES)
        return nodes, {AnswerKey(row["test"], row["hardware"], row["program"]): row["digest"] for row in rows}

    there, references = read(database, fetch)
    chosen = _chosen(names, {node.key: node for node in there})
    name = f"diagnose-{secrets.token_hex(4)}"
    job = JobSpec(
        name=name,
        script=PROGRAM,
        nnodes=len(chosen),
        only_nodes=chosen,
        cwd="/",
        directory=str((directory / "jobs" / name).resolve()),
        persist_every="never",
    )
    checks = checks_of(job, suite, workers=workers, limit_s=limit_s)
    outcome = asyncio.run(run_checks(checks, suite, limit_s, bus, references, quiet=as_json))
    click.echo(json_text(outcome.as_dict(), indent=2) if as_json else _report(outcome))
    sys.exit(outcome.exit_code)


def _chosen(names: tuple[str, ...], known: dict[str, _Node]) -> tuple[str, ...]:
    """Return the nodes to test. Raises ChecksNotRun if a named node is not available, or none is idle."""
    if not names:
        idle = tuple(name for name, node in known.items() if node.state == "standby")
        if not idle:
            raise ChecksNotRun(
                "no node is idle; `holdfast nodes` shows the jobs that use them. To test nodes on the blocklist, name "
                "them with --nodes"
            )
        return idle
    for name in names:
        node = known.get(name)
        if node is None:
            raise ChecksNotRun(f"there is no node {name}; `holdfast nodes` lists them")
        if node.job:
            raise ChecksNotRun(f"{name} is used by job {node.job}: `holdfast stop {node.job}` frees it")
        if node.state not in _TESTABLE_STATES:
            raise ChecksNotRun(f"{name} is {node.state}: {printable(node.reason or '')}")
    return names


def _report(outcome: ChecksOutcome) -> str:
    """Return a table with a row for each node, and below it the verdict."""
    tests = [test for test in dict.fromkeys(result.test for result in outcome.results) if test != END]
    rows = [(node, *(_cell(outcome, node, test) for test in tests)) for node in outcome.nodes]
    verdict = outcome.verdict
    lines = [f"{suspect.node} is at fault ({suspect.symptom}): {suspect.reason}" for suspect in verdict.suspects]
    lines += [f"{', '.join(entry.nodes)}: in doubt ({entry.symptom}): {entry.reason}" for entry in verdict.unresolved]
    lines += [
        f"{result.node}: {result.test} is broken, which is no fault of the node: {result.detail}"
        for result in outcome.results
        if result.status == "broken"
    ]
    if verdict.capped:
        lines.append(f"no node is named: {verdict.capped}")
    lines += [f"note: {remark}" for remark in verdict.remarks]
    if verdict.untested:
        lines.append(f"not tested: {', '.join(verdict.untested)}")
    if verdict.cleared:
        lines.append(f"passed: {', '.join(verdict.cleared)}")
    table = render(["NODE", *(test.upper().replace("_", " ") for test in tests)], rows)
    return "\n\n".join([table, *([printable("\n".join(lines), keep="\n")] if lines else [])])


def _cell(outcome: ChecksOutcome, node: str, test: str) -> str:
    """Return a node's worst result of a test; if all passed, the lowest value."""
    found = [result for result in outcome.results if result.node == node and result.test == test]
    worst = min(found, key=lambda result: _WORST_FIRST.index(result.status), default=None)
    if worst is None:
        return ""
    values = [result.value for result in found if result.value is not None]
    if worst.status != "passed" or not values:
        return worst.status
    return f"passed, {min(values):.3g} {worst.unit}"
