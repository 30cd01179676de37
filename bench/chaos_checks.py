"""The checkers of `chaos.py`. They judge by files, SQL, a subscriber and /proc, and import nothing of the product."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import nats

SUBJECT = "holdfast.v1.>"
EVENTS_OF = tuple(f"holdfast.v1.{kind}." for kind in ("evidence", "finding", "decision", "action", "metric"))
SHOWN = 5
"""Ids that a violation names."""
QUERY_S = 10.0
RECONNECT_S = 0.2

EVENTS = """
select id::text, class as kind, type, job, generation, node, cause::text, incident::text,
       coalesce((body->>'adopted')::boolean, false) as adopted
from historian.events
"""


SPACED = """
with spaced as (
    select (body->>'every')::int as every, (body->>'step')::bigint as step,
           lead((body->>'step')::bigint) over (partition by generation order by (body->>'step')::bigint, at) as next
    from historian.events where type = 'keeping_spaced' and job = $1 and generation >= $2
)
select coalesce(max(every), 1) as every from spaced where step <= $4 and coalesce(next, $4 + 1) > $3
"""
"""Of steps $3 to $4 that were trained in generation $2 or later."""


class Event(NamedTuple):
    """A row of the record."""

    id: str
    kind: str
    type: str
    job: str | None = None
    generation: int | None = None
    node: str | None = None
    cause: str | None = None
    incident: str | None = None
    adopted: bool = False


def judge_events(sent: Iterable[str], requests: Collection[str], record: Sequence[Event]) -> list[str]:
    """Return what is wrong with the record. `sent`: ids of events that were on the bus, or are in an outbox."""
    times = Counter(event.id for event in record)
    found = _named("events are recorded twice", (id for id, count in times.items() if count > 1))
    found += _named("events are missing from the record", (id for id in sent if id not in times))
    decisions = [event for event in record if event.kind == "decision"]
    found += _named("decisions have no cause", (f"{it.type} {it.id}" for it in decisions if it.cause is None))
    found += _named(
        "decisions have a cause that is not in the record",
        (
            f"{it.type} {it.id} (cause {it.cause})"
            for it in decisions
            if it.cause and it.cause not in times and it.cause not in requests
        ),
    )
    return found + _judge_repetition(record)


def _judge_repetition(record: Sequence[Event]) -> list[str]:
    opened = Counter(event.incident for event in record if event.type == "incident_opened")
    closed = Counter(event.incident for event in record if event.type == "incident_closed")
    generations = Counter((it.job, it.generation) for it in record if it.type == "generation_started")
    starts = Counter((it.job, it.generation, it.node) for it in record if it.type == "ranks_started" and not it.adopted)
    found = _named("incidents were opened twice", (it for it, count in opened.items() if count > 1))
    found += _named("incidents were closed twice", (it for it, count in closed.items() if count > 1))
    found += _named("incidents were never closed", opened.keys() - closed.keys())
    found += _named("incidents were closed that nothing opened", closed.keys() - opened.keys())
    found += _named("generations were started twice", (it for it, count in generations.items() if count > 1))
    return found + _named("generations ran twice on a node", (it for it, count in starts.items() if count > 1))


def judge_losses(trained: Sequence[Mapping[int, set[str]]], expected: Sequence[Mapping[int, set[str]]]) -> list[str]:
    """Compare every loss of every rank with an undisturbed training; each mapping is a rank's, from step to losses."""
    found = []
    for rank, (here, there) in enumerate(zip(trained, expected, strict=True)):
        found += _named(f"steps of rank {rank} were never trained", sorted(there.keys() - here.keys()))
        different = [step for step in sorted(there.keys() & here.keys()) if here[step] != there[step]]
        found += _named(
            f"steps of rank {rank} have another loss than undisturbed",
            (f"{step} ({', '.join(sorted(here[step]))} for {', '.join(there[step])})" for step in different),
        )
    return found


def _named(what: str, which: Iterable[object]) -> list[str]:
    names = [str(it) for it in which]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"{len(names)} {what}: {', '.join(names[:SHOWN])}{more}"] if names else []


class Restore(NamedTuple):
    """A rank began again from a step. `lost_steps`: steps that all ranks had completed and that are trained again.

    `lost_s`: the age of the first of them when training had ended.
    """

    at: float
    rank: int
    step: int
    lost_steps: int
    lost_s: float


class Training:
    """What the ranks noted (`workload.py`), read from their files as they grow.

    A step is completed when every rank has noted it, in whichever generation.
    """

    def __init__(self, directory: Path, ranks: int) -> None:
        self._paths = [directory / f"rank-{rank}" for rank in range(ranks)]
        self._offsets = [0] * ranks
        self._reached = [0] * ranks
        self.losses: list[dict[int, set[str]]] = [{} for _ in range(ranks)]
        self.pids = [0] * ranks
        self.ended = [False] * ranks
        self.restores: list[Restore] = []
        self._completed_at: list[float] = []
        self._completed: list[int] = []

    @property
    def step(self) -> int:
        """The newest completed step."""
        return self._completed[-1] if self._completed else 0

    def read(self) -> None:
        """Read what was noted since the last call; an unfinished last line waits for its end."""
        notes = [note for rank in range(len(self._paths)) for note in self._new_notes(rank)]
        for at, rank, pid, what, step, value in sorted(notes):
            if what == "began":
                self.pids[rank] = pid
            elif what == "restored":
                self._restored(at, rank, step)
            elif what == "done":
                self.ended[rank] = True
            elif what == "step":
                self.losses[rank].setdefault(step, set()).add(value)
                self._reached[rank] = max(self._reached[rank], step)
                if min(self._reached) > self.step:
                    self._completed_at.append(at)
                    self._completed.append(min(self._reached))

    def _new_notes(self, rank: int) -> list[tuple[float, int, int, str, int, str]]:
        try:
            with self._paths[rank].open("rb") as file:
                file.seek(self._offsets[rank])
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[rank] += len(whole)
        lines = (line.split(" ") for line in whole.decode().splitlines())
        return [(float(at), rank, int(pid), what, int(step), value) for at, pid, what, step, value in lines]

    def _restored(self, at: float, rank: int, step: int) -> None:
        lost = max(0, self.step - step)
        first = self._completed_at[bisect_right(self._completed, step)] if lost else 0.0
        self.restores.append(Restore(at, rank, step, lost, self._completed_at[-1] - first if lost else 0.0))

    def pause_s(self, since: float, until: float) -> float:
        """Return the longest time without a completed step that was not completed before."""
        first, last = bisect_left(self._completed_at, since), bisect_right(self._completed_at, until)
        moments = self._completed_at[max(0, first - 1) : last]
        return max((after - before for before, after in pairwise(moments)), default=0.0)


class Subscriber:
    """A client of the bus, in a thread of its own: it notes the id of every event that it receives."""

    def __init__(self, find_url: Callable[[], str]) -> None:
        self._find_url = find_url
        self._received: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="subscriber", daemon=True)
        self._thread.start()

    def received(self) -> dict[str, str]:
        """Return the subjects of the events received so far, by id."""
        return {id: subject for id, subject in dict(self._received).items() if subject.startswith(EVENTS_OF)}

    def requests(self) -> set[str]:
        """Return the ids of the requests received so far: decisions name them as their cause."""
        return {id for id, subject in dict(self._received).items() if not subject.startswith(EVENTS_OF)}

    def close(self) -> None:
        self._ended.set()
        self._thread.join(QUERY_S)

    async def _run(self) -> None:
        while not self._ended.is_set():
            try:
                client = await nats.connect(
                    self._find_url(), allow_reconnect=False, connect_timeout=2, error_cb=_silent
                )
            except (OSError, nats.errors.Error):
                await asyncio.sleep(RECONNECT_S)
                continue
            await client.subscribe(SUBJECT, cb=self._take, pending_msgs_limit=-1, pending_bytes_limit=-1)
            while client.is_connected and not self._ended.is_set():  # noqa: ASYNC110 - another thread ends it
                await asyncio.sleep(RECONNECT_S)
            await client.close()

    async def _take(self, message: Any) -> None:
        body = json.loads(message.data)
        if "id" in body:
            self._received[body["id"]] = message.subject


async def _silent(_: Exception) -> None:
    """A bus that is being killed is connected to again."""


class Database:
    """The cluster's database, read; a database that is away is connected to again by the next query."""

    def __init__(self, find_url: Callable[[], str]) -> None:
        self._find_url = find_url
        self._runner = asyncio.Runner()
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    def rows(self, text: str, *values: object) -> list[dict[str, Any]]:
        """Raises OSError, TimeoutError, asyncpg.PostgresError or asyncpg.InterfaceError while it is away."""
        return self._runner.run(self._fetch(text, values))

    async def _fetch(self, text: str, values: Sequence[object]) -> list[dict[str, Any]]:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self._find_url(), timeout=QUERY_S)
        try:
            return [dict(row) for row in await self._connection.fetch(text, *values, timeout=QUERY_S)]
        except BaseException:
            self._connection.terminate()
            self._connection = None
            raise

    def record(self) -> list[Event]:
        return [Event(**row) for row in self.rows(EVENTS)]

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Return which of these events are not recorded."""
        found = self.rows("select id::text from historian.events where id = any($1::text[]::uuid[])", list(ids))
        return sorted(set(ids) - {row["id"] for row in found})

    def outboxes(self) -> tuple[list[str], int]:
        """Return the ids of the events in all outboxes, and the number of messages not published yet."""
        ids: list[str] = []
        waiting = 0
        for row in self.rows("select table_schema as name from information_schema.tables where table_name = 'outbox'"):
            said = self.rows(
                f"select headers->>'ce-id' as id, subject, published_at is null as waits from {row['name']}.outbox"
            )
            ids += [it["id"] for it in said if it["id"] and it["subject"].startswith(SUBJECT.rstrip(">"))]
            waiting += sum(it["waits"] for it in said)
        return ids, waiting

    def open_incidents(self) -> list[str]:
        rows = self.rows("select key, job from controller.incidents where closed_at is null")
        return [f"{row['key']} of {row['job']}" for row in rows]

    def generation(self, job: str) -> int:
        """Return the newest one."""
        query = "select coalesce(max(generation), 0) as newest from historian.generations where job = $1"
        return int(self.rows(query, job)[0]["newest"])

    def kept_apart(self, job: str, generation: int, first: int, last: int) -> int:
        """Return the largest distance of kept steps that was told for these steps; 1: every step was to be kept."""
        return int(self.rows(SPACED, job, generation, first, last)[0]["every"])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
        self._runner.close()


def shared_memory(root: Path) -> set[str]:
    """Return the files in /dev/shm that processes of this cluster use now."""
    found = {str(link.resolve()) for link in root.glob("nodes/*/ledgers") if link.is_symlink()}
    for pid in processes(root):
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found |= {line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line and "(deleted)" not in line}
    return {path for path in found if path.startswith("/dev/shm/")}


def processes(root: Path) -> list[int]:
    """Return the processes that name this directory in their command line or environment, zombies excluded."""
    wanted, found = os.fsencode(root), []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            texts = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
            if pid != os.getpid() and any(wanted in text for text in texts):
                found.append(pid)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def leftovers(root: Path, shared: Iterable[str], bridge: str | None) -> list[str]:
    """Return what is left of a cluster that has stopped."""
    left = [f"process {pid}: {_command(pid)}" for pid in processes(root)]
    left += [f"shared memory {path}" for path in sorted(shared) if os.path.exists(path)]
    left += [
        f"socket {line.split()[-1]}" for line in Path("/proc/net/unix").read_text().splitlines() if str(root) in line
    ]
    if bridge:
        left += [f"link {link.name}" for link in sorted(Path("/sys/class/net").glob(f"{bridge}*"))]
        left += [f"network namespace {it.name}" for it in sorted(Path("/run/netns").glob(f"{bridge}*"))]
    return _named("things were left after `holdfast down`", left)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except (FileNotFoundError, ProcessLookupError):
        return "ended meanwhile"
