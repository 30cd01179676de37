"""The cluster that is attacked, what each position holds, and what the operator sees of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
from cluster import JOBS, Cluster, cluster
from job import Job
from waiting import until

from attempts.nats_wire import Wire
from holdfast.bus.accounts import node_user
from holdfast.embedded.processes.proctree import node_processes
from holdfast.embedded.servers.credentials import Credentials
from holdfast.store.passwords import set_passwords
from holdfast.subjects import ROOT
from tests.open_python import opened

DEEDS = ("intruder_deeds.py", "intruder_system_calls.py")
SECRET = "hf-secret-of-the-job-4f1b7c"
STREAMS = ("EVIDENCE", "DECISIONS", "METRICS", "DEADLETTERS", "KV_desired", "KV_jobs", "OBJ_code")
_OURS = """
select 'role ' || rolname || ' ' || coalesce(rolconfig::text, '') || rolsuper || rolcreaterole as what from pg_roles
union all select 'relation ' || oid::regclass::text from pg_class where relnamespace::regnamespace::text in
    ('public', 'controller', 'analyzer', 'standby', 'ckpt', 'historian') and relname not like 'events\\_%'
union all select 'function ' || oid::regprocedure::text from pg_proc where oid >= 16384
union all select 'trigger ' || tgname from pg_trigger where not tgisinternal
union all select 'schema ' || nspname from pg_namespace where nspname !~ '^pg_(temp|toast)'
union all select 'database ' || datname from pg_database
union all select 'large object ' || oid from pg_largeobject_metadata
union all select 'job ' || key || phase || generation || coalesce(exit_code::text, '') from controller.jobs
union all select 'incident ' || key from controller.incidents
order by 1
"""


class Scene:
    """One cluster of three nodes, as root: a job in training on two of them, the attacker has the third."""

    def __init__(self, made: Cluster, place: Path, job: Job, drop: Path) -> None:
        self.cluster, self.place, self.job, self.drop = made, place, job, drop
        self.layout, self.info = made.layout, made.info
        self.credentials = msgspec.json.decode(self.layout.secrets_file.read_bytes(), type=Credentials)
        self.left: list[int] = []
        """Processes that the script started to stay behind."""
        self.marker = place / "open" / "a-script-of-the-attacker-ran"
        self.members = made.members(job)
        (self.outsider,) = set(self.info.nodes) - set(self.members)
        self._runner = asyncio.Runner()
        self._admin = self._runner.run(asyncpg.connect(self.info.database_urls["admin"]))
        self.operator = self.wire("operator")
        body = self.sql_as_operator("select body from controller.job_secrets where key = $1", job.name)[0]["body"]
        self.token: str = json.loads(body)["token"]
        self.seen = self.truth()
        """What the operator saw last: looking twice between two attempts would show the same."""

    # --- what the operator sees ------------------------------------------------------------------

    @property
    def guarded(self) -> set[str]:
        """What nobody below the operator may get to see."""
        passwords = {*self.credentials.bus.values(), *self.credentials.roles.values(), self.credentials.postgres}
        return passwords | {SECRET, self.token}

    def sql_as_operator(self, sql: str, *arguments: object) -> list[dict[str, Any]]:
        return [dict(row) for row in self._runner.run(self._admin.fetch(sql, *arguments))]

    def order(self, node: str) -> bytes:
        """The order of a node, as the bus has it; b"": none yet."""
        return self.operator.ask(f"$JS.API.DIRECT.GET.KV_desired.$KV.desired.node.{node}").body

    def stream(self, name: str, subjects: str = "") -> dict[str, Any]:
        body = json.dumps({"subjects_filter": subjects}).encode() if subjects else b""
        answer: dict[str, Any] = json.loads(self.operator.ask(f"$JS.API.STREAM.INFO.{name}", body).body)
        return answer

    def truth(self) -> dict[str, Any]:
        """Everything that no attempt may change."""
        names = json.loads(self.operator.ask("$JS.API.STREAM.NAMES").body)["streams"]
        streams = {name: self.stream(name) for name in STREAMS}
        return {
            "streams": sorted(names),
            "configurations": {name: info["config"] for name, info in streams.items()},
            "first messages": {
                name: info["state"]["first_seq"] for name, info in streams.items() if name in ("EVIDENCE", "DECISIONS")
            },
            "orders": [self.order(node) for node in self.info.nodes],
            "code of jobs": self.stream("KV_jobs", "$KV.jobs.code.>")["state"].get("subjects"),
            "code": streams["OBJ_code"]["state"]["messages"],
            "database": [row["what"] for row in self.sql_as_operator(_OURS)],
            "children": {name: (child.state, child.restarts) for name, child in self.cluster.children().items()},
            "ranks": self.job.pids(),
            "files": _described(self.layout.secrets_file, self.layout.cluster_file, self.layout.nats / "nats.conf"),
            "a script of the attacker ran": self.marker.exists(),
        }

    def look(self) -> dict[str, Any]:
        """Return the truth as it is now, and keep it as what was seen last."""
        self.seen = self.truth()
        return self.seen

    def processes(self) -> set[int]:
        """All processes of the cluster."""
        pids = {child.pid for child in self.info.children.values()} | {self.info.pid or 0}
        for node in self.info.nodes:
            pids |= node_processes(self.layout.node(node), self.info.pid)
        return {pid for pid in pids if pid and Path(f"/proc/{pid}").exists()}

    def files(self) -> list[str]:
        """All files and sockets of the cluster."""
        memory = [self.layout.node(node).joinpath("ledgers").resolve() for node in self.info.nodes]
        roots = [self.layout.root, *memory]
        return sorted(str(path) for root in roots for path in (root, *root.rglob("*")) if "scratch" not in path.parts)

    def ports(self) -> set[int]:
        """The TCP ports on which its processes listen."""
        sockets = set()
        for pid in self.processes():
            with contextlib.suppress(OSError):
                links = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
                sockets |= {link[8:-1] for link in links if link.startswith("socket:")}
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return {int(line[1].rsplit(":", 1)[1], 16) for line in lines if line[3] == "0A" and line[9] in sockets}

    def dead_letters(self) -> list[dict[str, Any]]:
        return self.cluster.query("select subject, error from historian.dead_letters")

    def until_recorded(self, event: str) -> None:
        """Wait until the historian has this event: every service has it, or will in order."""
        sql = """select from historian.events where id = $1::text::uuid
                 union all select from historian.foreign_events where id = $1::text::uuid"""
        self.cluster.until(f"{event} is recorded", lambda: self.cluster.query(sql, event))

    def until_dead_letter(self, error: str) -> None:
        self.cluster.until(
            f"a dead letter: {error}", lambda: [letter for letter in self.dead_letters() if error in letter["error"]]
        )

    def until_standby(self, node: str) -> None:
        """Wait until the inventory has the node as free."""
        self.cluster.until(f"{node} is free", lambda: self.cluster.nodes()[node]["state"] == "standby")

    def registration(self) -> dict[str, Any]:
        """The newest registration of the node whose password the attacker has."""
        subject = f"{ROOT}.evidence.node_registered._.{self.outsider}"
        body: dict[str, Any] = json.loads(
            self.operator.ask("$JS.API.DIRECT.GET.EVIDENCE", json.dumps({"last_by_subj": subject}).encode()).body
        )
        return body

    # --- what the attacker does ------------------------------------------------------------------

    def password_of(self, role: str) -> str:
        return self.credentials.roles.get(role, self.credentials.postgres)

    def sql(
        self, role: str, statement: str, password: str | None = None, *, database: str = "", before: str = ""
    ) -> list[Any]:
        """The first column of what a role gets from a statement; the name of the error, if it is one."""

        async def do() -> list[Any]:
            try:
                connection = await self._connect(role, password, database)
            except asyncpg.PostgresError as error:
                return [type(error).__name__]
            try:
                if before:
                    await connection.execute(before)
                if ";" in statement:
                    await connection.execute(statement)
                    return []
                return [row[0] for row in await connection.fetch(statement)]
            except asyncpg.PostgresError as error:
                return [type(error).__name__]
            finally:
                await connection.close()

        return self._runner.run(do())

    def connections(self, role: str, wanted: int) -> int:
        """Return how many connections a role gets at once, of those wanted."""

        async def do() -> int:
            held: list[asyncpg.Connection[Any]] = []
            try:
                while len(held) < wanted:
                    held.append(await self._connect(role))
            except asyncpg.TooManyConnectionsError:
                pass
            for connection in held:
                await connection.close()
            return len(held)

        return self._runner.run(do())

    def renew_while(self, role: str, statement: str) -> bool:
        """Set a role's password while a session of it has run this. Return whether that session was ended."""

        async def do() -> bool:
            connection = await self._connect(role)
            await connection.execute("set default_transaction_read_only = off")
            await connection.execute(statement)
            await set_passwords(self.info.database_urls["admin"], {role: self.password_of(role)})
            return connection.is_closed()

        return self._runner.run(do())

    async def _connect(self, role: str, password: str | None = None, database: str = "") -> asyncpg.Connection[Any]:
        return await asyncpg.connect(
            host="127.0.0.1",
            port=self.info.ports.postgres,
            user=role,
            password=self.password_of(role) if password is None else password,
            database=database or "holdfast",
        )

    def publish_as_outsider(self, kind: str, body: bytes) -> None:
        """Have JetStream store an event of the node whose password the attacker has."""
        wire = self.as_outsider()
        answer = wire.ask(f"{ROOT}.{kind}.{self.outsider}", body)
        assert b'"seq"' in answer.body, answer
        wire.close()

    def wire(self, user: str | None = None, password: str | None = None) -> Wire:
        """A connection to NATS, as this user with its own password."""
        known = "" if user is None else self.credentials.bus.get(user, "")
        return Wire(self.info.ports.nats, user, known if password is None else password).connect()

    def as_outsider(self) -> Wire:
        """A connection with the password of the node that serves no job."""
        return self.wire(node_user(self.outsider))

    def ask_rank(self, name: str, *arguments: object, rank: int = 0) -> Any:
        """Have a rank call a function of the intruder's deeds; returns its result."""
        told = self.drop / f"told-{rank}"
        told.unlink(missing_ok=True)
        part = self.drop / "asking"
        part.write_text(json.dumps([name, arguments]))
        part.chmod(0o666)
        part.rename(self.drop / f"ask-{rank}")
        until(f"the rank has done {name}", told.exists, look=self.cluster.look)
        answer = json.loads(told.read_text())
        assert "got" in answer, answer["failed"]
        return answer["got"]

    def until_it_trains_on(self) -> None:
        """Wait until the job has gone ten steps further, in its first generation."""
        seen = self.job.step()
        self.job.until_step(seen + 10)
        assert self.job.generation() == 1

    def close(self) -> None:
        self.operator.close()
        with contextlib.suppress(asyncpg.PostgresError, OSError):
            self._runner.run(self._admin.close())
        self._runner.close()


@contextlib.contextmanager
def scene() -> Iterator[Scene]:
    """The cluster in a directory that all users can pass, so that only its own modes protect it."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-attempts-", dir="/tmp"))
    try:
        place.chmod(0o755)
        drop, free, opened_python = (place / name for name in ("drop", "open", "python"))
        for folder in (drop, free):
            folder.mkdir()
            folder.chmod(0o777)
        opened_python.mkdir(mode=0o700)
        for name in ("intruder.py", *DEEDS):
            shutil.copy(JOBS / name, place / name)
            (place / name).chmod(0o644)
        prefix = opened(opened_python)
        with cluster(place / "cluster", 3, prefix=prefix) as made:
            job = made.run(
                *("--drop", drop, "--deeds", *(place / name for name in DEEDS)),
                script=place / "intruder.py",
                name="victim",
                nproc=1,
                options=("--code", "none", "--env", f"SECRET={SECRET}"),
                is_executed=True,
            )
            job.journal = drop
            job.until_step(5)
            made_scene = Scene(made, place, job, drop)
            try:
                yield made_scene
            finally:
                made_scene.close()
    finally:
        shutil.rmtree(place)


def _described(*paths: Path) -> list[tuple[str, int, int, int]]:
    return [(path.name, (info := os.stat(path)).st_mode, info.st_uid, info.st_size) for path in paths]
