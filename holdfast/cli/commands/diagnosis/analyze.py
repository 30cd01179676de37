"""`holdfast analyze`: analysis of dumps of a hanging or slow job, without a cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

import click
import msgspec

from holdfast.cli.offline.dump_inputs import Inputs, ReadFile, UnreadFile, read_inputs
from holdfast.cli.output.tables import json_text, printable
from holdfast.cli.values import WholeNumber
from holdfast.engines.hang.dumps.dump_files import UnreadableDump
from holdfast.engines.hang.graph.wait_for import WaitVerdict
from holdfast.engines.hang.hang_verdict import HangVerdict, judge_hang
from holdfast.engines.hang.stacks.stack_groups import StackVerdict
from holdfast.engines.stragglers.judging import RANKS_PER_MACHINE, judge_operations
from holdfast.engines.stragglers.straggler_report import in_words as slowness_in_words
from holdfast.engines.stragglers.straggler_verdict import SlownessVerdict
from holdfast.engines.stragglers.traces.operations import OperationsUnreadable
from holdfast.engines.wording import in_ranges, machines_in_words, ranks_in_words
from holdfast.events.parts.traces import Blamed
from holdfast.exit_codes import INTERRUPTED
from holdfast.topology import Mesh, MeshError, Topology

NO_SUSPECT = 3
"""Exit code if nothing in the dumps proves a fault."""

_GROUPS_SHOWN = 12
_CALLS_SHOWN = 5


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """The printed result. `ranks` and `nodes` are those of all suspects; `scope` tells machines from groups."""

    verdict: Literal["hang", "slowness", "unknown"]
    summary: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    scope: str
    confidence: float
    suspects: tuple[Blamed, ...]
    victims: tuple[int, ...]
    evidence: tuple[str, ...]
    notes: tuple[str, ...]
    stacks: StackVerdict | None
    collectives: WaitVerdict | None
    slowness: tuple[SlownessVerdict, ...]
    read: tuple[ReadFile, ...]
    unread: tuple[UnreadFile, ...]


@click.command()
@click.argument("paths", metavar="DUMPS...", nargs=-1, required=True)
@click.option(
    "--mesh", "mesh_text", metavar="DIM=SIZE,...", help="The job's shape, outermost dimension first: pp=4,dp=4,tp=2."
)
@click.option(
    "--order",
    metavar="DIM-DIM-...",
    help="The mesh's order, innermost first as Megatron-LM has it (tp-cp-ep-dp-pp); --mesh then gives only sizes.",
)
@click.option(
    "--ranks-per-node",
    type=WholeNumber(min=1),
    metavar="N",
    help="Ranks on each machine: rank r is on machine r // N.",
)
@click.option("--text", "as_text", is_flag=True, help="Text instead of JSON.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document (the default).")
def analyze(
    paths: tuple[str, ...],
    mesh_text: str | None,
    order: str | None,
    ranks_per_node: int | None,
    as_text: bool,
    as_json: bool,
) -> None:
    """Find the ranks that hold a job up, or make it slow, from dumps of any cluster.

    DUMPS are files, directories, or - for standard input; gzip, zip or plain; of one or several kinds: stacks from
    `py-spy dump` (text or --json, of one process or many) or Python's faulthandler; PyTorch's flight recorder (JSON,
    or pickle, which is read without executing it); timings of single operations (CSV or parquet). Rank and node of a
    stack are taken from file names (rank-12.txt, node-3/rank_7.json) or keys of a JSON object. Give --mesh and
    --ranks-per-node if you can: stages of a pipeline wait at different places, and groups are named by machines.

    No rank is named without proof: ranks that wait for others are victims.

    \b
    Examples:
        holdfast analyze --mesh pp=4,dp=4,tp=2 --ranks-per-node 8 stacks/ fr_trace/
        holdfast analyze --text nccl_trace_rank_*
        holdfast analyze --mesh tp=8,pp=4,dp=16 --order tp-cp-ep-dp-pp --ranks-per-node 8 stacks/ | jq .ranks
        holdfast analyze --text trace.csv.gz
        py-spy dump --pid 4711 | holdfast analyze --text -

    \b
    Printed: verdict (hang, slowness, unknown), summary, ranks and nodes of all suspects, scope (machine: exactly
    these; group: one of these; nobody: no suspect), confidence (0 to 1), suspects with their reasons, victims,
    evidence, notes, then the result of each kind of dump (stacks, collectives, slowness), the files read, and the files
    not read with the reason.

    \b
    Exit codes: 0 a fault was found; 3 no fault is proven; 2 wrong arguments, or no dump could be read.
    """
    if as_text and as_json:
        raise click.UsageError("--text and --json exclude each other")
    try:
        mesh = mesh_of(mesh_text, order, ranks_per_node)
        inputs = read_inputs(list(paths), ranks_per_node)
        _check_read(inputs.read, inputs.unread)
        _check_ranks(inputs, mesh)
        analysis = analyzed(inputs, mesh, ranks_per_node)
        if not (inputs.processes or inputs.traces or analysis.slowness):
            raise UnreadableDump(_in_lines(analysis.unread))
    except (MeshError, UnreadableDump, OSError) as error:
        raise click.UsageError(str(error)) from error
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    if as_text:
        click.echo("\n".join(printable(line) for line in in_words(analysis)))
    else:
        click.echo(json_text(analysis, indent=2 if sys.stdout.isatty() else None))
    sys.exit(NO_SUSPECT if analysis.verdict == "unknown" else 0)


def mesh_of(text: str | None, order: str | None, ranks_per_node: int | None) -> Mesh | None:
    """Return the mesh of the options, None without --mesh. Raises MeshError if they contradict each other."""
    if text is None:
        if order is not None:
            raise MeshError("--order describes the layout of --mesh; give --mesh as well")
        return None
    mesh = Mesh.parse(text)
    if order is not None:
        mesh = Mesh.megatron(order.split("-"), **dict(zip(mesh.names, mesh.sizes, strict=True)))
    if ranks_per_node is not None:
        Topology(mesh, ranks_per_node)
    return mesh


def _check_read(read: Sequence[ReadFile], unread: Sequence[UnreadFile]) -> None:
    if all(one.format == "operations_meta" for one in read):
        raise UnreadableDump(_in_lines(unread) or f"{read[0].file} is a meta file: give the trace itself as well")


def _in_lines(unread: Sequence[UnreadFile]) -> str:
    return "\n".join(f"{one.file}: {one.error}" for one in unread[:20])


def _check_ranks(inputs: Inputs, mesh: Mesh | None) -> None:
    ranks = {process.rank for process in inputs.processes if process.rank is not None}
    ranks |= {trace.rank for trace in inputs.traces}
    if mesh is not None and ranks and max(ranks) >= mesh.world_size:
        raise MeshError(
            f"mesh {mesh} has {mesh.world_size} ranks, yet there is a dump of rank {max(ranks)}; give the sizes of the"
            " job that was dumped, or omit --mesh"
        )


def analyzed(inputs: Inputs, mesh: Mesh | None, ranks_per_node: int | None) -> Analysis:
    """Judge the dumps together: the hang, the slowness, and the verdict on both."""
    hang = HangVerdict()
    if inputs.processes or inputs.traces:
        hang = judge_hang(inputs.processes, inputs.traces, mesh, ranks_per_node)
    slowness, unread = _slowness(inputs, ranks_per_node)
    slow = next((one for one in slowness if one.verdict != "none"), None)
    ranks, nodes, summary, confidence = hang.ranks, hang.nodes, hang.summary, hang.confidence
    verdict: Literal["hang", "slowness", "unknown"] = "hang" if hang.suspects else "slowness" if slow else "unknown"
    if not hang.suspects and slowness:
        first = slow or slowness[0]
        ranks, summary, confidence = first.evict, first.summary, first.confidence
        nodes = tuple(dict.fromkeys(str(rank // ranks_per_node) for rank in ranks)) if ranks_per_node else ()
    return Analysis(
        verdict=verdict,
        summary=summary,
        ranks=ranks,
        nodes=nodes,
        scope=hang.scope if hang.suspects else "machine" if ranks else "nobody",
        confidence=confidence,
        suspects=hang.suspects,
        victims=hang.victims,
        evidence=hang.evidence,
        notes=(*inputs.notes, *_coverage_notes(inputs, mesh), *hang.notes),
        stacks=hang.stacks,
        collectives=hang.collectives,
        slowness=slowness,
        read=tuple(inputs.read),
        unread=(*inputs.unread, *unread),
    )


def _slowness(inputs: Inputs, ranks_per_node: int | None) -> tuple[tuple[SlownessVerdict, ...], tuple[UnreadFile, ...]]:
    found: list[SlownessVerdict] = []
    unread: list[UnreadFile] = []
    for one in inputs.operations:
        try:
            found.append(judge_operations(one, ranks_per_node or RANKS_PER_MACHINE))
        except OperationsUnreadable as error:
            unread.append(UnreadFile(file=one.name, error=str(error).removeprefix(f"{one.name}: ")))
    return tuple(found), tuple(unread)


def _coverage_notes(inputs: Inputs, mesh: Mesh | None) -> list[str]:
    ranks = {process.rank for process in inputs.processes if process.rank is not None}
    ranks |= {trace.rank for trace in inputs.traces}
    if mesh is None or not ranks or len(ranks) == mesh.world_size:
        return []
    return [f"there are dumps of {len(ranks)} of the {mesh.world_size} ranks of mesh {mesh}"]


def in_words(analysis: Analysis) -> list[str]:
    """Return an analysis as lines of text."""
    lines: list[str] = []
    if analysis.stacks or analysis.collectives:
        lines += [
            f"verdict     {analysis.verdict if analysis.suspects else 'unknown'}",
            f"summary     {analysis.summary}",
            f"suspects    {ranks_in_words(analysis.ranks) if analysis.suspects else 'none'}",
            f"machines    {_machines(analysis.nodes)}",
            f"scope       {analysis.scope}",
            f"confidence  {analysis.confidence:.2f}",
        ]
        if analysis.victims:
            lines.append(f"victims     {ranks_in_words(analysis.victims)}")
        for suspect in analysis.suspects:
            lines.append(f"{suspect.confidence:.2f} {ranks_in_words(suspect.ranks)}: {suspect.reason}")
            lines += [f"    {line}" for line in suspect.evidence]
    if analysis.stacks:
        lines += _groups_in_words(analysis.stacks)
    for one in analysis.slowness:
        lines += slowness_in_words(one)
    lines += [f"note: {note}" for note in analysis.notes]
    lines += [f"not read: {one.file}: {one.error}" for one in analysis.unread]
    return lines


def _machines(nodes: Sequence[str]) -> str:
    return machines_in_words(nodes) if nodes else "not known; give --ranks-per-node"


def _groups_in_words(stacks: StackVerdict) -> list[str]:
    lines = ["locations of processes:"]
    for group in stacks.groups[:_GROUPS_SHOWN]:
        whose = f" ({ranks_in_words(group.ranks)})" if group.ranks else ""
        mark = "" if group.is_healthy else ", different from most"
        waits = f", {group.waits_for}" if group.waits_for else ""
        lines.append(f"    {group.count} {group.kind.replace('_', ' ')}{whose}{waits}{mark}")
        lines.append(f"        {' < '.join(group.stack[:_CALLS_SHOWN])}")
    if hidden := len(stacks.groups) - _GROUPS_SHOWN:
        lines += [f"    {hidden} more groups"] if hidden > 0 else []
    for shared in stacks.shared:
        machines = f" on {machines_in_words(shared.nodes)}" if shared.nodes else ""
        lines.append(f"shared      {'-'.join(shared.dims)} group, ranks {in_ranges(shared.ranks)}{machines}")
    return lines
