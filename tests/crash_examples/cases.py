"""Case files: logs of a crash with exit codes and the answer that is right.

    # expected: symptom=segfault root=unknown first_rank=3
    # exit_codes: 0=1,3=-11
    === rank-0.err
    ...

A field that `expected` does not name may be anything; `first_rank=null` means that no rank may be named. Lines that
begin with `# ` before the first log are words for people.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from holdfast.cli.offline.log_sources import named
from holdfast.engines.crash import Diagnosis, diagnose
from holdfast.engines.crash.rules import rule_book
from holdfast.engines.crash.scan import LogScan

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    expected: dict[str, str]
    exit_codes: dict[int, int]
    logs: dict[str, str]


def cases(*folders: str) -> list[Case]:
    """All cases of these folders."""
    return [read(path) for folder in folders for path in sorted((HERE / folder).glob("*.case"))]


def read(path: Path) -> Case:
    """One case file."""
    head, *logs = re.split(r"(?m)^=== (.+)\n", path.read_text())
    fields = dict(re.findall(r"(?m)^# (expected|exit_codes): ?(.*)$", head))
    codes = [one.split("=") for one in fields.get("exit_codes", "").split(",") if one]
    return Case(
        name=path.stem,
        expected=dict(one.split("=") for one in fields["expected"].split()),
        exit_codes={int(rank): int(code) for rank, code in codes},
        logs=dict(zip(logs[::2], logs[1::2], strict=True)),
    )


def diagnosed(case: Case) -> Diagnosis:
    """What the engine says of a case."""
    book = rule_book()
    scans = []
    for name, text in case.logs.items():
        source = named(name)
        scan = LogScan(name, book.line_filter, source.rank, local=source.local)
        scan.feed(text.encode())
        scans.append(scan.end())
    return diagnose(scans, case.exit_codes, book)


def told(diagnosis: Diagnosis, expected: dict[str, str]) -> dict[str, str]:
    """Of a diagnosis the fields that a case names, as a case spells them."""
    return {field: _spelled(getattr(diagnosis, field)) for field in expected}


def _spelled(value: object) -> str:
    return "null" if value is None else str(value)
