"""One diagnosis from the scanned logs and exit codes of all ranks. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.engines.crash.cascade import FirstFailure, Key, find_first_failure
from holdfast.engines.crash.launcher_reports import (
    CRASHED,
    ENDED_BY_LAUNCHER,
    RankEnd,
    ended_by_itself,
    of_signal,
    only_own_end,
    rank_ends,
    reports_end_of,
    stopped_by_launcher,
)
from holdfast.engines.crash.log import LogLine
from holdfast.engines.crash.rule_matches import RuleMatch, rule_matches
from holdfast.engines.crash.rules import LineFilter, Rule, RuleBook, rule_book
from holdfast.engines.crash.scan import Lines, LogScan, ScannedLog
from holdfast.engines.crash.verdict import CascadeRank, Diagnosis, EvidenceLine, unknown
from holdfast.engines.crash.words.likely import Likely, likely
from holdfast.symptoms import Symptom

_BY_EXIT = {
    -4: "exit_illegal_instruction",
    -6: "exit_aborted",
    -7: "exit_bus_error",
    -8: "exit_floating_point",
    -9: "exit_killed",
    -11: "exit_segfault",
    -15: "exit_terminated",
    -2: "exit_interrupted",
    130: "exit_interrupted",
    126: "exit_not_executable",
    127: "exit_command_not_found",
}

_FROM_OUTSIDE = frozenset({Symptom.INTERRUPTED, Symptom.TERMINATED, Symptom.TIME_LIMIT})
"""Ends that somebody decided, for instance for the numbers that the job printed."""

_CRASHES = frozenset({Symptom.ABORTED, Symptom.SEGFAULT, Symptom.BUS_ERROR})

EVIDENCE_LINES_MAX = 8
TEXT_CHARS_MAX = 400
OVERTAKEN_BY_MAX = 10
_LAUNCHER = "(launcher)"
_CANCELLED = "slurm_cancelled"


def diagnose(
    scans: Sequence[ScannedLog],
    exit_codes: Mapping[int, int] | None = None,
    book: RuleBook | None = None,
    *,
    by_words: bool = False,
) -> Diagnosis:
    """Return the symptom of a job's end. `exit_codes`: by rank, negative for signals. `by_words`: where no rule knows
    the end, it stays unknown, and `likely` is what the words of its last error point to (`words/`)."""
    book = book or rule_book()
    found = _by_rules(scans, exit_codes, book)
    if not by_words or found.symptom is not Symptom.UNKNOWN or (guess := likely(book, scans, exit_codes)) is None:
        return found
    return _by_words(guess, found)


def _by_rules(scans: Sequence[ScannedLog], exit_codes: Mapping[int, int] | None, book: RuleBook) -> Diagnosis:
    codes = {rank: of_signal(code) for rank, code in (exit_codes or {}).items()}
    if codes and not any(codes.values()):
        return unknown("every rank ended with exit code 0: nothing failed")
    ends_by_file = [(scan.file, rank_ends(_all_lines(scan))) for scan in scans]
    ends = [ended for _, all_of_file in ends_by_file for ended in all_of_file]
    stopped = stopped_by_launcher(ends)
    for ended in ends:
        if ended.rank is not None and ended.code is not None:
            codes.setdefault(ended.rank, ENDED_BY_LAUNCHER if ended in stopped else ended.code)
    aborted = {ended.rank for ended in ends if ended.rank is not None and ended.code is None}
    fine = {rank for rank, code in (exit_codes or {}).items() if code == 0}
    found: dict[Key, list[RuleMatch]] = {}
    mixed: set[Key] = set()
    ranks: set[int] = codes.keys() | aborted
    has_raised = set(codes.values()) <= {0, 1, ENDED_BY_LAUNCHER} and 1 in codes.values()
    for scan in scans:
        streams = _attempt(book, scan, has_raised=has_raised)
        ranks |= {rank for rank, local in streams if rank is not None and not local}
        named = {rank for rank, _ in streams if rank is not None}
        for (rank, local), matches in streams.items():
            if rank in fine and not local:
                continue
            matches = [one for one in matches if not any(reports_end_of(line, stopped) for line in one.lines)]
            key: Key = ("" if rank is not None and not local else scan.file, rank, local)
            found.setdefault(key, []).extend(matches)
            if rank is None and (len(named) > 1 or len(ends) > 1):
                mixed.add(key)
    for rank, code in codes.items():
        if name := _BY_EXIT.get(code):
            found.setdefault(("", rank, False), []).append(_by_exit(book, name, rank, ends, scans))
    for ended in ends:
        if ended.rank is not None or ended.code is None or codes:
            continue
        if name := _BY_EXIT.get(of_signal(ended.code)):
            file = next((scan.file for scan in scans if ended.line in _all_lines(scan)), "")
            local = ended.local_rank is not None
            finding = _exit_match(book, name, ended.local_rank, (ended.proof,), file, local=local)
            found.setdefault((file, ended.local_rank, local), []).append(finding)
    _without_answers_of_slurm(found, ends_by_file)
    first = [
        ended
        for ended in ends
        if ended.is_first and ended.rank is not None and ended.code != ENDED_BY_LAUNCHER and _is_alone(ended, ends)
    ]
    if len(aborted) > 1:
        # Paddle names each trainer that failed, in no order of time.
        first = [ended for ended in first if ended.code is not None]
    decided = find_first_failure(
        found,
        mixed=frozenset(mixed),
        observed_first=first[-1].rank if first else None,
        only_own_end=only_own_end(ends),
        ranks=frozenset(ranks),
    )
    bad = next((scan for scan in scans if scan.bad_steps), None)
    if bad is not None and (decided is None or decided.finding.rule.symptom in _FROM_OUTSIDE):
        decided = _with_bad_numbers(book, bad, decided)
    if decided is None or _only_stopped(decided, ends, stopped):
        return _nothing(scans, codes, first[-1].rank if first else only_own_end(ends))
    if decided.rank is None and decided.local_rank is not None:
        decided = msgspec.structs.replace(decided, rank=_global(decided.local_rank, ends))
    return _diagnosis(decided, codes, first)


def diagnose_end(
    *,
    exception_type: str = "",
    message: str = "",
    trace: str = "",
    exit_code: int | None = None,
    signal: int | None = None,
    log_tail: str = "",
    rank: int | None = None,
    book: RuleBook | None = None,
) -> Diagnosis:
    """Return the symptom of one rank's end, as observed from outside."""
    code = -signal if signal else exit_code
    scan = scan_end(exception_type, message, trace, log_tail, rank, book)
    return diagnose([scan], {} if code is None or rank is None else {rank: code}, book)


def scan_end(
    exception_type: str, message: str, trace: str, log_tail: str, rank: int | None, book: RuleBook | None = None
) -> ScannedLog:
    """Return what one rank's end left, as a log: the end of its output, then its exception if it raised one."""
    return _scan_end(exception_type, message, trace, log_tail, rank, (book or rule_book()).line_filter)


# The ends of a generation are judged together at each further one of them.
@functools.lru_cache(maxsize=64)
def _scan_end(
    exception_type: str, message: str, trace: str, log_tail: str, rank: int | None, line_filter: LineFilter
) -> ScannedLog:
    scan = LogScan("log", line_filter, rank)
    if log_tail:
        scan.feed(log_tail.encode(errors="replace") + b"\n")
    text = trace.rstrip("\n")
    if exception_type:
        # The record is the exception itself; the log may repeat it, or have lost it in later output.
        name = exception_type.rsplit(".", 1)[-1]
        last = f"{name}: {message}"
        body = text if text.startswith("Traceback") else ""
        scan.feed(f"{body or 'Traceback (most recent call last):'}\n{'' if body else last}\n".encode(errors="replace"))
        if body:
            scan.feed(
                f"The above exception was the direct cause of the following exception:\n{last}\n".encode(
                    errors="replace"
                )
            )
    return scan.end()


def scan_lines(file: str, lines: Iterable[str], book: RuleBook | None = None) -> ScannedLog:
    """Return lines of a log that names no rank, such as a node's kernel log."""
    scan = LogScan(file, (book or rule_book()).line_filter)
    scan.feed("".join(f"{line}\n" for line in lines).encode(errors="replace"))
    return scan.end()


def _with_bad_numbers(book: RuleBook, scan: ScannedLog, ended: FirstFailure | None) -> FirstFailure:
    """Explain the end by the last steps. The rank that prints them is not the one that computed wrongly."""
    finding = _exit_match(book, "nan_steps", None, scan.bad_steps[:1], scan.file)
    return FirstFailure(
        finding=finding,
        proof=(ended.finding,) if ended else (),
        rank=None,
        local_rank=None,
        confidence=finding.rule.confidence,
        others=ended.others if ended else (),
        why=f"the last {len(scan.bad_steps)} steps have numbers that are not finite",
    )


def _only_stopped(decided: FirstFailure, ends: Sequence[RankEnd], stopped: Sequence[RankEnd]) -> bool:
    """Return True if ranks are only known to be stopped, after another one that the launcher saw end by itself."""
    if decided.finding.hand != "cascade" or decided.finding.rule.symptom is not Symptom.TERMINATED:
        return False
    if stopped or any(ended.is_first and ended.code != ENDED_BY_LAUNCHER for ended in ends):
        return True
    # srun and mpirun report in the order of time, without naming a first.
    failed = min((ended.line.number for ended in ends if ended_by_itself(ended.code)), default=None)
    asked = [ended.line for ended in ends if ended.code == ENDED_BY_LAUNCHER]
    return failed is not None and decided.finding.number > failed and decided.finding.lines[0] in asked


def _without_answers_of_slurm(
    found: dict[Key, list[RuleMatch]], ends_by_file: Sequence[tuple[str, list[RankEnd]]]
) -> None:
    """Drop cancellations by Slurm that follow a failed task or a crash: Slurm itself cancels the rest of the step."""
    failed = {
        file: min(lines)
        for file, ends in ends_by_file
        if (lines := [one.line.number for one in ends if ended_by_itself(one.code) or one.code in (None, *CRASHED)])
    }
    for one in (one for matches in found.values() for one in matches if one.rule.symptom in _CRASHES and one.lines):
        failed[one.file] = min(one.number, failed.get(one.file, one.number))
    for matches in found.values():
        matches[:] = [
            one for one in matches if one.rule.name != _CANCELLED or one.number < failed.get(one.file, one.number + 1)
        ]


def _all_lines(scan: ScannedLog) -> list[LogLine]:
    return [line for attempt in (*scan.attempts, scan.overtaken) for lines in attempt.values() for line in lines]


def _is_alone(first: RankEnd, ends: Sequence[RankEnd]) -> bool:
    """Return True if no other rank ended in that second; torchrun measures whole seconds and picks the lowest rank."""
    return all(
        ended.rank == first.rank or ended.at is None or ended.at != first.at or ended.code == ENDED_BY_LAUNCHER
        for ended in ends
    )


def _global(local_rank: int, ends: Sequence[RankEnd]) -> int | None:
    """Return the rank that a launcher's report gives to this local rank; None if there are several."""
    ranks = {ended.rank for ended in ends if ended.rank is not None and ended.local_rank == local_rank}
    return ranks.pop() if len(ranks) == 1 else None


def _attempt(
    book: RuleBook, scan: ScannedLog, *, has_raised: bool = False
) -> dict[tuple[int | None, bool], list[RuleMatch]]:
    """Return the matches of a log's last attempt that ended for its own reasons, else of the whole log. Steps can
    follow an error only because they were written late. The error counts if the rank is known to have raised
    (`has_raised`), or if only a few steps follow before partners were lost."""
    attempts: list[dict[tuple[int | None, bool], list[RuleMatch]]] = []
    for attempt in scan.attempts:
        streams = _matches(book, scan, attempt)
        if any(one.hand in ("first", "vague") for found in streams.values() for one in found):
            return streams
        attempts.append(streams)
    lost_partner = any(one.hand == "cascade" for found in attempts[0].values() for one in found)
    if scan.overtaken and (
        (has_raised and not lost_partner) or (lost_partner and scan.overtaken_by <= OVERTAKEN_BY_MAX)
    ):
        overtaken = _matches(book, scan, scan.overtaken)
        return {key: overtaken.get(key, []) + attempts[0].get(key, []) for key in overtaken | attempts[0]}
    return attempts[0] if attempts else {}


def _matches(book: RuleBook, scan: ScannedLog, streams: Lines) -> dict[tuple[int | None, bool], list[RuleMatch]]:
    """Return the matches in these streams of the scan, which remembers them: they must not be changed."""
    key = (book, id(streams))
    if key not in scan.matches:
        scan.matches[key] = {
            of: rule_matches(book, lines, file=scan.file, rank=of[0], local=of[1]) for of, lines in streams.items()
        }
    return scan.matches[key]


def _by_exit(book: RuleBook, name: str, rank: int, ends: Sequence[RankEnd], scans: Sequence[ScannedLog]) -> RuleMatch:
    by = next((ended for ended in ends if ended.rank == rank), None)
    file = next((scan.file for scan in scans if by is not None and by.line in _all_lines(scan)), "")
    return _exit_match(book, name, rank, (by.proof,) if by else (), file)


def _exit_match(
    book: RuleBook, name: str, rank: int | None, lines: tuple[LogLine, ...], file: str, *, local: bool = False
) -> RuleMatch:
    met = book.named(name)
    return RuleMatch(rule=met.rule, place=met.place, rank=rank, local=local, file=file, lines=lines)


def _diagnosis(decided: FirstFailure, codes: Mapping[int, int], first: Sequence[RankEnd]) -> Diagnosis:
    rule = decided.finding.rule
    evidence = [*_evidence(decided.finding), *(one for finding in decided.proof for one in _evidence(finding))]
    if decided.rank is not None and (code := codes.get(decided.rank)):
        evidence.append(
            EvidenceLine(rank=decided.rank, file="(exit code)", line=0, text=_code_in_words(decided.rank, code))
        )
    if decided.rank is not None and first and first[-1].rank == decided.rank:
        line = first[-1].line
        evidence.append(EvidenceLine(rank=decided.rank, file=_LAUNCHER, line=line.number, text=_short(line.text)))
    others = tuple(
        CascadeRank(rank=one.rank, rule=one.rule.name, text=_short(one.lines[0].text) if one.lines else "")
        for one in decided.others
        if one.rank is not None
    )
    if rule.symptom.value == "unknown":
        return unknown(
            f"{_count(others)} only report another rank's end, and none of them ended for its own reason",
            tuple(dict.fromkeys(evidence))[:EVIDENCE_LINES_MAX],
            others,
        )
    where = "" if decided.rank is None else f"rank {decided.rank}: "
    if decided.rank is None and decided.local_rank is not None:
        where = f"local rank {decided.local_rank} of a node: "
    proof = _short(decided.finding.lines[0].text.strip()) if decided.finding.lines else ""
    if not proof:
        proof = next((one.text for one in evidence), rule.symptom.value)
    return Diagnosis(
        symptom=rule.symptom,
        table_one=rule.symptom.row or None,
        root=rule.root,
        first_rank=decided.rank,
        first_local_rank=decided.local_rank if decided.rank is None else None,
        confidence=round(decided.confidence, 2),
        rule=rule.name,
        summary=where + proof + (f" ({decided.why})" if decided.why else ""),
        advice=rule.advice,
        evidence=tuple(dict.fromkeys(evidence))[:EVIDENCE_LINES_MAX],
        others=others,
    )


def _by_words(guess: Likely, found: Diagnosis) -> Diagnosis:
    topic, line = guess.topic, guess.line
    proof = EvidenceLine(rank=line.rank, file=guess.file, line=line.number, text=_short(line.text))
    return msgspec.structs.replace(
        found,
        likely=topic.symptom,
        summary=f"{_short(line.text.strip())} (no rule knows this line; its words point to {topic.symptom})",
        advice=topic.advice,
        evidence=(proof, *(one for one in found.evidence if one != proof))[:EVIDENCE_LINES_MAX],
    )


def _nothing(scans: Sequence[ScannedLog], codes: Mapping[int, int], first: int | None) -> Diagnosis:
    last = [
        EvidenceLine(rank=line.rank, file=scan.file, line=line.number, text=_short(line.text))
        for scan in scans
        for line in scan.tail
    ]
    ended = [
        EvidenceLine(rank=rank, file="(exit code)", line=0, text=_code_in_words(rank, code))
        for rank, code in codes.items()
        if code
    ]
    evidence = (*ended, *last)[:EVIDENCE_LINES_MAX]
    return msgspec.structs.replace(unknown("no rule matches this end", evidence), first_rank=first)


def _evidence(finding: RuleMatch) -> list[EvidenceLine]:
    return [
        EvidenceLine(rank=finding.rank, file=finding.file, line=line.number, text=_short(line.text))
        for line in finding.lines
    ]


def _short(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else text[:TEXT_CHARS_MAX] + "..."


def _count(others: Sequence[CascadeRank]) -> str:
    return f"{len(others)} ranks" if len(others) > 1 else "these logs"


def _code_in_words(rank: int, code: int) -> str:
    return f"rank {rank} was ended by signal {-code}" if code < 0 else f"rank {rank} ended with exit code {code}"


def rule_of_exception(type_: str, message: str, book: RuleBook | None = None) -> Rule | None:
    """Return the rule for an exception by its type and message; each line of the message is considered."""
    first, *rest = message.splitlines() or [""]
    met = (book or rule_book()).of_exception(type_, first)
    for line in rest:
        match = (book or rule_book()).of_line(line.strip(), "")
        if match and (met is None or met.rule.generic or met.rule.hand == "vague") and match.rule.hand != "hint":
            met = match if met is None or met.rule.generic or match.place < met.place else met
    return met.rule if met else None


def hands_of_log(text: str, book: RuleBook | None = None) -> frozenset[str]:
    """Return the hands (see `rules.py`) of a log's lines."""
    scan = LogScan("log", (book or rule_book()).line_filter)
    scan.feed(text.encode(errors="replace") + b"\n")
    return frozenset(one.hand for found in _attempt(book or rule_book(), scan.end()).values() for one in found)
