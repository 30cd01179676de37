"""`holdfast classify`: classification of a crash from logs and exit codes, without a cluster."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
import msgspec

from holdfast.bounded_calls import read_text
from holdfast.cli.offline.log_sources import UnreadableLog, scan, sources
from holdfast.cli.output.tables import json_text, printable
from holdfast.engines.crash import Diagnosis, diagnose
from holdfast.engines.crash.rules import rule_book
from holdfast.exit_codes import INTERRUPTED

UNKNOWN = 3
"""Exit code if nothing in the logs proves a cause."""

_BAR_EVERY_BYTES = 32 << 20


@click.command()
@click.argument("paths", metavar="[LOG]...", nargs=-1)
@click.option(
    "--exit-codes",
    "exit_codes",
    metavar="RANK=CODE,...|FILE",
    help='Exit codes of ranks: 0=1,3=-9 (a signal is negative, or 128 + its number), or a JSON file {"0": 1, "3": -9}.',
)
@click.option("--text", "as_text", is_flag=True, help="Text instead of JSON.")
def classify(paths: tuple[str, ...], exit_codes: str | None, as_text: bool) -> None:
    """Classify a crash: its symptom, its root, the rank that failed first, and the lines that prove it.

    LOG is a file (.gz is unpacked), a directory of logs, or - for standard input. Give the logs of all ranks, in one
    file or one for each (rank-3.err, torchrun's attempt_0/3/stderr.log), and those of the kernel and the scheduler if
    you have them. Without proof, the answer is unknown; what the words of the last error point to is `likely`.

    \b
    Examples:
        holdfast classify train.log
        holdfast classify --exit-codes 0=1,1=1,2=-9,3=1 logs/
        holdfast classify --text node-*/logs/my-job/ dmesg.log
        kubectl logs pod/train-0 | holdfast classify - | jq -r .symptom

    \b
    Printed: symptom, table_one (its row of ByteRobust's Table 1), root (infrastructure, user_code, unknown), first_rank
    (null: no evidence names one), first_local_rank (if a log numbers ranks within a node only), confidence (0 to 1),
    rule, likely (of an unknown end, a hint that is often wrong), summary, advice, evidence (rank, file, line, text),
    others (ranks that only lost a partner).

    \b
    Exit codes: 0 a symptom was found; 3 unknown; 2 wrong arguments, or a log could not be read.
    """
    if not paths and not exit_codes:
        raise click.UsageError("give a log, a directory of logs, or - for standard input; or give --exit-codes")
    try:
        codes = parse_exit_codes(exit_codes) if exit_codes else {}
        diagnosis = _diagnosed(paths, codes)
    except (UnreadableLog, ValueError) as error:
        raise click.UsageError(str(error)) from error
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    if as_text:
        click.echo("\n".join(in_words(diagnosis)))
    else:
        click.echo(json_text(diagnosis, indent=2 if sys.stdout.isatty() else None))
    sys.exit(UNKNOWN if diagnosis.symptom == "unknown" else 0)


def _diagnosed(paths: tuple[str, ...], codes: dict[int, int]) -> Diagnosis:
    book = rule_book()
    found = sources(list(paths))
    total = sum(source.path.stat().st_size for source in found if source.path)
    if not sys.stderr.isatty() or total < _BAR_EVERY_BYTES:
        return diagnose([scan(source, book) for source in found], codes, book, by_words=True)
    with click.progressbar(length=total, label="reading", file=sys.stderr) as bar:
        scans = [scan(source, book, bar.update) for source in found]
    return diagnose(scans, codes, book, by_words=True)


def parse_exit_codes(text: str) -> dict[int, int]:
    """Parse exit codes by rank, from `0=1,3=-9` or a JSON file. Raises ValueError, which describes the format."""
    wanted = f"--exit-codes {text!r}: give RANK=CODE,... as in 0=1,3=-9, or a JSON file of an object from rank to code"
    try:
        if "=" in text and not Path(text).exists():
            pairs = [one.partition("=") for one in text.replace(" ", "").split(",") if one]
            codes = {_whole(rank): _whole(code) for rank, _, code in pairs}
        else:
            codes = msgspec.json.decode(read_text(text), type=dict[int, int])
    except OSError as error:
        raise ValueError(f"{wanted} ({error.strerror or error})") from error
    except (ValueError, msgspec.MsgspecError) as error:
        raise ValueError(f"{wanted} ({error})") from error
    if any(rank < 0 or not -64 <= code <= 255 for rank, code in codes.items()):
        raise ValueError(f"{wanted}; a rank is not negative, and a code from -64 to 255")
    return codes


def _whole(text: str) -> int:
    if not re.fullmatch("-?[0-9]{1,9}", text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def in_words(diagnosis: Diagnosis) -> list[str]:
    """Return a diagnosis as lines of text."""
    parent = f" ({diagnosis.table_one})" if diagnosis.table_one and diagnosis.table_one != diagnosis.symptom else ""
    rank = "not known" if diagnosis.first_rank is None else str(diagnosis.first_rank)
    if diagnosis.first_local_rank is not None:
        rank = f"local rank {diagnosis.first_local_rank} of a node"
    lines = [
        f"symptom     {diagnosis.symptom}{parent}",
        f"root        {diagnosis.root}",
        f"first rank  {rank}",
        f"confidence  {diagnosis.confidence:.2f}",
        *((f"likely      {diagnosis.likely}",) if diagnosis.likely else ()),
        f"summary     {printable(diagnosis.summary)}",
        f"advice      {diagnosis.advice}",
    ]
    if diagnosis.evidence:
        lines.append("evidence")
        for one in diagnosis.evidence:
            where = f"{printable(one.file)}:{one.line}" if one.line else printable(one.file)
            lines.append(f"    {where}: {printable(one.text.strip())}")
    if diagnosis.others:
        lines.append(f"ranks that failed as a consequence: {', '.join(str(other.rank) for other in diagnosis.others)}")
    return lines
