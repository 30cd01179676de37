"""Find dumps in files, directories and standard input, detect their format, read them. A broken one harms no other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast.cli.offline.dump_contents import STDIN, contents, files_of
from holdfast.engines.hang.dumps.dump_files import (
    IdentifiedProcess,
    UnreadableDump,
    processes_of,
    read_stacks_json,
    read_stacks_text,
)
from holdfast.engines.hang.dumps.flight_recorder import FlightRecorderError, read_flight_recorder
from holdfast.engines.stragglers.traces.operations import (
    Operations,
    OperationsUnreadable,
    looks_like_meta,
    looks_like_operations,
    read_operations,
)
from holdfast.events.parts.traces import ProcessStacks, RankTrace

_HEAD_BYTES = 1 << 16
_FLIGHT_RECORDER_KEYS = (b'"pg_config"', b'"pg_status"', b'"collective_seq_id"', b'"nccl_version"')
_NOT_A_DUMP = re.compile(r"\.(?:py|md|png|svg|html|sh|so|pt|bin|safetensors|whl)$|^(?:LICENSE|README)", re.IGNORECASE)
_NO_DUMP = (
    "no stacks of py-spy, faulthandler or gdb, no flight recorder's dump, no timings of operations"
    " (for the log of a job: `holdfast classify`)"
)
_JSON = re.compile(rb"\s*(?:\{|\[\s*(?:[\[{\"\]]|$))")
"""Start of JSON that may be a dump. Labels and times before a log's lines open with a bracket as well: `[rank3]: `."""
_META = re.compile(r"^meta[-_.]?(.*?)\.(?:ya?ml|json)$")


class ReadFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was read: in which format, and how many processes, ranks or operations it has."""

    file: str
    format: str
    count: int


class UnreadFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was not read, and why."""

    file: str
    error: str


class Inputs(msgspec.Struct, kw_only=True):
    """Everything that the paths hold."""

    processes: list[ProcessStacks] = []
    traces: list[RankTrace] = []
    operations: list[Operations] = []
    read: list[ReadFile] = []
    unread: list[UnreadFile] = []
    notes: list[str] = []


def read_inputs(paths: list[str], ranks_per_node: int | None) -> Inputs:
    """Read all dumps below these paths; `-` is standard input. Files that cannot be read are listed with the error."""
    reading = _Reading()
    for given in paths:
        for name, path, error in files_of(given):
            if error:
                reading.found.unread.append(UnreadFile(file=name, error=error))
            else:
                reading.read(name, path, is_asked_for=name == given)
    found = reading.found
    found.operations = [*reading.operations()]
    found.processes, notes = processes_of(reading.dumped, ranks_per_node)
    found.processes += reading.stacks
    found.notes += notes
    return found


class _Reading:
    def __init__(self) -> None:
        self.found = Inputs()
        self.dumped: list[IdentifiedProcess] = []
        self.stacks: list[ProcessStacks] = []
        self._timings: dict[str, bytes] = {}
        self._metas: dict[str, bytes] = {}

    def read(self, name: str, path: Path | None, *, is_asked_for: bool) -> None:
        """Read one file. A file in a directory that does not look like a dump is skipped silently."""
        try:
            for inner, data in contents(path, name):
                self._read_one(inner, data, is_asked_for=is_asked_for and inner == name)
        except (UnreadableDump, OSError) as error:
            self._not_read(name, error)
        except MemoryError:
            self._not_read(name, UnreadableDump("it needs more memory than there is"))

    def _read_one(self, name: str, data: bytes, *, is_asked_for: bool) -> None:
        try:
            kind, count = self._take(data, name)
        except (UnreadableDump, FlightRecorderError, OperationsUnreadable) as error:
            self._not_read(name, error)
            return
        if kind:
            self.found.read.append(ReadFile(file=name, format=kind, count=count))
        elif is_asked_for or not _NOT_A_DUMP.search(Path(name).name):
            self._not_read(name, UnreadableDump(_NO_DUMP if data.strip() else "empty"))

    def _not_read(self, name: str, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else None
        self.found.unread.append(UnreadFile(file=name, error=reason or _without(str(error), name)))

    def operations(self) -> Iterator[Operations]:
        """Yield the timings, each with the sizes in the meta file of the same name beside it."""
        for name, data in self._timings.items():
            try:
                yield read_operations(data, name, self._meta_of(name))
            except OperationsUnreadable as error:
                self.found.read = [one for one in self.found.read if one.file != name]
                self._not_read(name, error)

    def _take(self, data: bytes, name: str) -> tuple[str, int]:
        head = data[:_HEAD_BYTES]
        if looks_like_operations(head):
            self._timings[name] = data
            return "operations", data.count(b"\n")
        if data[:1] == b"\x80":
            return self._traces(data, name)
        if _JSON.match(head):
            if looks_like_meta(head) and len(data) < _HEAD_BYTES:
                self._metas[name] = data
                return "operations_meta", 0
            if any(sign in data for sign in _FLIGHT_RECORDER_KEYS):
                return self._traces(data, name)
            return self._json(data, name)
        text = data.decode("utf-8", "replace")
        if read := read_stacks_text(text, name):
            self.dumped += read[1]
            return read[0], len(read[1])
        if looks_like_meta(head) and len(data) < _HEAD_BYTES:
            self._metas[name] = data
            return "operations_meta", 0
        return "", 0

    def _traces(self, data: bytes, name: str) -> tuple[str, int]:
        traces = read_flight_recorder(data, name)
        self.found.traces += traces
        return "flight_recorder", len(traces)

    def _json(self, data: bytes, name: str) -> tuple[str, int]:
        documents = list(_documents(data, name))
        if len(documents) == 1 and (own := _own_stacks(documents[0])):
            self.stacks += own
            return "process_stacks", len(own)
        found = [read for document in documents if (read := read_stacks_json(document, name))]
        dumped = [one for read in found for one in read[1]]
        self.dumped += dumped
        return (found[0][0], len(dumped)) if found else ("", 0)

    def _meta_of(self, name: str) -> bytes:
        folder, stem = Path(name).parent, Path(name).name.split(".")[0].removeprefix("trace").lstrip("-_")
        for meta, data in self._metas.items():
            if Path(meta).parent == folder and (found := _META.match(Path(meta).name)) and found[1] in ("", stem):
                return data
        beside = [folder / f"meta-{stem}.yaml", folder / f"meta-{stem}.yml", folder / f"meta-{stem}.json"]
        return next((path.read_bytes() for path in beside if name != STDIN and path.is_file()), b"")


def _documents(data: bytes, name: str) -> Iterator[Any]:
    """Yield the JSON documents of a file: one, one in each line, or several after each other as py-spy leaves them."""
    try:
        yield msgspec.json.decode(data)
        return
    except (msgspec.DecodeError, RecursionError) as error:
        reason = str(error)
    text = data.decode("utf-8", "replace")
    decoder = json.JSONDecoder()
    at, found = 0, False
    while at < len(text):
        try:
            document, at = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            raise UnreadableDump(f"{name}: its JSON is broken or was cut short: {reason}") from None
        found = True
        yield document
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
    if not found:
        raise UnreadableDump(f"{name}: its JSON is broken: {reason}")


def _own_stacks(document: Any) -> list[ProcessStacks]:
    """Return stacks in the format of Holdfast's own tracer."""
    if not isinstance(document, list) or not document or not isinstance(document[0], dict):
        return []
    if not any(key in document[0] for key in ("threads", "unread")):
        return []
    try:
        return msgspec.convert(document, list[ProcessStacks])
    except msgspec.ValidationError:
        return []


def _without(error: str, name: str) -> str:
    for between in (": ", ", ", " "):
        error = error.removeprefix(f"{name}{between}")
    return error
