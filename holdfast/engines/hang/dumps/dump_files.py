"""The format of a dump, by its first bytes, and the processes in it (py-spy, faulthandler or gdb, any cluster). Pure.

A dump seldom states its rank. The rank comes from, in this order: a label, key or file name; the local rank on the
command line with the number of the node; the order of processes on a node.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from holdfast.engines.hang.dumps.faulthandler_text import is_fault_text, read_fault_text
from holdfast.engines.hang.dumps.gdb_text import is_gdb_text, read_gdb_text
from holdfast.engines.hang.dumps.process_kinds import kind_of, node_in_name, rank_in_folder, rank_in_name, ranks_in_name
from holdfast.engines.hang.dumps.py_spy_json import is_py_spy_threads, read_py_spy_threads
from holdfast.engines.hang.dumps.py_spy_text import DumpedProcess, is_py_spy_text, read_py_spy_text
from holdfast.events.parts.traces import ProcessKind, ProcessStacks

T = TypeVar("T")

DumpFormat = Literal["py_spy_text", "py_spy_json", "faulthandler", "gdb", "process_stacks"]

_TIMES = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d)? ?", re.MULTILINE)
_RANK_OF_COMMAND = re.compile(r"(?:^|\s)(?:RANK=|--(?:global[-_])?rank[= ])(\d+)\b")
_LOCAL_RANK = re.compile(r"--local[-_]rank[= ](\d{1,4})\b")
_NUMBER = re.compile(r"(\d+)(?!.*\d)")
_WRAPPERS = ("dumps", "stacks", "ranks", "processes", "results", "data")
_RANK_KEYS = ("rank", "global_rank", "RANK")
_NODE_KEYS = ("node", "host", "hostname", "node_name", "machine")
_DUMP_KEYS = ("threads", "stack", "stacks", "dump", "py_spy", "pyspy", "text", "stdout", "output", "traceback", "trace")


class UnreadableDump(ValueError):
    """A dump without readable content; the message gives the reason."""


class IdentifiedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a dump; `rank` and `node` if names contain them, `file` where it was found."""

    process: DumpedProcess
    kind: ProcessKind
    file: str
    rank: int | None = None
    node: str = ""
    state: str = ""


def read_stacks_text(text: str, name: str) -> tuple[DumpFormat, list[IdentifiedProcess]] | None:
    """Read the processes of a text. None if it is no dump of stacks."""
    text = _TIMES.sub("", text)
    if is_py_spy_text(text):
        return "py_spy_text", _named(read_py_spy_text(text), name, name)
    if is_fault_text(text):
        return "faulthandler", _named(read_fault_text(text), name, name)
    if is_gdb_text(text):
        return "gdb", _named(read_gdb_text(text), name, name)
    return None


def read_stacks_json(document: Any, name: str) -> tuple[DumpFormat, list[IdentifiedProcess]] | None:
    """Read the processes of decoded JSON; None if it is no dump of stacks. Raises UnreadableDump if it is broken."""
    try:
        found = list(_in_document(document, name, None, ""))
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise UnreadableDump(f"{name}: stacks in JSON that cannot be read: {error}") from error
    if not found:
        return None
    return "py_spy_json", found


def _in_document(document: Any, name: str, rank: int | None, node: str) -> Iterator[IdentifiedProcess]:
    """Yield processes from threads, a text, or nested objects and lists of those, by rank or with their rank inside."""
    if isinstance(document, str):
        if read := read_stacks_text(document, ""):
            yield from _with(read[1], name, rank, node)
    elif is_py_spy_threads(document):
        yield from _with(_named(read_py_spy_threads(document), "", name), name, rank, node)
    elif isinstance(document, list):
        for one in document:
            if isinstance(one, dict | list | str):
                yield from _in_document(one, name, rank, node)
    elif isinstance(document, dict):
        own = next((document[key] for key in _RANK_KEYS if isinstance(document.get(key), int)), rank)
        where = next((str(document[key]) for key in _NODE_KEYS if isinstance(document.get(key), str | int)), node)
        known = [key for key in (*_DUMP_KEYS, *_WRAPPERS) if isinstance(document.get(key), dict | list | str)]
        if is_py_spy_threads([document]):
            yield from _with(_named(read_py_spy_threads([document]), "", name), name, own, where)
        elif known:
            for found in (each for key in known for each in _in_document(document[key], name, own, where)):
                yield _in_envelope(found, document)
        else:
            for key, value in document.items():
                if isinstance(value, dict | list | str):
                    theirs = rank_in_name(str(key))
                    here = node_in_name(str(key)) or where
                    yield from _in_document(value, name, own if theirs is None else theirs, here)


def _in_envelope(found: IdentifiedProcess, envelope: Mapping[str, Any]) -> IdentifiedProcess:
    """Add what the object around a dump has: process number, command line and state."""
    process = found.process
    pid, command = envelope.get("pid"), envelope.get("cmdline", envelope.get("command"))
    if isinstance(command, list):
        command = " ".join(map(str, command))
    process = msgspec.structs.replace(
        process,
        pid=process.pid or (pid if isinstance(pid, int) else 0),
        command=process.command or (command if isinstance(command, str) else ""),
    )
    state = envelope.get("state")
    return msgspec.structs.replace(
        found,
        process=process,
        kind=kind_of(process.command, process.threads),
        state=found.state or (state[:1] if isinstance(state, str) else ""),
    )


def _with(found: Sequence[IdentifiedProcess], name: str, rank: int | None, node: str) -> Iterator[IdentifiedProcess]:
    for one in found:
        yield msgspec.structs.replace(
            one, file=name, rank=one.rank if rank is None else rank, node=node or one.node or node_in_name(name)
        )


def _named(processes: Sequence[DumpedProcess], name: str, file: str) -> list[IdentifiedProcess]:
    stands_for = ranks_in_name(name) if len(processes) == 1 else ""
    return [
        IdentifiedProcess(
            process=process,
            # A stack that stands for many ranks cannot be compared with those of single ones.
            kind="other"
            if stands_for or _by_label(ranks_in_name, process)
            else kind_of(process.command, process.threads),
            file=file,
            rank=_own_rank(process),
            node=_by_label(node_in_name, process) or node_in_name(name),
        )
        for process in processes
    ]


def _own_rank(process: DumpedProcess) -> int | None:
    rank = _by_label(rank_in_name, process)
    if rank is None and (found := _RANK_OF_COMMAND.search(process.command)):
        return int(found[1])
    return rank


def _by_label(what: Callable[[str], T], process: DumpedProcess) -> T:
    in_label = what(process.label)
    return what(process.section) if in_label is None or in_label == "" else in_label


def processes_of(
    dumped: Sequence[IdentifiedProcess], ranks_per_node: int | None
) -> tuple[list[ProcessStacks], list[str]]:
    """Return the processes with their ranks, and notes on how ranks without a name were inferred."""
    notes: list[str] = []
    ranks = _by_names(dumped)
    if None in ranks:
        ranks, note = _by_local_ranks(dumped, ranks, ranks_per_node)
        notes += note
    parents = {(one.file, one.process.pid): rank for one, rank in zip(dumped, ranks, strict=True) if rank is not None}
    processes = [
        ProcessStacks(
            kind=one.kind,
            rank=parents.get((one.file, one.process.parent_pid), rank) if one.kind != "rank" else rank,
            node=one.node,
            pid=one.process.pid,
            threads=one.process.threads,
            state=one.state,
            unread=one.process.unread,
        )
        for one, rank in zip(dumped, ranks, strict=True)
    ]
    return processes, notes


def _by_names(dumped: Sequence[IdentifiedProcess]) -> list[int | None]:
    """Return the rank that the process itself names, else that of its file if the file has only one rank process."""
    mains: defaultdict[str, set[int]] = defaultdict(set)
    for one in dumped:
        if one.kind == "rank" and one.rank is None:
            mains[one.file].add(one.process.pid)
    files = sorted({one.file for one in dumped})
    by_file = _unless_local({file: rank_in_name(file) for file in files}, dumped)
    by_folder = {file: rank_in_folder(file) for file, rank in by_file.items() if rank is None}
    # A folder that holds the dumps of several ranks is not named after a rank.
    mains_of = Counter(rank for file, rank in by_folder.items() if mains[file])
    by_file |= {file: rank for file, rank in by_folder.items() if mains_of[rank] <= 1}
    if (
        len(files) > 1
        and all(len(mains[file]) <= 1 for file in files)
        and not any(rank is not None for rank in by_file.values())
    ):
        by_file = _by_numbers(files)
    return [
        one.rank if one.rank is not None else by_file[one.file] if _is_whose_file(one, mains[one.file]) else None
        for one in dumped
    ]


def _unless_local(by_file: dict[str, int | None], dumped: Sequence[IdentifiedProcess]) -> dict[str, int | None]:
    """Return ranks by file; empty if files on several machines share a number, which then counts within a machine."""
    nodes: defaultdict[int, set[str]] = defaultdict(set)
    for one in dumped:
        number = by_file[one.file]
        if number is not None and one.rank is None and one.kind == "rank" and one.node:
            nodes[number].add(one.node)
    return dict.fromkeys(by_file) if any(len(places) > 1 for places in nodes.values()) else by_file


def _is_whose_file(one: IdentifiedProcess, mains: set[int]) -> bool:
    """True if a process is the rank that its file is named after, or a child of it, not a second program in it."""
    return len(mains) <= 1 or (one.kind == "rank" and one.process.pid == min(mains))


def _by_numbers(files: Sequence[str]) -> dict[str, int | None]:
    """Return ranks by the last number of file names, for files with one rank process each: `worker-7.txt` is rank 7."""
    numbers = {file: int(found[1]) if (found := _NUMBER.search(file)) else None for file in files}
    known = [number for number in numbers.values() if number is not None]
    if len(set(known)) == len(files) and max(known) < 4 * len(files):
        return dict(numbers)
    return dict.fromkeys(files)


def _by_local_ranks(
    dumped: Sequence[IdentifiedProcess], ranks: list[int | None], ranks_per_node: int | None
) -> tuple[list[int | None], list[str]]:
    """Infer ranks from the node and the local rank: by command line, else by the order of process numbers."""
    if not ranks_per_node:
        return ranks, []
    by_node: defaultdict[str, list[int]] = defaultdict(list)
    for index, one in enumerate(dumped):
        if one.kind == "rank":
            by_node[one.node or one.file].append(index)
    nodes = {node: int(found[1]) if (found := _NUMBER.search(node)) else None for node in by_node}
    if len(nodes) == 1:
        nodes = dict.fromkeys(nodes, 0)
    known = [number for number in nodes.values() if number is not None]
    if len(known) < len(nodes) or len(set(known)) < len(nodes):
        return ranks, []
    # Launchers count nodes from 0; some that name them count from 1.
    first = 0 if 0 in known or max(known) >= len(known) + 1 else min(known)
    inferred = list(ranks)
    for node, indexes in by_node.items():
        places = _places(dumped, indexes, ranks_per_node)
        for index in indexes:
            if inferred[index] is None and (local := places.get(index)) is not None:
                inferred[index] = ((nodes[node] or 0) - first) * ranks_per_node + local
    count = sum(rank is not None for rank in inferred) - sum(rank is not None for rank in ranks)
    if not count or len({rank for rank in inferred if rank is not None}) < sum(rank is not None for rank in inferred):
        return ranks, []
    return inferred, [f"the ranks of {count} processes are inferred from their node and their order on it"]


def _places(dumped: Sequence[IdentifiedProcess], indexes: Sequence[int], ranks_per_node: int) -> dict[int, int]:
    """Return each process's local rank: by its command line, the number of its file, or its process number."""
    in_order = sorted(indexes, key=lambda index: dumped[index].process.pid)
    places = dict(zip(in_order, range(len(indexes)), strict=True)) if len(indexes) == ranks_per_node else {}
    numbers = {index: rank_in_name(dumped[index].file) for index in indexes}
    known = [number for number in numbers.values() if number is not None and number < ranks_per_node]
    if len(set(known)) == len(indexes):
        places = {index: number for index, number in numbers.items() if number is not None}
    by_command = {index: _LOCAL_RANK.search(dumped[index].process.command) for index in indexes}
    return places | {index: int(found[1]) for index, found in by_command.items() if found}
