"""`holdfast xid`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from holdfast.cli.connect.connect_options import json_option
from holdfast.cli.output.tables import json_text, printable
from holdfast.engines.hardware.kernel_lines import KernelTrouble, read_line, without_stamp
from holdfast.engines.hardware.kernel_rules import Confidence
from holdfast.engines.hardware.xid import Xid, explained

DOES = {
    "evict": "evicts the node once a free one can replace it; at once if the job has failed",
    "tolerate": "waits for it to pass while the job trains; counts with a crash or hang of the node",
    "hint": "nothing by itself; keeps it as evidence for later decisions",
}


_NUMBER = re.compile("[0-9]{1,4}")
"""Xids have three digits today."""


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="NUMBER... | FILE | -")
@json_option
def xid(what: tuple[str, ...], as_json: bool) -> None:
    """Explain Xids of the NVIDIA driver by NUMBER, or the lines of a kernel log that report faults.

    \b
        holdfast xid 79                    meaning of Xid 79, Holdfast's action, and what to do
        dmesg | holdfast xid -             the kernel's log of this machine
        holdfast xid /var/log/kern.log     of any, as dmesg, journalctl or syslog print it

    Besides Xids, it knows panics, OOM kills, and failures of disks, file servers and network cards.

    Exit codes: 0 in any case, 1 if the file cannot be read.
    """
    numbers = all(_NUMBER.fullmatch(word) for word in what)
    if not numbers and len(what) != 1:
        raise click.UsageError("give numbers of Xids, or one file (- for standard input)")
    found = [_of_xid(explained(int(word))) for word in what] if numbers else _of_lines(_lines(what[0]))
    if as_json:
        click.echo(json_text(found))
    elif not found:
        click.echo("no line reports a fault of this machine")
    else:
        click.echo("\n\n".join(map(_shown, found)))


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Explanation of an Xid, or of lines of one kind about one device. Fields are in the order of display."""

    kind: str
    xid: int | None = None
    device: str = ""
    meaning: str
    symptom: str = ""
    confidence: Confidence
    holdfast: str
    reason: str = ""
    do: tuple[str, ...] = ()
    mnemonic: str = ""
    gpus: str = ""
    action: str = ""
    times: int = 0
    first: str = ""
    last: str = ""


def _lines(source: str) -> list[str]:
    if source == "-":
        return sys.stdin.buffer.read().decode(errors="replace").splitlines()
    path = Path(source)
    if not path.is_file():
        raise click.ClickException(f"there is no file {source}, and it is not the number of an Xid")
    return path.read_text(errors="replace").splitlines()


def _of_lines(lines: Iterable[str]) -> list[Explanation]:
    """Return one explanation for each device and kind."""
    found: dict[tuple[str, str, str], Explanation] = {}
    for line in lines:
        trouble = read_line(without_stamp(line))
        if trouble is None:
            continue
        key = trouble.kind, trouble.device, trouble.confidence
        known = found.get(key) or _of_line(trouble, line)
        found[key] = msgspec.structs.replace(known, times=known.times + 1, last=line)
    return list(found.values())


def _of_line(trouble: KernelTrouble, line: str) -> Explanation:
    fields = {"device": trouble.device, "confidence": trouble.confidence, "holdfast": DOES[trouble.confidence]}
    if trouble.xid is not None:
        return msgspec.structs.replace(_of_xid(explained(trouble.xid)), first=line, **fields)
    return Explanation(
        kind=trouble.kind,
        device=trouble.device,
        meaning=trouble.detail,
        symptom=trouble.symptom,
        confidence=trouble.confidence,
        holdfast=DOES[trouble.confidence],
        first=line,
    )


def _of_xid(it: Xid) -> Explanation:
    return Explanation(
        kind=f"xid {it.xid}",
        xid=it.xid,
        meaning=it.meaning,
        symptom=it.symptom,
        confidence=it.confidence,
        holdfast=DOES[it.confidence],
        reason=it.reason,
        do=it.steps,
        mnemonic=it.mnemonic,
        gpus=it.gpus,
        action=it.action,
    )


_NOT_SHOWN = ("kind", "xid", "confidence", "action")


def _shown(it: Explanation) -> str:
    values = {name: getattr(it, name) for name in it.__struct_fields__ if name not in _NOT_SHOWN}
    if it.times == 1:
        values |= {"times": 0, "last": ""}
    return "\n".join([printable(it.kind), *(f"  {name:9} {_text(value)}" for name, value in values.items() if value)])


def _text(value: object) -> str:
    return "; then ".join(map(str, value)) if isinstance(value, tuple) else printable(str(value))
