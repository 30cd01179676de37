"""Lines of a training log: rank, time, level and text. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

LINE_CHARS_MAX = 2000
END_CHARS = 400
"""Characters kept of a long line: its head, and its end, where a launcher reports how a command ended."""

GAP = b" ... "

QUIET = frozenset({"info", "quiet"})
"""Levels of lines that report no failure."""


class LogLine(NamedTuple):
    """One line."""

    number: int
    rank: int | None
    """None if the line names none."""
    local: bool
    """True if the rank counts only within its node."""
    at: float | None
    """Seconds since the start of the year in the log's own time zone, only for comparing lines of one job."""
    level: str
    """`loud`; `quiet` for a warning; `info`; `nccl_warn` for NCCL's own; empty if the line has none."""
    text: str


_ANSI = re.compile(r"(?:\x1b|#033|\\033|\\x1b)\[[0-9;?]*[A-Za-z]")
"""Colours, also with the escape as syslog and JSON spell it."""

_TYPOGRAPHIC = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")
"""Quotation marks as forums print them."""
_UNPAIRED = _TYPOGRAPHIC | {0x201C: None, 0x201D: None}

_PREFIXES: tuple[tuple[re.Pattern[str], bool], ...] = (
    (re.compile(r"\[(?:rank|RANK|Rank)[ :=]{0,2}(\d{1,6})\]:? ?"), False),
    (re.compile(r"\[\d+,(?:mpirank:)?(\d{1,6})(?:,[\w-]{1,40})?\]<std(?:out|err|diag)>: ?"), False),
    (re.compile(r"(?:rank|Rank|RANK)[ =]?(\d{1,6}): "), False),
    (re.compile(r"\[(?:default|trainer|worker|role|local_rank)[_ ]?(\d{1,4})\]: ?"), True),
)
"""Launchers' prefixes with a rank: torch, Open MPI, scripts; torchrun's `--tee` has only the local rank."""

_SRUN = re.compile(r" {0,5}(\d{1,6}): ")
_RAY = re.compile(
    r"\((?:[\w.<>:]+ pid=\d+(?:, ip=[\d.]+)?|raylet|autoscaler)(?:, ip=[\d.]+)?\) (?:\[repeated \d+x[^\]]{0,40}\] ?)?"
)
_VLLM = re.compile(r"(?=(?P<level>[A-Z]+) )[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]{1,80}:\d+\] ")
_KUBERNETES = re.compile(r"(?:stdout|stderr) [FP] |\[pod/[\w.-]{1,253}/[\w.-]{1,63}\] ")
_COMPOSE = re.compile(r"[A-Za-z][\w.-]{1,58}[-_]\d{1,4} {1,12}\| ")
_KAGGLE = re.compile(r"\d+\.\ds\t\d+\t")
_OUTPUT = (
    r"\[(?:rank|default)\d+\]:|Traceback \(most|\s{2,}File \"|terminate called|"
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b(?::|\s*$)"
)
"""Beginnings of a program's output, by which it is found behind the prefix of a program that repeats it."""
_AGAIN = re.compile(
    rf"(?:[\w.:,/-]+ ){{0,2}}- [\w.]{{1,60}} - [A-Z]{{4,8}} - "
    rf"(?={_OUTPUT}|\[?[EF]\d{{4}} |ERROR\b|FATAL\b|.{{0,40}}: error: )"
)
"""A logger that repeats its children's output: the level is the logger's, not theirs."""
_HOST = re.compile(
    r"(?!python|torch\d|[Rr]ank|RANK|local_rank|trainer\d|worker\d|E[A-Z]\d{4}:)"
    r"(?=[\w.-]*\d)[A-Za-z0-9][\w.-]{1,62}(?<!\.py|\.sh|\.cc|\.cu): "
    r"(?=\s*\[[Rr]ank|\s{2,}\S|Traceback \(most|terminate called|\[?\d{4}-\d\d-\d\d|\[default\d|"
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b:)"
)
"""Host prefixes: pdsh, dsh, operators that follow several pods. Error codes of Ascend look like hosts."""
_BEFORE_RANK = re.compile(r" {0,5}(?:[^\s\[]{0,60}\[[^\][]{0,60}\][: ]*|[\w.:/-]{1,60} ){1,4}(?=\[rank\d{1,6}\]:)")
"""Whatever a collector writes before torch's own prefix: numbers of lines, names of tasks."""
_DRAWN = re.compile(r"[^\n]{0,40}\d{1,3}%\|[^\n]{0,800}?\](?=\[rank\d{1,6}\]:|Traceback \(most recent call last\))")
"""A progress bar that a line was written behind."""
_LOGGED = re.compile(rf"(?:ERROR|CRITICAL): {{4}}(?=\S| {{2}})|> (?={_OUTPUT})")
"""A logger that writes its level before each line of a traceback, or a quotation."""
_SYSLOG = re.compile(
    r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}\d{1,2} \d\d:\d\d:\d\dZ? [\w.-]{1,64} "
    r"(?=[\w./-]{1,40}(?:\[\d+\])?: )"
)
_PROGRAM = re.compile(rf"[\w./-]{{1,40}}\[\d+\]: (?={_OUTPUT})")
"""Prefixes of syslog, `_SYSLOG` and `_PROGRAM`: time, machine and program."""
_FRAMED = re.compile(r"(?:\[[\w.-]{1,40}\] )?[\x01\x02]?\x00{0,6}.?(?=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z )")
"""Name and header of a frame of Docker's raw stream, whose last byte is a length, before the stamp that Docker adds."""
_NUMBERED_LINE = re.compile(rf"\[\d{{3,9}}\] (?={_OUTPUT}| {{4}}\S)")
"""Number of a process or line, other in each line."""
_SCRIPT = re.compile(
    r"(?:(?:python|torchrun|bash|sh|accelerate|deepspeed|docker|podman)[\d.]*|[\w.-]{1,60}\.sh)\[\d+\]: "
    r"(?!segfault at |general protection)"
)
"""The program in syslog, if it is a script or what starts one: whatever stands behind it is its output, but for the
kernel's own word on it."""
_AIRFLOW = re.compile(
    r"\[\d{4}-\d\d-\d\d, \d\d:\d\d:\d\d [A-Z\d:+-]{1,6}\] |"
    r"\{(?:subprocess|pod_manager|docker|ssh|bash|logging_mixin)\w{0,20}\.py:\d+\} [A-Z]{4,8} - (?:\[base\] )?"
)
"""Airflow's stamp, and the prefix of its modules that repeat a program's output, with a level that is not its own."""
_JOB_STEP = re.compile(r"[^\t]{1,120}\t[^\t]{1,120}\t(?=\ufeff?\d{4}-\d\d-\d\dT)")
"""Job and step that GitHub writes before each line of a log."""
_FLUENTD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{9} [+-]\d{4} [\w.-]{1,80}: ")
_CLOCK = re.compile(r"\[\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\] |\d\d:\d\d:\d\d(?:[.,]\d{1,9})? |1[4-9]\d{8}(?:\.?\d{3,9})? ")
"""A time of day, or seconds since 1970, before a line."""
_STREAM = re.compile(r"(?:[\w.:-]{1,60} )?(?:std(?:err|out): |\[std(?:err|out)\] )")
"""Prefixes of programs that repeat the output of another one."""
_WITHIN = re.compile(
    r"\[(?!PG (?:ID )?[1-9])(?:[^\][]{0,120} )?[Rr]ank[ :=]{0,2}(\d{1,6})\]|\bPG (?:ID )?0 [^\][]{0,80}Rank (\d{1,6})\]"
)
"""Rank inside a message: `[Rank 3]`, `[PG ID 0 PG GUID 0(default_pg) Rank 3]`. Other groups count their own members."""

_DATE = re.compile(
    r"(?P<y>\d{4})[-/](?P<m>\d\d)[-/](?P<d>\d\d)(?:[T _]|, )(?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)(?:[.,](?P<f>\d{1,9}))?"
)
_GLOG = re.compile(r"\b([EWIF])(?P<m>\d\d?)(?P<d>\d\d) (?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)(?:\.(?P<f>\d{1,9}))?")
_NAMED = re.compile(
    r"\b(?P<month>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(?P<d>\d{1,2}) "
    r"(?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_STAMP_LEAD = re.compile(
    r"\s?\[?\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?\]?:?\s{0,3}(?:\|\s)?"
)
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b")
_LOGFMT = re.compile(r"(?:^| )level[=:]\"?(debug|info|warn|error|fatal|panic)", re.IGNORECASE)
_LEVEL_WITHIN_CHARS = 110
_C10 = re.compile(r"(?<!\S)\[([WEIF]) ?[\w/.]{1,80}\.(?:cpp|hpp|h|cc):\d+\]")
_OLD_NCCL = re.compile(r"(?:^|\] )[\w./-]{1,60}\.(?:cu|cc|h):\d{1,5} WARN ")
"""A warning of NCCL before 2.4, which did not write its name."""
_QUIET = {"DEBUG": "info", "INFO": "info", "WARNING": "quiet", "WARN": "quiet"}
_WARNING = re.compile(r"\b[A-Z][A-Za-z]*Warning: |^\s*warnings?\.warn\(|\b[Ww]arning: ")


def dissect(raw: str, number: int) -> LogLine:
    """Return a raw line of a log in its parts: rank, time, level and text. `number`: its place in the file, from 1."""
    text = raw[: LINE_CHARS_MAX + END_CHARS + len(GAP)].rstrip()
    if "[" in text and ("\x1b" in text or "033[" in text or "x1b[" in text):
        text = _ANSI.sub("", text)
    if not text.isascii():
        # One alone opens or closes a quoted log, not a text within the line.
        is_paired = text.count("\u201c") == text.count("\u201d")
        text = text.translate(_TYPOGRAPHIC if is_paired else _UNPAIRED)
    at = moment(text)
    level = ""
    rank: int | None = None
    local = False
    if text[:1] == "\t" and text.lstrip()[:5] == "[rank":
        text = text.lstrip()
    for _ in range(5):
        if lead := _lead(text):
            text = text[lead.end() :]
            continue
        if lead := _VLLM.match(text):
            level = _QUIET.get(lead["level"], "loud")
            text = text[lead.end() :]
            continue
        for pattern, is_local in _PREFIXES:
            if found := pattern.match(text):
                if rank is None or (local and not is_local):
                    rank, local = int(found[1]), is_local
                text = text[found.end() :]
                break
        else:
            break
    if (rank is None or local) and "ank" in text[:240] and (found := _WITHIN.search(text, 0, 240)):
        rank, local = int(found[1] or found[2]), False
    return LogLine(number, rank, local, at, level or _level(text), text)


def cut(raw: bytes) -> str:
    """Decode a line; of a longer one than the limit, keep the beginning and the end."""
    if len(raw) > LINE_CHARS_MAX + END_CHARS:
        raw = raw[:LINE_CHARS_MAX] + GAP + raw[-END_CHARS:]
    return raw.decode(errors="replace")


def _lead(text: str) -> re.Match[str] | None:
    """Match what a log collector puts before a line."""
    return (
        (_FLUENTD.match(text) if ": " in text[36:120] else None)
        or _STAMP_LEAD.match(text)
        or _CLOCK.match(text)
        or _KUBERNETES.match(text)
        or _RAY.match(text)
        or _KAGGLE.match(text)
        or _SYSLOG.match(text)
        or (_SCRIPT.match(text) or _PROGRAM.match(text) if "]: " in text[:76] else None)
        or _AIRFLOW.match(text)
        or (_JOB_STEP.match(text) if "\t" in text[:120] else None)
        or (_HOST.match(text) if ": " in text[:66] else None)
        or (_COMPOSE.match(text) if " | " in text[:76] else None)
        or (_STREAM.match(text) if "std" in text[:64] else None)
        or (_AGAIN.match(text) if " - " in text[:100] else None)
        or (_BEFORE_RANK.match(text) if "[rank" in text[1:240] else None)
        or (_DRAWN.match(text) if "%|" in text[:60] else None)
        or (_FRAMED.match(text) if "Z " in text[29:82] else None)
        or (_NUMBERED_LINE.match(text) if text[:1] == "[" else None)
        or _LOGGED.match(text)
    )


def moment(text: str) -> float | None:
    """Return the time of a line: python, ISO, glog, c10, syslog and `dmesg -T` formats."""
    head = text[:160]
    found = _DATE.search(head) or _GLOG.search(head)
    if found:
        month, fraction = int(found["m"]), found["f"]
    elif found := _NAMED.search(head):
        month, fraction = _MONTHS.index(found["month"]) + 1, None
    else:
        return None
    seconds = ((month * 31 + int(found["d"])) * 24 + int(found["H"])) * 3600 + int(found["M"]) * 60 + int(found["S"])
    return seconds + (float(f"0.{fraction}") if fraction else 0.0)


def _level(text: str) -> str:
    head = text[:_LEVEL_WITHIN_CHARS]
    if "NCCL INFO" in text[:300]:
        return "quiet"
    if "NCCL WARN" in text[:300] or (" WARN " in head and _OLD_NCCL.search(head)):
        return "nccl_warn"
    if glog := _GLOG.search(head):
        return "quiet" if glog[1] in "WI" else "loud"
    if c10 := _C10.search(head):
        return "quiet" if c10[1] in "WI" else "loud"
    if _WARNING.search(text[:300]):
        return "quiet"
    if logfmt := _LOGFMT.search(head):
        return _QUIET.get(logfmt[1].upper(), "loud")
    if "NVRM: " in head or "kernel: " in head:
        # The word is the log collector's, and the kernel's line has none.
        return ""
    # A level is a word at the head of a line, not inside a sentence.
    found = _LEVEL.search(head)
    if found and (found.start() < 12 or head[found.start() - 1] in "[|(-:, "):
        return _QUIET.get(found[1], "loud")
    return ""


def task_of(text: str) -> tuple[int | None, str]:
    """Return the task of a labelled line, and the line without its label."""
    found = _SRUN.match(text)
    return (int(found[1]), text[found.end() :]) if found else (None, text)


def looks_labelled(lines: list[str]) -> bool:
    """True if a file's first lines begin with task numbers (`srun --label`)."""
    full = [line for line in lines if line.strip()]
    return len(full) >= 3 and sum(bool(_SRUN.match(line)) for line in full) >= 0.9 * len(full)


_NUMBERED = re.compile(
    r"\b(?:[Ii]ter(?:ation)?s?|[Gg]lobal[_ ]?[Ss]tep|[Ss]tep|STEP|[Uu]pdates?|num_updates)\b\"?'?[\s:=#|\[(/]*(\d+)"
)
_MEASURED = re.compile(
    r"\b(?:loss|lm[_ ]loss|train_loss|ppl|lr|learning[_ ]rate|grad[_ ]?norm|gnorm|tokens|samples|elapsed|it/s|s/it|"
    r"tflops|mfu|throughput|wps|ms/step|time)\b",
    re.IGNORECASE,
)
_BAR = re.compile(r"\b(\d{1,9})/\d{1,9}\]? ?[\[,\t].{0,200}\bloss")
_EPOCH = re.compile(r"^\{'(?:train_)?loss': .{0,300}'epoch': (\d{1,6}(?:\.\d{1,9})?)\}")
_TROUBLE = ("rror", "xcept", "fail", "Fail", "FAIL", "abort", "Abort", "imeout", "imed out")
_STEP_LIKE = ("iter", "Iter", "tep", "STEP", "pdate")


def progress(text: str) -> int | None:
    """Return a number that grows with the training steps that such lines report; None for other lines."""
    if any(one in text for one in _TROUBLE):
        return None
    if any(one in text for one in _STEP_LIKE) and (found := _NUMBERED.search(text)) and _MEASURED.search(text):
        return int(found[1])
    if "/" in text and (found := _BAR.search(text)):
        return int(found[1])
    if text.startswith("{") and (found := _EPOCH.search(text)):
        return int(float(found[1]) * 1e6)
    return None
