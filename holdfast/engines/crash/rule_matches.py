"""Rules that match the lines of one rank, or of one log without ranks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.engines.crash import traceback
from holdfast.engines.crash.log import QUIET, LogLine
from holdfast.engines.crash.rules import CompiledRule, Rule, RuleBook
from holdfast.engines.crash.traceback import LoggedException
from holdfast.symptoms import Root

_UNSURE = 0.5
_FAR_LINES = 60
"""Lines after an exception within which a crash is its consequence: the process unwinds."""

_MESSAGE_LINES = 8
"""Lines after an exception that can belong to its message."""

_QUOTED = re.compile(r'("[^"]{0,19}")|"[^"]{20,}(?:"|$)')
"""A name in quotation marks, or a text."""

_RECORD = re.compile(r'"(?:message|msg|error|exception|exc_info|log|level|severity)" ?: ?')
"""Keys of a log record in JSON; samples of a data set have others."""

_LOGFMT = re.compile(r'\blevel="?\w{1,12}"? .{0,80}\bmsg="')
"""A record as loggers of Go write it."""

_NATIVE = re.compile(r'[\w/]\.(?:cc|cpp|cu|h|hpp|go|rs):\d{1,6}(?:[\])]| ?: guarantee\()|(?<!\S)"hipError\w+: ')
"""Place in a source of native code, which a logger prints before its message, or HIP before what it aborts for; neither
prints samples."""

_NCCL = re.compile(r"(?<!\S)([\w.-]{1,64}:\d{1,8}):\d{1,8} \[\d{1,4}\] ")
"""Host and process before NCCL's lines: what one process does says nothing of another one."""

_HELD = re.compile(r"Process \d+ has (\d{1,9}(?:\.\d{1,9})?) ([KMG]iB) memory in use")
_OWN = re.compile(r"this process has (\d{1,9}(?:\.\d{1,9})?) ([KMG]iB) memory in use")
_ALLOCATED = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ([KMG]iB) is allocated by PyTorch")
_GIB = {"KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0}

_WORKER_DIED = "dataloader"
"""The rule of exceptions that report a worker's end; the worker's own exception has the reason."""

_LOST_CONNECTIONS = frozenset({"launcher_summary", "peer_lost", "connect_timeout"})
"""Rules of exceptions that do not show whose connection it was."""
_INIT = frozenset({"barrier", "init_process_group", "_lazy_init", "set_device"})
_CLIENTS = frozenset({"urllib3", "requests", "httpx", "httpcore", "aiohttp", "huggingface_hub", "fsspec", "datasets"})
"""Packages that talk to services outside of the cluster."""
_ANSWERS_TO_SIGNALS = frozenset({"sigkill_handler", "_terminate_process_handler"})
"""Functions of launchers that stop their ranks when somebody stops the launcher; what fails in them ended nothing."""
_UNPICKLERS = frozenset({"serialization.py", "_weights_only_unpickler.py", "pickle.py"})


class RuleMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A rule and the lines that prove it, the decisive one first; exit codes have none. `place`: the rule's position in
    the order. `is_exception`: a Python exception matched. `has_passed`: a later line of the log shows that the fault
    passed."""

    rule: Rule
    place: int
    rank: int | None
    local: bool
    file: str
    lines: tuple[LogLine, ...]
    is_exception: bool = False
    is_aside: bool = False
    has_passed: bool = False
    block: int = 0

    @property
    def number(self) -> int:
        return self.lines[0].number if self.lines else 0

    @property
    def at(self) -> float | None:
        return self.lines[0].at if self.lines else None

    @property
    def hand(self) -> str:
        """Directness with which the match shows the rank's own end: the rule's `hand` (`rules.py`); "hint" if only a
        thread ended."""
        return "hint" if self.is_aside and self.rule.hand in ("first", "vague") else self.rule.hand


def rule_matches(
    book: RuleBook, lines: Sequence[LogLine], *, file: str, rank: int | None, local: bool = False
) -> list[RuleMatch]:
    """Return all matches in the lines of one stream, in order."""
    raised, rest = traceback.exceptions(lines)
    found: list[RuleMatch] = []
    for one in raised:
        met = book.of_exception(one.type, one.message, has_traceback=one.has_traceback)
        if met is None:
            continue
        if instead := _by_stack(met.rule.name, one) or _by_holders(met.rule.name, one.message):
            met = book.named(instead)
        if met.rule.generic and not one.has_traceback and one.line.text[:1].isspace():
            continue
        if met.rule.generic and _ANSWERS_TO_SIGNALS & set(one.functions[-1:]):
            continue
        proof = (one.line, one.frame) if one.frame else (one.line,)
        found.append(_match(met, file, rank, local, proof, is_exception=True, is_aside=one.is_aside, block=one.block))
    for line in rest:
        met = book.of_line(_unquoted(line.text), line.level)
        if met is not None:
            if instead := _by_holders(met.rule.name, line.text):
                met = book.named(instead)
            undone = met.undone
            passed = undone is not None and any(
                one.number > line.number and undone.search(one.text) and _process(one) == _process(line) for one in rest
            )
            found.append(_match(met, file, rank, local, (line,), has_passed=passed))
    return sorted(found, key=lambda finding: finding.number)


def _process(line: LogLine) -> str:
    found = _NCCL.search(line.text)
    return found[1] if found else ""


def _unquoted(text: str) -> str:
    """Return a line without quoted text, which may be a sample of a data set. JSON records and messages of native
    code are kept as they are."""
    is_record = (
        (text.lstrip()[:1] in ("{", '"') and _RECORD.search(text) is not None)
        or _LOGFMT.search(text)
        or _NATIVE.search(text)
    )
    return text if is_record else _QUOTED.sub(lambda quoted: quoted[1] or '""', text)


def _by_stack(rule: str, raised: LoggedException) -> str | None:
    """Return the rule that an exception's stack implies, if its message is ambiguous."""
    if rule == "cuda_oom_of_driver" and _INIT & set(raised.functions):
        return "cuda_oom_at_start"
    if rule == "launcher_summary" and raised.type == "EOFError" and _UNPICKLERS & set(raised.files):
        return "checkpoint_empty"
    if rule in _LOST_CONNECTIONS and _CLIENTS & set(raised.packages):
        return "client_of_service"
    return None


def _by_holders(rule: str, message: str) -> str | None:
    """Return the rule for a full GPU if other processes hold more of it than the one that failed."""
    if rule not in ("cuda_oom", "cuda_oom_line"):
        return None
    held = sum(float(size) * _GIB[unit] for size, unit in _HELD.findall(message))
    own = _OWN.search(message)
    if own is None:
        # In a container a process does not know its own number, and counts among the others.
        own = _ALLOCATED.search(message)
        held -= float(own[1]) * _GIB[own[2]] if own else held
    return "cuda_oom_of_others" if own and held > float(own[1]) * _GIB[own[2]] else None


def _match(
    met: CompiledRule,
    file: str,
    rank: int | None,
    local: bool,
    lines: tuple[LogLine, ...],
    *,
    is_exception: bool = False,
    is_aside: bool = False,
    has_passed: bool = False,
    block: int = 0,
) -> RuleMatch:
    return RuleMatch(
        rule=met.rule,
        place=met.place,
        rank=rank,
        local=local,
        file=file,
        lines=lines,
        is_exception=is_exception,
        is_aside=is_aside,
        has_passed=has_passed,
        block=block,
    )


def own_end(found: Sequence[RuleMatch]) -> RuleMatch | None:
    """Return the end of one process for its own reason. The last of several tracebacks ended the process; earlier ones
    were handled. Within a chain the most specific rule counts. A crash directly after it is a consequence; an earlier
    line that names hardware explains it."""
    first = [finding for finding in found if finding.hand == "first"]
    raised = [finding for finding in first if finding.is_exception]
    printed = [finding for finding in first if not finding.is_exception]
    if not raised:
        return _most_special(printed)
    ending = raised[-1]
    last = _most_special([one for one in raised if (one.file, one.block) == (ending.file, ending.block)])
    assert last is not None
    if last.rule.name == _WORKER_DIED and (reason := _of_worker(raised, last)) is not None:
        return reason
    # A much earlier line, or a mere remark, explains only an exception that is ambiguous by itself.
    unsure = last.rule.confidence <= _UNSURE
    before = [
        finding
        for finding in printed
        if finding.lines
        and finding.number < last.number
        and not finding.rule.generic
        and (unsure or (finding.number >= last.number - _FAR_LINES and finding.lines[0].level not in QUIET))
    ]
    # The message of an ambiguous exception may go on below it, and name the hardware there.
    before += [
        finding
        for finding in printed
        if last.number < finding.number <= last.number + _MESSAGE_LINES
        and (
            (last.rule.root is Root.UNKNOWN and finding.rule.root is Root.INFRASTRUCTURE)
            or (unsure and last.rule.generic and not finding.rule.generic)
        )
    ]
    after = [finding for finding in printed if finding.number > last.number + _FAR_LINES]
    if before and (special := _most_special(before)) and special.place < last.place:
        return special
    return _most_special(after) or last


def _of_worker(raised: Sequence[RuleMatch], last: RuleMatch) -> RuleMatch | None:
    """Return the exception that a worker printed just before its process was missed; None if it printed none."""
    near = [
        one
        for one in raised
        if one.block != last.block
        and last.number - _FAR_LINES <= one.number < last.number
        and not one.rule.generic
        and one.place < last.place
    ]
    return _most_special(near)


def mixed_end(found: Sequence[RuleMatch]) -> RuleMatch | None:
    """Return the end in a log that mixes unnamed processes: the first match, and the most specific of its chain."""
    first = [finding for finding in found if finding.hand == "first"]
    sure = [finding for finding in first if finding.rule.confidence > _UNSURE]
    earliest = min(sure or first, key=lambda finding: finding.number, default=None)
    if earliest is None or not earliest.is_exception:
        return earliest
    return _most_special([finding for finding in first if finding.block == earliest.block and finding.is_exception])


def _most_special(found: Iterable[RuleMatch]) -> RuleMatch | None:
    return min(found, key=lambda finding: (finding.rule.generic, finding.place, finding.number), default=None)


_TIMED_OUT = re.compile(
    r"WorkNCCL\(SeqNum=(\d{1,15}), OpType|detected by watchdog at work(?: sequence id)?: (\d{1,15})\b"
)


def collective(finding: RuleMatch) -> int | None:
    """Return the number of the collective in a watchdog's line."""
    found = _TIMED_OUT.search(finding.lines[0].text) if finding.lines else None
    return int(found[1] or found[2]) if found else None
