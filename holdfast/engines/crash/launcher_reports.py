"""Launchers' reports on their ranks (torchrun, DeepSpeed, Composer, srun, mpirun, PALS, Paddle): exit codes, and
which failed first.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.engines.crash.log import LogLine, dissect, moment

_ENDED = re.compile(r"failed \(exitcode: (-?\d+)\),? (?:local_)?rank: (\d+) \(pid: \d+\)")
_RANK = re.compile(r"^\s*rank\s*: (\d+) \(local_rank: (\d+)\)")
_EXIT = re.compile(r"^\s*exitcode\s*: (-?\d+)(?: \(pid: (\d+)\))?")
_SIGNAL_OF = re.compile(r"^\s*traceback : Signal \d+ \(SIG\w+\) received by PID (\d+)")
_TIME = re.compile(r"^\s*time\s*: ")
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\)")
_COMMAND = re.compile(r"\] exits with return code = (-?\d+)\s*$")
_COMPOSER = re.compile(r"(?:Global r|R)ank (\d+) (?:\(PID \d+\) )?(?:crashed|exited) with (?:exit )?code (-?\d+)")
_SRUN_TASK = re.compile(
    r"srun: error: \S+: tasks? ([\d,-]{1,400}): "
    r"(Segmentation fault|Bus error|Aborted|Killed|Terminated|Illegal instruction|"
    r"Floating point exception|Out Of Memory|Exited with exit code (\d+))"
)
_STEP_ABORTED = re.compile(r"srun: Job step aborted\b")
"""After this line srun itself kills the tasks that are left."""
_OF_SLURM = re.compile(r"\b(?:srun: |slurmstepd: |slurmd\[)")
_STEP = re.compile(r"(?:\bStepId=|\b(?:STEP|[Ss]tep) )(\d{1,12}\.\d{1,12})\b")
_TASKS_MAX = 65536
_SIGNALLED = 128
_SIGNALS_MAX = 64
"""A shell's exit code for a signal is 128 and its number."""
_KILLED = -9
CRASHED = frozenset({-4, -6, -7, -8, -11})
"""Ends by signals that a process caused itself: no launcher sends them."""
_NEVER_OF_PARTNERS = (-4, -7, -8, -9, -11)
"""Signals that end no process because it lost a partner: the launcher's own SIGKILL comes seconds later."""
ENDED_BY_LAUNCHER = -15
"""Exit code of ranks that their launcher ended: after the first failure it sends SIGTERM to the others."""
_MPIRUN = re.compile(r"process rank (\d+) with PID \S+ on\s+node \S+ exited on\s+signal (\d+)")
_FIRST_PROCESS = re.compile(r"\bProcess name: (?:\[\[\d{1,9},\d{1,9}\],)?(\d{1,6})\]?$")
_FIRST_CODE = re.compile(r"\bExit code: {1,8}(\d{1,3})$")
"""Two lines in which mpirun and horovodrun name the first process that failed."""
_FIRST_LINES = 2
_WRAPPED = re.compile(r"noticed that process rank \d+ .{0,200}\bon$")
"""The first line of mpirun's report, which older versions wrap."""
_PALS = re.compile(r"(?:^|[\w.-]{1,60}: )rank (\d{1,6}) (?:died from signal|exited with code) (\d{1,3})\b")
_PADDLE = re.compile(r"^Container rank (\d{1,6}) status failed cmd .{0,4000}\] code (-?\d{1,3}) log ")
_PADDLE_ABORT = re.compile(r"the trainer process with rank=\[([\d, ]{1,4000})\] was aborted")
"""Trainers that failed, without their exit codes."""
_SIGNALS = {
    "Segmentation fault": -11,
    "Bus error": -7,
    "Aborted": -6,
    "Killed": -9,
    "Out Of Memory": -9,
    "Terminated": -15,
    "Illegal instruction": -4,
    "Floating point exception": -8,
}


class RankEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's end as its launcher reports it. `code` is negative for a signal, and None if the launcher does not tell
    it."""

    rank: int | None
    local_rank: int | None
    code: int | None
    line: LogLine
    is_first: bool = False
    at: float | None = None
    pid: int | None = None

    @property
    def proof(self) -> LogLine:
        """The reported line. A line of a table loses its log collector's time, which is when the table was printed."""
        return self.line if self.at is None else self.line._replace(at=None)


def rank_ends(lines: Iterable[LogLine]) -> list[RankEnd]:
    """Return the ends that launchers report in these lines. An srun task that starts torchrun is a node, not a rank."""
    lines = tuple(lines)
    has_agents = any("elastic" in line.text or "torchrun" in line.text for line in lines)
    found: list[RankEnd] = []
    rank: int | None = None
    local: int | None = None
    is_first = False
    at: float | None = None
    begun = ""
    aborted = _after_abort(lines)
    named: dict[str, LogLine] = {}
    for line in lines:
        text = f"{begun} {line.text}" if begun else line.text
        begun = line.text.rstrip() if _WRAPPED.search(line.text.rstrip()) else ""
        if _ROOT_CAUSE.search(text):
            is_first = True
        elif _TIME.match(text):
            at = moment(text)
        elif match := _RANK.match(text):
            rank, local = int(match[1]), int(match[2])
        elif (match := _EXIT.match(text)) and rank is not None:
            pid = int(match[2]) if match[2] else None
            end = RankEnd(rank=rank, local_rank=local, code=int(match[1]), line=line, is_first=is_first, at=at, pid=pid)
            found.append(end)
            rank = None
        elif match := _ENDED.search(text):
            found.append(RankEnd(rank=None, local_rank=int(match[2]), code=int(match[1]), line=line))
        elif (match := _SRUN_TASK.search(text)) and not has_agents:
            code = _SIGNALS.get(match[2], int(match[3] or 0))
            if match[2] == "Killed" and line.number in aborted:
                code = ENDED_BY_LAUNCHER
            found += [RankEnd(rank=task, local_rank=None, code=code, line=line) for task in _tasks(match[1])]
        elif match := _COMMAND.search(text):
            # DeepSpeed names the last rank that it started, whichever failed.
            found.append(RankEnd(rank=None, local_rank=None, code=int(match[1]), line=line))
        elif match := _COMPOSER.search(text):
            found.append(RankEnd(rank=int(match[1]), local_rank=None, code=int(match[2]), line=line))
        elif match := _MPIRUN.search(text):
            found.append(RankEnd(rank=int(match[1]), local_rank=None, code=-int(match[2]), line=line))
        elif match := _PALS.search(text):
            code = int(match[2]) * (-1 if "signal" in match[0] else 1)
            found.append(RankEnd(rank=int(match[1]), local_rank=None, code=code, line=line))
        elif match := _PADDLE.match(text):
            found.append(RankEnd(rank=int(match[1]), local_rank=None, code=int(match[2]), line=line))
        elif match := _PADDLE_ABORT.search(text):
            found += [
                RankEnd(rank=int(rank), local_rank=None, code=None, line=line, is_first=True)
                for rank in match[1].split(",")
            ]
        elif _FIRST_PROCESS.search(text) or _FIRST_CODE.search(text):
            part = "rank" if _FIRST_PROCESS.search(text) else "code"
            named[part] = line
            if len(named) == 2 and not has_agents:
                first = _first_process(named["rank"], named["code"])
                found += first
                # The older line belonged to something else.
                named = {} if first else {part: line}
    return found


def _after_abort(lines: Sequence[LogLine]) -> frozenset[int]:
    """Return the numbers of the lines in which srun reports on a step that it aborted. Any other program's line in
    between may be of a step that the job's script started after it."""
    found: set[int] = set()
    before = 0
    step = ""
    is_aborted = False
    for line in sorted((line for line in lines if _OF_SLURM.search(line.text)), key=lambda line: line.number):
        named = _STEP.search(line.text)
        if line.number > before + 1:
            is_aborted, step = False, ""
        if named is not None:
            is_aborted = is_aborted and step in ("", named[1])
            step = named[1]
        if _STEP_ABORTED.search(line.text):
            is_aborted = True
        elif is_aborted:
            found.add(line.number)
        before = line.number
    return frozenset(found)


def _first_process(rank: LogLine, code: LogLine) -> list[RankEnd]:
    """Return the end of the process that a launcher names as the first in these two lines, if they belong together."""
    of_rank, of_code = _FIRST_PROCESS.search(rank.text), _FIRST_CODE.search(code.text)
    if of_rank is None or of_code is None or abs(rank.number - code.number) > _FIRST_LINES:
        return []
    return [RankEnd(rank=int(of_rank[1]), local_rank=None, code=int(of_code[1]), line=rank, is_first=True)]


def signal_of_first(text: str) -> int | None:
    """Return the signal that ended the process that failed first by torchrun's report in this text; None
    without such a report, or if that process ended by itself.

    torchrun compares whole seconds, and then names the lowest rank, though that one may only have lost its partner.
    """
    ends = rank_ends(dissect(line, at) for at, line in enumerate(text.split("\n"), 1))
    first = next((end for end in reversed(ends) if end.is_first), None)
    if first is None or first.code is None:
        return None
    codes = [first.code]
    if first.code > 0:
        codes = [end.code for end in ends if end.at == first.at and end.code in _NEVER_OF_PARTNERS]
    return next((-code for code in codes if code < 0), None)


def stopped_by_launcher(ends: Sequence[RankEnd]) -> list[RankEnd]:
    """Return the ends that follow another rank's: the launcher sends SIGTERM, and SIGKILL to ranks that ignore it.
    If the launcher does not name the first one, as in a report that is cut, the earliest time shows it."""
    named = [end for end in ends if end.is_first]
    known = named or sorted((end for end in ends if end.at is not None), key=lambda end: end.at or 0.0)[:1]
    first = next((end for end in known if end.code not in (ENDED_BY_LAUNCHER, _KILLED)), None)
    if first is None or first.at is None:
        return []
    return [
        end
        for end in ends
        if end.code in (ENDED_BY_LAUNCHER, _KILLED) and end.rank != first.rank and (end.at or 0.0) > first.at
    ]


def ended_by_itself(code: int | None) -> bool:
    """Return True if a process ended with this code by its own decision, and by no signal (128 and its number)."""
    return code is not None and (0 < code <= _SIGNALLED or code > _SIGNALLED + _SIGNALS_MAX)


def only_own_end(ends: Sequence[RankEnd]) -> int | None:
    """Return the one of several ranks that ended by itself, while its launcher stopped the others; None if it is not
    the only one."""
    ranks = {end.rank for end in ends if end.rank is not None}
    own = {end.rank: end.line.number for end in ends if end.rank is not None and ended_by_itself(end.code)}
    if len(own) != 1 or len(ranks) < 2:
        return None
    ((rank, number),) = own.items()
    others = [end for end in ends if end.rank != rank]
    # A rank that was killed before it may have been the first.
    stopped = [
        end
        for end in others
        if end.code in (0, ENDED_BY_LAUNCHER) or (end.code == _KILLED and end.line.number > number)
    ]
    return rank if len(stopped) == len(others) else None


def reports_end_of(line: LogLine, ends: Sequence[RankEnd]) -> bool:
    """Return True if a line repeats, below one of these ends, the signal that caused it."""
    found = _SIGNAL_OF.match(line.text)
    return found is not None and int(found[1]) in {end.pid for end in ends}


def _tasks(text: str) -> list[int]:
    """Return the tasks in srun's notation: `2,4-5,7`."""
    found: list[int] = []
    for one in text.split(","):
        first, _, last = one.partition("-")
        if first.isdigit():
            found += range(int(first), min(int(last), int(first) + _TASKS_MAX) + 1) if last.isdigit() else [int(first)]
    return found


def of_signal(code: int) -> int:
    """Convert a shell's exit code 128 + signal to the negative signal; other codes are unchanged."""
    return _SIGNALLED - code if _SIGNALLED < code <= _SIGNALLED + _SIGNALS_MAX else code
