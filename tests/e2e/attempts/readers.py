"""The reader's passwords, of NATS and of Postgres, and the database role of a service."""

from __future__ import annotations

from typing import Any

import pytest

from attempts.nats_wire import Refused
from attempts.node import received_copies
from attempts.node_subjects import ASKED, HIDDEN, ORDERS
from attempts.scene import Scene
from attempts.table import READER, SERVICE, attempt, attempts
from holdfast.subjects import ROOT

DENIED = "InsufficientPrivilegeError"


@attempt(READER, "receive events as they happen", "may: events, and lines that ranks print")
def receives_events(scene: Scene) -> Any:
    wire = scene.wire("reader")
    wire.subscribe(f"{ROOT}.>")
    wire.flush()
    seen: list[Any] = []

    def something() -> bool:
        seen.extend(wire.flush())
        return any(f"{ROOT}.metric" in message.subject for message in seen)

    scene.cluster.until("metrics arrive", something)
    wire.close()
    assert not [message for message in seen if ".desired." in message.subject or "deadletter" in message.subject]
    return seen


@attempt(READER, "subscribe a hundred times to the same", "each message 32 times")
def subscribes_often(scene: Scene) -> Any:
    return received_copies(scene, scene.wire("reader"))


@attempts(
    READER,
    "refused",
    {
        "publish an event": f"{ROOT}.evidence.process_exited.victim.node-0",
        "give a node an order": ORDERS["give another node an order that runs a script"],
        "stop the job": ASKED["stop the job"],
        "read a node's order": ASKED["read another node's order"],
        "read dead letters": ASKED["read dead letters"],
        "delete a stream": ASKED["delete a stream"],
        "make a consumer of orders": ASKED["make a consumer of orders"],
        "acknowledge for the controller": ASKED["acknowledge for the controller"],
        "answer a request of the operator": ASKED["answer a request of the operator"],
    },
)
def publishes(scene: Scene, argument: str) -> Any:
    wire = scene.wire("reader")
    subject = argument.replace("{member}", scene.members[0])
    for headers in (None, {"Nats-Rollup": "all"}):
        with pytest.raises(Refused, match="Permissions Violation for Publish"):
            pytest.fail(str(wire.ask(subject, b"{}", headers)))
    wire.close()


@attempts(
    READER,
    "nothing",
    {f"subscribe to {what}": HIDDEN[what] for what in ("everything", "answers to anyone", "what is put into buckets")},
)
def subscribes(scene: Scene, argument: str) -> Any:
    wire = scene.wire("reader")
    wire.subscribe(argument)
    wire.flush()
    scene.operator.ask("$JS.API.STREAM.NAMES")
    assert wire.flush() == [] and "Permissions Violation for Subscription" in wire.errors[0]
    wire.close()


@attempt(READER, "query what is recorded", "may: events, jobs, nodes, incidents")
def queries(scene: Scene) -> Any:
    rows = scene.sql("holdfast_reader", "select body::text from historian.events")
    assert len(rows) > 10
    nodes = scene.sql("holdfast_reader", "select count(*) from standby.nodes")
    assert nodes == [3]
    return rows


WRITES = {
    "write an event": "insert into historian.events select * from historian.events limit 1",
    "delete events": "delete from historian.events",
    "change a node's state": "update standby.nodes set state = 'lost'",
    "empty a service's inbox": "truncate controller.inbox",
    "drop a table": "drop table controller.jobs",
    "make a table": "create table public.planted (x int)",
    "make a temporary table": "create temporary table planted (x int)",
    "make a schema": "create schema planted",
    "make a function": "create function public.planted() returns int language sql as 'select 1'",
    "make a trigger": "create trigger planted after insert on historian.events execute function now()",
    "make a view over another's": "create view public.planted as select * from controller.jobs",
    "make a large object": "select lo_from_bytea(0, 'x')",
    "load a library": "load '/tmp/evil.so'",
    "make a foreign server": "create foreign data wrapper planted",
    "make a role": "create role planted superuser",
    "become the administrator": "set role postgres",
    "become a service": "set role holdfast_controller",
    "log in as a service without a new connection": "set session authorization holdfast_controller",
    "make itself an administrator": "alter role current_user superuser",
    "change a service's password": "alter role holdfast_controller password 'known'",
    "join a service's role": "grant holdfast_controller to current_user",
    "read files, as a built-in role": "grant pg_read_server_files to current_user",
    "change the server's settings": "alter system set log_statement = 'all'",
    "change the database's settings": "alter database holdfast set log_statement = 'all'",
    "run a program": "copy (select 1) to program 'touch /tmp/holdfast-attempts-ran'",
    "run a program for input": "do $$ begin execute 'copy x from program ''id'''; end $$",
    "write a file": "copy (select 1) to '/tmp/holdfast-attempts-ran'",
    "read a file": "select pg_read_file('/etc/passwd')",
    "list the server's files": "select pg_ls_dir('.')",
    "import a file": "select lo_import('/etc/passwd')",
    "read the passwords of roles": "select rolpassword from pg_authid",
    "read where the server's files are": "select * from pg_hba_file_rules()",
    "read the settings of jobs": "select body from controller.jobs",
    "read the secrets of jobs": "select body from controller.job_secrets",
    "read orders that are on their way": "select body from controller.outbox",
    "read a whole row of a job": "select j::text from controller.jobs j",
    "read jobs by a subquery": "select (select body from controller.jobs limit 1)::text",
    "read samples of a closed column": "select stavalues1::text from pg_statistic",
    "end the sessions of services": "select historian.end_long_reads('0 s', '0 s')",
    "log the memory of a session": "select pg_log_backend_memory_contexts(1)",
    "replicate the database": "select pg_create_physical_replication_slot('planted')",
    "switch triggers off": "set session_replication_role = replica",
    "lock a table": "begin; lock table controller.jobs in access exclusive mode",
    "take the locks that all sessions share": "select pg_advisory_lock(g) from generate_series(1, 200000) g",
    "write into the log of the server": "select pg_logical_emit_message(false, 'x', repeat('x', 1000000))",
    "lift the limit of its files": "alter role current_user reset temp_file_limit",
}
OTHERS = {  # besides those above, for a service: what another service has
    "read another service's tables": "select * from standby.nodes",
    "read another service's secrets of jobs": "select body from controller.job_secrets",
    "write another service's tables": "insert into controller.inbox (id) values ('planted')",
    "read what is recorded": "select * from historian.events",
    "hide a decision from another service": "insert into standby.inbox (id) values ('planted')",
    "order by another service's outbox": (
        "insert into controller.outbox (id, subject, body, headers) values ('x', 's', 'b', '{}')"
    ),
    "make a function in its own schema": "create function analyzer.now() returns int language sql as 'select 1'",
    "make a table in its own schema": "create table analyzer.planted (x int)",
    "drop its own table": "drop table analyzer.inbox",
    "become another service": "set role holdfast_controller",
    "change another service's password": "alter role holdfast_controller password 'known'",
    "make a large object": "select lo_from_bytea(0, 'x')",
    "make a temporary table": "create temporary table planted (x int)",
    "run a program": "copy (select 1) to program 'touch /tmp/holdfast-attempts-ran'",
    "read a file": "select pg_read_file('/etc/passwd')",
    "end the sessions of the reader": "select historian.end_long_reads('0 s', '0 s')",
}
OF_THE_HISTORIAN = {  # what the administrator would run when a backup is restored
    "make a function": "create function historian.planted() returns bool language plpgsql as 'begin return true; end'",
    "make a table with a constraint of its own": "create table historian.planted (x int check (x > 0))",
    "add a trigger to the record": "create trigger planted before insert on historian.events execute function now()",
    "add a constraint to the record": "alter table historian.events_default add check (id is not null)",
    "drop the record": "drop table historian.events",
}


def _refused(scene: Scene, role: str, statement: str) -> list[Any]:
    got = scene.sql(role, statement, before="set default_transaction_read_only = off")
    assert got in ([DENIED], ["UndefinedObjectError"], ["InvalidGrantOperationError"], ["UndefinedFileError"]), got
    return got


@attempts(READER, "refused", {f"SQL: {what}": statement for what, statement in WRITES.items()})
def writes(scene: Scene, argument: str) -> Any:
    return _refused(scene, "holdfast_reader", argument)


@attempts(SERVICE, "refused", {f"SQL: {what}": statement for what, statement in OTHERS.items()})
def writes_as_a_service(scene: Scene, argument: str) -> Any:
    return _refused(scene, "holdfast_analyzer", argument)


@attempts(SERVICE, "refused", {f"SQL, as the historian: {what}": sql for what, sql in OF_THE_HISTORIAN.items()})
def writes_as_the_historian(scene: Scene, argument: str) -> Any:
    return _refused(scene, "holdfast_historian", argument)


@attempt(SERVICE, "take all connections of the database", "30 of 197")
def takes_connections(scene: Scene) -> Any:
    held = scene.connections("holdfast_analyzer", 40)
    assert held <= 30
    assert scene.sql("holdfast_controller", "select 1") == [1]


@attempt(READER, "fill the server's disk with notifications that no session reads", "512 KiB")
def notifies(scene: Scene) -> Any:
    many = "select pg_notify('heap', repeat('x', 7000) || g) from generate_series(1, 1000) g"
    got = scene.sql("holdfast_reader", many, before="set default_transaction_read_only = off")
    assert got == ["ProgramLimitExceededError"]
    return got


@attempt(READER, "hold its own role, so that its password cannot be renewed", "an ended session, a renewed password")
def holds_its_role(scene: Scene) -> Any:
    assert scene.renew_while("holdfast_reader", "begin; alter role current_user set application_name = 'x'")


@attempts(
    READER,
    "refused",
    {f"connect to the database `{name}`, whose sessions nothing ends": name for name in ("postgres", "template1")},
)
def connects_elsewhere(scene: Scene, argument: str) -> Any:
    for role in ("holdfast_reader", "holdfast_analyzer"):
        assert scene.sql(role, "select lo_from_bytea(0, 'x')", database=argument) == [DENIED]


@attempt(READER, "end the session of a service", "refused")
def ends_sessions(scene: Scene) -> Any:
    pids = scene.sql_as_operator("select pid from pg_stat_activity where usename = 'holdfast_controller'")
    for role in ("holdfast_reader", "holdfast_analyzer"):
        for function in ("pg_terminate_backend", "pg_cancel_backend"):
            assert scene.sql(role, f"select {function}({pids[0]['pid']})") == [DENIED]


@attempt(READER, "read the queries of services", "their existence, not their text")
def reads_queries(scene: Scene) -> Any:
    seen = scene.sql("holdfast_reader", "select query from pg_stat_activity where usename = 'holdfast_controller'")
    assert set(seen) == {"<insufficient privilege>"}


@attempt(SERVICE, "write its own tables", "may: its schema")
def writes_its_own(scene: Scene) -> Any:
    assert scene.sql("holdfast_analyzer", "insert into analyzer.inbox (id) values ('mine') returning id") == ["mine"]
    assert scene.sql("holdfast_analyzer", "delete from analyzer.inbox where id = 'mine' returning id") == ["mine"]
