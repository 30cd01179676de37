"""Rules that find what is wrong with a cluster, why, and what to do, from what was read of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.cli.doctor import job_findings
from holdfast.cli.doctor.facts import SERVICES, Facts
from holdfast.cli.doctor.finding import Finding, Severity, warning
from holdfast.subjects import FLOODS

OUTBOX_S_MAX = 15.0
"""A relay publishes at once, and tries again within half a second; its slowest poll is 5 s."""
IDLE_S_MAX = 30.0
"""A consumer with messages that acknowledges none for this long is stuck."""
WAITING_MAX = 20_000
"""The historian records some 10,000 events a second: more than this is a backlog."""
CLOCKS_APART_S_MAX = 5.0
"""Incidents are timed by the clocks of nodes. A heartbeat may be under way for a moment on a busy machine."""
DEAD_LETTER_S_MAX = 24 * 3600.0
NOT_READY_S_MAX = 300.0
"""A node checks itself and imports torch before it is a standby."""
RESTARTS_MAX = 5
CERTIFICATE_S_MIN = 30 * 86400.0
RECOVERING = ("in recovery mode", "starting up", "not yet accepting connections")
"""Answers of Postgres while it recovers from a crash, and after a recovery that failed."""
STORAGE_ERRORS = ("Input/output error", "No space left on device", "Read-only file system", "Disk quota exceeded")
FREE_BYTES_MIN = 1 << 30
FREE_SHARE_MIN = 0.05
FREE_BYTES_PLENTY = 20 << 30

PROCESS_OF_SERVICE = {"ckpt-coordinator": "ckpt"}
"""Names of processes that differ from those of their services."""


def _process_of(service: str) -> str:
    return PROCESS_OF_SERVICE.get(service, service)


def findings_of(facts: Facts) -> list[Finding]:
    """Return all findings, errors first."""
    found = [finding for rule in RULES for finding in rule(facts)]
    return sorted(found, key=lambda finding: finding.severity is not Severity.ERROR)


def _sources(facts: Facts) -> Iterator[Finding]:
    if facts.supervisor_problem:
        yield Finding(
            kind="supervisor",
            about="cluster",
            what=facts.supervisor_problem,
            cure="start it with `holdfast up`; `holdfast logs supervisor` shows why it ended",
        )
    if facts.database_problem:
        yield Finding(
            kind="database",
            about="Postgres",
            what=f"{facts.database_problem}. Jobs go on training; no service decides until it is back",
            cure=_cure_of_database(facts.database_problem),
        )
    if facts.bus_problem:
        yield Finding(
            kind="bus",
            about="NATS",
            what=f"{facts.bus_problem}. Jobs go on training; a failure is not recovered until it is back",
            cure="start it, or correct its address; `holdfast logs nats` shows why it ended",
        )


def _cure_of_database(problem: str) -> str:
    if any(state in problem for state in RECOVERING):
        return (
            "it recovers its files after a crash: wait. If none of its processes is named `startup`, the recovery has "
            "failed, and only a restart begins it again (`holdfast up` restarts it); `holdfast logs postgres` names "
            "the file and the error"
        )
    return "start it, or correct its address; `holdfast logs postgres` shows why it ended"


def _access(facts: Facts) -> Iterator[Finding]:
    if names := ", ".join(facts.database.open_databases if facts.database else ()):
        yield warning(
            kind="access",
            about="Postgres",
            what=f"the roles of Holdfast may also connect to {names}, where nothing limits the reader",
            cure=f"as administrator `revoke connect on database {names} from public`; roles that need it get a grant",
        )


def _processes(facts: Facts) -> Iterator[Finding]:
    for process in facts.processes:
        if process.state == "revoked":
            yield warning(
                kind="process",
                about=process.name,
                what="it is revoked, and let in no more",
                cure=f"`holdfast credentials restore {process.name}` once its machine can be trusted again",
            )
        elif process.state != "ready":
            last = f"; its last end: {process.last_exit}" if process.last_exit else ""
            cure = f"`holdfast nodes poweron {process.name}`" if process.state == "off" else "it is started again"
            if any(error in last for error in STORAGE_ERRORS):
                cure = f"repair the disk of its directory, or make room: {cure} until it can read and write there"
            yield Finding(
                kind="process",
                about=process.name,
                what=f"it is {process.state}{last}",
                cure=f"{cure}; `holdfast logs {process.name}` shows what it reported",
            )
        elif process.restarts >= RESTARTS_MAX and (process.ready_s or 0.0) < NOT_READY_S_MAX:
            yield warning(
                kind="process",
                about=process.name,
                what=f"it was started again {process.restarts} times, last: {process.last_exit}",
                cure=f"`holdfast logs {process.name}` shows why it ends",
            )


def _services(facts: Facts) -> Iterator[Finding]:
    if facts.bus is None:
        return
    down = {process.name for process in facts.processes if process.state != "ready"}
    for service in SERVICES:
        name = _process_of(service)
        if service not in facts.bus.answering and name not in down:
            yield Finding(
                kind="service",
                about=service,
                what="it does not answer",
                cure=f"start it; `holdfast logs {name}` shows what it waits for or why it ended",
            )


def _nodes(facts: Facts) -> Iterator[Finding]:
    off = {process.name for process in facts.processes if process.state != "ready"}
    for node in facts.database.nodes if facts.database else ():
        if node.node in off:
            continue
        cure = f"start the agent of {node.node}, or repair the machine; `holdfast nodes` lists all"
        if node.state == "lost":
            yield Finding(kind="node", about=node.node, what=f"it is lost: {node.reason}", cure=cure)
        elif facts.bus is not None and f"agent-{node.node}" not in facts.bus.answering:
            what = f"its agent is not connected, and its state is {node.state}"
            yield Finding(kind="node", about=node.node, what=what, cure=cure)
        elif node.state in ("registered", "checked") and node.unchanged_s > NOT_READY_S_MAX:
            yield warning(
                kind="node",
                about=node.node,
                what=f"it is {node.state} and no standby for {node.unchanged_s:.0f} s: {node.reason or 'no reason'}",
                cure=f"`holdfast inspect` on {node.node} shows which check fails",
            )


def _outboxes(facts: Facts) -> Iterator[Finding]:
    for outbox in facts.database.outboxes if facts.database else ():
        if outbox.oldest_s > OUTBOX_S_MAX:
            if facts.bus is None:
                cause = "the bus does not answer"
            elif outbox.service not in facts.bus.answering:
                cause = "the service that publishes them does not answer"
            else:
                cause = "the bus answers but takes none of them: its disk or a stream may be full"
            yield Finding(
                kind="outbox",
                about=outbox.service,
                what=f"{outbox.waiting} messages wait for the bus, the oldest for {outbox.oldest_s:.0f} s: {cause}",
                cure=f"none is lost; `holdfast logs {_process_of(outbox.service)}` shows "
                "the refusal, `holdfast logs nats` the cause",
            )


def _refused_writes(facts: Facts) -> Iterator[Finding]:
    if facts.bus is not None and facts.bus.write_error:
        yield Finding(
            kind="writes",
            about="NATS",
            what=f"the bus refuses writes: {facts.bus.write_error}",
            cure="make room on its disk, then restart nats-server (`holdfast up` and the health check of compose do): "
            "it keeps a write error until then",
        )


def _streams(facts: Facts) -> Iterator[Finding]:
    if facts.bus is None:
        return
    again = "restart the services, which create streams and send orders again; see `holdfast jobs` for jobs that wait"
    for name in facts.bus.missing_streams:
        yield Finding(kind="stream", about=name, what="the bus has no such stream", cure=again)
    last = {stream.name: stream.last_sequence for stream in facts.bus.streams}
    for consumer in facts.bus.consumers:
        if consumer.acknowledged > last.get(consumer.stream, consumer.acknowledged):
            yield Finding(
                kind="stream",
                about=consumer.stream,
                what=f"it went back: its last message is {last[consumer.stream]}, and {consumer.service} has handled "
                f"{consumer.acknowledged}. An older data directory, or a wiped one",
                cure=again,
            )
    for message in facts.bus.lost_messages:
        yield Finding(
            kind="stream",
            about=message.stream,
            what=f"it lost message {message.sequence}, which the {message.service} published: it was wiped, or set "
            "back to an older data directory",
            cure="it is published again within a minute; see why nats-server lost its directory, or its disk",
        )


def _lost_before(facts: Facts) -> Iterator[Finding]:
    for loss in facts.database.went_back if facts.database else ():
        yield warning(
            kind="stream",
            about=loss.stream,
            what=f"it went back {loss.ago_s:.0f} s ago; {loss.publishers} publishers published again what it lost",
            cure="see why nats-server lost messages: its directory or its disk. This finding goes away after a day",
        )


def _consumers(facts: Facts) -> Iterator[Finding]:
    for consumer in facts.bus.consumers if facts.bus else ():
        is_stuck = consumer.waiting > 0 and not consumer.has_moved and consumer.idle_s > IDLE_S_MAX
        if is_stuck or consumer.waiting > WAITING_MAX:
            since = f", and none was handled for {consumer.idle_s:.0f} s" if is_stuck else ""
            yield Finding(
                kind="consumer",
                about=consumer.service,
                what=f"{consumer.waiting} messages of {consumer.stream} wait for it{since}",
                cure=f"`holdfast logs {_process_of(consumer.service)}` shows what holds "
                "it up: Postgres, a message that it cannot handle, or a machine that is too slow",
            )


def _dead_letters(facts: Facts) -> Iterator[Finding]:
    letters = facts.bus.dead_letters if facts.bus else None
    if letters is not None and letters.newest_s <= DEAD_LETTER_S_MAX and letters.consumer != FLOODS:
        yield warning(
            kind="dead_letters",
            about=letters.consumer,
            what=f"{letters.count} messages could not be handled; the newest, {letters.newest_s:.0f} s ago, from "
            f"{letters.subject}: {letters.error}",
            cure='`holdfast sql "select * from historian.dead_letters order by at desc"` lists them; a program of '
            "another release, or a foreign one, sends them. This finding goes away after a day",
        )


def _floods(facts: Facts) -> Iterator[Finding]:
    flood = facts.bus.flood if facts.bus else None
    if flood is not None and flood.newest_s <= DEAD_LETTER_S_MAX:
        node = flood.subject.rpartition("/")[2]
        yield Finding(
            kind="flood",
            severity=Severity.ERROR,
            about=node,
            what=f"{flood.error}, {flood.newest_s:.0f} s ago",
            cure=f"`holdfast logs {node}` shows whether its agent repeats something. If not, another program has its "
            f"password: `holdfast credentials revoke {node}` cuts it off. This finding goes away after a day",
        )


def _foreign_events(facts: Facts) -> Iterator[Finding]:
    for foreign in facts.database.foreign if facts.database else ():
        yield Finding(
            kind="foreign_events",
            severity=Severity.ERROR,
            about=foreign.node,
            what=f"it has published {foreign.count} events within a day about {foreign.job}, a job that it does not "
            f"belong to (such as {foreign.type}): they are ignored",
            cure='`holdfast sql "select * from historian.foreign_events"` shows them. An agent publishes none: another '
            f"program has its password, and `holdfast credentials revoke {foreign.node}` cuts it off. This finding "
            "goes away after a day",
        )


def _clocks(facts: Facts) -> Iterator[Finding]:
    """Compare all clocks with that of the database, or of this machine if that is away."""
    reference, base_s = ("this machine", 0.0)
    ahead_s: dict[str, float] = {}
    if facts.database is not None:
        reference, base_s = ("Postgres", facts.database.ahead_s)
        ahead_s["this machine"] = 0.0
    if facts.bus is not None:
        ahead_s |= {"NATS": facts.bus.ahead_s} | facts.bus.nodes_ahead_s
    for name, ahead in ahead_s.items():
        apart_s = ahead - base_s
        if abs(apart_s) > CLOCKS_APART_S_MAX:
            yield warning(
                kind="clock",
                about=name,
                what=f"its clock is {abs(apart_s):.1f} s {'ahead of' if apart_s > 0 else 'behind'} that of {reference}:"
                " times in the record are wrong by that",
                cure="synchronise it by NTP or PTP: `chronyc tracking`, `timedatectl`",
            )


def _disks(facts: Facts) -> Iterator[Finding]:
    for path in facts.in_memory:
        yield warning(
            kind="disk",
            about=path,
            what="it lies in memory (tmpfs): what NATS, Postgres and the agents know there ends with this machine",
            cure="if that is not meant so, `holdfast up --dir` a directory on a disk",
        )
    for disk in facts.disks:
        if disk.free_bytes is None:
            cure = "look at its mount: a network file system may be away; `dmesg` shows errors of a disk"
            yield Finding(kind="disk", about=disk.path, what="its file system does not answer", cure=cure)
            continue
        is_low = disk.free_bytes < FREE_SHARE_MIN * disk.total_bytes and disk.free_bytes < FREE_BYTES_PLENTY
        if disk.free_bytes < min(FREE_BYTES_MIN, disk.total_bytes // 2) or is_low:
            yield warning(
                kind="disk",
                about=disk.path,
                what=f"{disk.free_bytes / 1e9:.2f} GB of {disk.total_bytes / 1e9:.1f} GB are free",
                cure="make room: NATS and Postgres stop to take messages and decisions when it is full",
            )


def _certificates(facts: Facts) -> Iterator[Finding]:
    for file in facts.certificates:
        left_s = (file.ends_at - facts.at).total_seconds()
        if left_s < CERTIFICATE_S_MIN:
            yield Finding(
                kind="certificate",
                severity=Severity.WARNING if left_s > 0 else Severity.ERROR,
                about=file.path,
                what=f"this certificate {'ends' if left_s > 0 else 'ended'} at {file.ends_at:%Y-%m-%d %H:%M} UTC, and "
                "perhaps others that were made with it: their connections are refused from then on",
                cure="make new ones: under compose `docker compose run --rm secrets --renew`; an authority that ends "
                "needs --renew-authority",
            )


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _sources,
    _access,
    _processes,
    _refused_writes,
    _streams,
    _lost_before,
    _services,
    _outboxes,
    _consumers,
    _nodes,
    job_findings.lasting_phases,
    job_findings.users_of_ranks,
    job_findings.slow_without_checkpoints,
    job_findings.kept_for_lack_of_others,
    job_findings.shared_faults,
    job_findings.machines_without_copies,
    _dead_letters,
    _floods,
    _foreign_events,
    _disks,
    _certificates,
    _clocks,
)
