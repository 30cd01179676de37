"""A node's own password: that of a machine that serves no job, in the hands of an attacker."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from attempts.nats_wire import Received, Refused, Wire
from attempts.node_subjects import ASKED, BODIES, FORGED, HIDDEN, ORDERS, REPLIES
from attempts.scene import SECRET, Scene
from attempts.table import NODE, attempt, attempts
from holdfast.bus.accounts import node_user
from holdfast.fresh_ids import uuid7
from holdfast.ids import derived_id, uuid7_of
from holdfast.orders.backup import BackupOrder
from holdfast.orders.node import NodeOrder
from holdfast.subjects import ROOT, heartbeat_subject


def event(scene: Scene, kind: str, **fields: Any) -> bytes:
    """An event that this node publishes, with whatever else."""
    node = scene.outsider
    common = {"id": uuid7(), "at": datetime.now(UTC).isoformat(), "source": f"agent/{node}", "node": node, "type": kind}
    return json.dumps(common | fields).encode()


def harmless(scene: Scene) -> bytes:
    """An event that this node may publish, and that nobody acts on."""
    return event(scene, "log_signature", job="no-such-job", rank=0, signature="x", stream="out", generation=1)


def exited() -> dict[str, Any]:
    """The fields of a rank's end."""
    return {"rank": 0, "local_rank": 0, "exit_code": 1, "exited_at": datetime.now(UTC).isoformat(), "generation": 1}


def measured(generation: int, not_finite: dict[str, str] | None = None) -> dict[str, Any]:
    """The fields of an event with steps that the job has not made."""
    samples = [
        {"rank": rank, "step": 10**6 + step, "ended_at": datetime.now(UTC).isoformat(), "duration_s": 100.0}
        | {"not_finite": not_finite or {}}
        for step in range(20)
        for rank in (0, 1)
    ]
    return {"samples": samples, "world_size": 2, "generation": generation}


def forged_order(scene: Scene, node: str) -> bytes:
    """An order that would run a script of the attacker, above the node's present one."""
    order = NodeOrder.decode(scene.order(scene.members[0]))
    assert order.placement is not None
    script = scene.place / "open" / "evil.py"
    script.write_text(f"open({str(scene.marker)!r}, 'w')\n")
    spec = msgspec.structs.replace(order.placement.job, script=str(script), args=(), nnodes=1)
    placement = msgspec.structs.replace(order.placement, job=spec, node_rank=0)
    high = {"epoch": order.epoch + 5, "generation": order.generation + 5}
    return msgspec.structs.replace(order, node=node, placement=placement, **high).encode()


def received_copies(scene: Scene, wire: Wire) -> list[Received]:
    """Subscribe a hundred times to heartbeats of the attacker's node; return what arrives, each 32 times at most."""
    for _ in range(100):
        wire.subscribe(heartbeat_subject(scene.outsider))
    arrived: list[Received] = []

    def something() -> bool:
        arrived.extend(wire.flush())
        return bool(arrived)

    scene.cluster.until("a heartbeat arrives", something)
    wire.close()
    assert max(Counter(message.body for message in arrived).values()) <= 32
    return arrived


def denied(scene: Scene, subject: str, *bodies: bytes, headers: dict[str, str] | None = None) -> None:
    """Assert that the server lets this node publish nothing there."""
    wire = scene.as_outsider()
    for body in bodies:
        with pytest.raises(Refused, match="Permissions Violation for Publish"):
            pytest.fail(f"{subject}: {wire.ask(subject, body, headers)}")
    wire.close()


def of(scene: Scene, subject: str) -> str:
    return subject.replace("{member}", scene.members[0]).replace("{self}", scene.outsider)


@attempt(NODE, "read its own order", "may: its order, with the settings of a job that it runs")
def reads_its_order(scene: Scene) -> Any:
    node = scene.members[0]
    wire = scene.wire(node_user(node))
    assert SECRET.encode() in wire.ask(f"$JS.API.DIRECT.GET.KV_desired.$KV.desired.node.{node}").body
    wire.close()


@attempt(NODE, "publish what it saw, and read the events of all nodes", "may: it is stored and recorded")
def publishes_and_reads(scene: Scene) -> Any:
    body = harmless(scene)
    scene.publish_as_outsider("evidence.log_signature.no-such-job", body)
    scene.until_recorded(json.loads(body)["id"])
    wire = scene.as_outsider()
    read = wire.ask("$JS.API.DIRECT.GET.EVIDENCE", b'{"seq":1,"next_by_subj":">"}')
    assert read.body
    wire.close()
    return read


@attempts(NODE, "refused", ORDERS)
def gives_orders(scene: Scene, argument: str) -> Any:
    subject = of(scene, argument)
    order = forged_order(scene, scene.outsider if subject.endswith(scene.outsider) else scene.members[0])
    for headers in (None, {"KV-Operation": "PURGE", "Nats-Rollup": "all"}, {"Nats-Trace-Dest": subject}):
        denied(scene, subject, order, headers=headers)


@attempts(NODE, "refused", FORGED)
def forges_events(scene: Scene, argument: str) -> Any:
    subject = of(scene, argument)
    more = {"node": scene.members[0], "reason": "because", "blocked_for_s": 1e6, "epoch": 1}
    denied(scene, subject, event(scene, subject.split(".")[3], job="victim", **exited() | more))


@attempts(NODE, "refused", ASKED)
def asks(scene: Scene, argument: str) -> Any:
    subject = of(scene, argument)
    denied(scene, subject, BODIES.get(subject, b"{}"), b"")


@attempt(NODE, "read another node's order by a request for its own", "its own order, or an error")
def asks_doubly(scene: Scene) -> Any:
    wire, other = scene.as_outsider(), f"$KV.desired.node.{scene.members[0]}"
    own = f"$JS.API.DIRECT.GET.KV_desired.$KV.desired.node.{scene.outsider}"
    bodies = ({"last_by_subj": other}, {"seq": 1}, {"multi_last": ["$KV.desired.>"]}, {"next_by_subj": ">", "batch": 9})
    received = [wire.ask(own, json.dumps(body).encode()) for body in bodies]
    received += [
        wire.ask("$JS.API.DIRECT.GET.KV_jobs", json.dumps({"last_by_subj": other}).encode()),
        wire.ask("$JS.API.DIRECT.GET.OBJ_code", json.dumps({"multi_last": [other]}).encode()),
        wire.ask("$JS.API.DIRECT.GET.EVIDENCE", json.dumps({"last_by_subj": other}).encode()),
        wire.ask(f"{ROOT}.streaminfo.DECISIONS", b'{"subjects_filter":">","deleted_details":true}'),
        *wire.flush(),
    ]
    wire.close()
    return received


@attempts(
    NODE,
    "an answer that arrives nowhere",
    {
        "have JetStream's answer stored as an order": f"{ROOT}.evidence.log_signature.no-such-job.{{self}}",
        "have its order's text stored as another's": "$JS.API.DIRECT.GET.KV_desired.$KV.desired.node.{self}",
        "have an event's text arrive as a decision": "$JS.API.DIRECT.GET.EVIDENCE",
        "have the controller's answer arrive as an order": f"{ROOT}.request.controller.code.{{self}}",
        "have a stream's state arrive as a request": f"{ROOT}.streaminfo.DECISIONS",
    },
)
def names_other_replies(scene: Scene, argument: str) -> Any:
    wire, subject = scene.as_outsider(), of(scene, argument)
    watch = scene.wire("operator")
    watch.subscribe(">")
    watch.flush()
    body = b'{"seq":1,"next_by_subj":">"}' if subject.endswith("EVIDENCE") else b""
    if "evidence" in subject:
        body = harmless(scene)
    for reply in REPLIES:
        wire.send(subject, body, of(scene, reply))
    wire.ask(subject, body)
    passed = {message.subject for message in watch.flush()}
    assert passed, "the operator's connection receives everything that passes"
    landed = passed & {of(scene, reply) for reply in REPLIES}
    assert not landed, landed
    watch.close()
    wire.close()


@attempts(NODE, "nothing", {f"subscribe to {what}": subject for what, subject in HIDDEN.items()})
def subscribes(scene: Scene, argument: str) -> Any:
    wire = scene.as_outsider()
    for queue in ("", "serve"):
        wire.subscribe(argument, queue)
    wire.flush()
    scene.operator.send(f"{ROOT}.log.victim.0.{scene.members[0]}", b'{"rank":0,"stream":"out","lines":[]}')
    scene.operator.ask("$JS.API.STREAM.NAMES")
    scene.operator.ask(f"{ROOT}.ping.controller")
    arrived = wire.flush()
    wire.close()
    assert arrived == [], arrived
    assert any("Permissions Violation for Subscription" in error for error in wire.errors)


@attempt(NODE, "serve requests to the controller in its place", "refused")
def serves(scene: Scene) -> Any:
    wire = scene.as_outsider()
    for subject in (f"{ROOT}.request.controller.ask", f"{ROOT}.request.controller.code", f"{ROOT}.ping.controller"):
        wire.subscribe(subject, "serve")
    wire.flush()
    assert len(wire.errors) == 3
    for _ in range(5):
        assert scene.operator.ask(f"{ROOT}.ping.controller").body == b"ready"
    assert wire.flush() == []
    wire.close()


@attempt(NODE, "name another node in an event's body, under its own subject", "a dead letter")
def names_another(scene: Scene) -> Any:
    body = event(scene, "process_exited", job="victim", **exited() | {"node": scene.members[0]})
    scene.publish_as_outsider("evidence.process_exited.victim", body)
    scene.until_dead_letter(f"process_exited.victim.{scene.members[0]}")


@attempt(NODE, "publish an eviction as the body of evidence", "a dead letter")
def names_another_type(scene: Scene) -> Any:
    body = event(scene, "eviction", job="victim", reason="forged", blocked_for_s=1e6, epoch=1)
    scene.publish_as_outsider("evidence.process_exited.victim", body)
    scene.until_dead_letter("holdfast.v1.decision.eviction")


@attempts(
    NODE,
    "kept apart; no service acts on it, and no view has it",
    {
        "publish the end of a rank of a job that it does not run": ("evidence.process_exited", exited()),
        "publish that the job has finished": ("action.ranks_finished", {"ranks": [0, 1], "generation": 1}),
        "publish that the job's ranks were stopped": (
            "action.ranks_stopped",
            {"ranks": [0, 1], "generation": 1, "epoch": 1, "took_s": 0, "killed": 0, "reason": "x"},
        ),
        "refuse the job's order for one of a far generation": (
            "evidence.order_refused",
            {"epoch": 1, "newest_epoch": 10**9, "newest_generation": 10**9, "newest_job": "victim", "generation": 1},
        ),
        "save a checkpoint of the job that removes all others from the catalogue": (
            "action.checkpoint_saved",
            {"step": 10**9, "path": "/x", "checkpoint_bytes": 1, "took_s": 1.0, "steps": [10**9], "generation": 1},
        ),
        "have all nodes of the job keep a step that none has": (
            "evidence.keeping_interrupted",
            {"step": -1, "reason": "x", "generation": 1},
        ),
        "publish steps of the job a hundred times as long": ("metric.steps_measured", measured(1)),
        "publish steps of a generation that the job has not begun": ("metric.steps_measured", measured(7)),
        "publish a loss of the job that is not finite": ("metric.steps_measured", measured(1, {"loss": "nan"})),
        "publish that the job's ranks make no progress": (
            "evidence.progress",
            {"ranks": [{"rank": 0, "step": 1, "phase": "train", "since_change_s": 1e6}], "generation": 1},
        ),
        "publish use of resources by the job's ranks": (
            "metric.telemetry_measured",
            {"ranks": [{"rank": 0, "cpu_cores": 0.0}], "interval_s": 5.0, "generation": 1},
        ),
        "publish lines of the job that show a broken device": (
            "evidence.log_signature",
            {"rank": 0, "signature": "x", "stream": "err", "lines": ["x"], "count": 10**6, "generation": 1},
        ),
    },
)
def speaks_for_the_job(scene: Scene, argument: tuple[str, dict[str, Any]]) -> Any:
    kind, fields = argument
    body = event(scene, kind.split(".")[1], job="victim", **fields)
    scene.publish_as_outsider(f"{kind}.victim", body)
    scene.until_recorded(json.loads(body)["id"])
    if not kind.endswith("order_refused"):  # the order may be older than the job
        shown = "select from historian.events where id = $1::text::uuid"
        assert not scene.cluster.query(shown, json.loads(body)["id"])
    scene.until_it_trains_on()
    for node in scene.members:
        copies = scene.operator.ask(f"$JS.API.DIRECT.GET.KV_desired.$KV.desired.{BackupOrder.key_of(node)}")
        assert BackupOrder.decode(copies.body).frozen_step is None
    assert not scene.sql_as_operator("select id from historian.events where cause = $1", json.loads(body)["id"])


@attempt(NODE, "register as an agent that starts next year", "a note beside the node; it stays as it is")
def registers_far_ahead(scene: Scene) -> Any:
    at = datetime.now(UTC) + timedelta(days=365)
    instance = uuid7_of(int(at.timestamp() * 1000), bytes(10))
    body = scene.registration() | {"instance": instance, "id": uuid7()}
    scene.publish_as_outsider("evidence.node_registered._", json.dumps(body).encode())
    scene.cluster.until("it is noted", lambda: "not accepted" in scene.cluster.nodes()[scene.outsider]["reason"])
    assert scene.cluster.nodes()[scene.outsider]["state"] == "standby"


@attempt(NODE, "publish first under the id that a service's next event will have", "the service's event arrives")
def poisons_ids(scene: Scene) -> Any:
    cause = uuid7()
    body = scene.registration() | {"instance": uuid7(), "id": cause}
    changed = derived_id(cause, "NodeStateChanged", nth=0)
    decoy = event(scene, "ranks_stopped", job="no-such-job", generation=1, ranks=[], took_s=0, reason="x")
    wire = scene.as_outsider()
    subject = f"{ROOT}.action.ranks_stopped.no-such-job.{scene.outsider}"
    assert b'"seq"' in wire.ask(subject, decoy, {"Nats-Msg-Id": changed}).body
    wire.close()
    scene.publish_as_outsider("evidence.node_registered._", json.dumps(body).encode())
    scene.until_recorded(changed)
    scene.until_standby(scene.outsider)


@attempts(
    NODE,
    "an error, or its own event",
    {
        "expect another stream": {"Nats-Expected-Stream": "KV_desired"},
        "expect a position": {"Nats-Expected-Last-Sequence": "0"},
        "replace all that a stream has (roll-up)": {"Nats-Rollup": "all"},
        "replace what a subject has (roll-up)": {"Nats-Rollup": "sub"},
        "have it forgotten at once (TTL)": {"Nats-TTL": "1s"},
        "have the server schedule an order": {
            "Nats-Schedule": "@at 2020-01-01T00:00:00Z",
            "Nats-Schedule-Target": "$KV.desired.node.node-0",
        },
        "have the server trace it into an order": {"Nats-Trace-Dest": "$KV.desired.node.node-0"},
        "begin a batch that never ends": {"Nats-Batch-Id": "x", "Nats-Batch-Sequence": "1"},
        "mark it as a deletion": {"KV-Operation": "PURGE", "Nats-Marker-Reason": "Purge"},
        "increment a counter": {"Nats-Incr": "1"},
    },
)
def sends_headers(scene: Scene, argument: dict[str, str]) -> Any:
    wire, stored = scene.as_outsider(), scene.stream("EVIDENCE")["state"]["messages"]
    received: list[Received] = []
    try:
        received = [wire.ask(f"{ROOT}.evidence.log_signature.no-such-job.{scene.outsider}", harmless(scene), argument)]
    except (Refused, TimeoutError):
        assert wire.errors
    assert scene.stream("EVIDENCE")["state"]["messages"] >= stored
    wire.close()
    return received


@attempt(NODE, "print lines into the output of a job that it does not run", "they are not shown")
def prints_for_others(scene: Scene) -> Any:
    wire = scene.as_outsider()
    body = json.dumps({"rank": 0, "stream": "out", "lines": ["forged line"], "generation": 1}).encode()
    for _ in range(5):
        wire.send(f"{ROOT}.log.victim.0.{scene.outsider}", body)
        wire.flush()
    scene.ask_rank("say", "an honest line\n")
    scene.cluster.until("the honest line is shown", lambda: "an honest line" in scene.job.output())
    wire.close()
    assert "forged" not in scene.job.output()


@attempts(
    NODE,
    "refused",
    {
        "stop the job by the request for code": {"request": "stopjob", "job": "victim"},
        "submit a job by the request for code": {"request": "submitjob", "spec": {"name": "evil"}},
        "keep code that is nowhere": {"request": "keepcode", "version": "../../etc/passwd"},
        "offer code that is nowhere": {"request": "offercode", "version": "0" * 64},
    },
)
def misuses_code_requests(scene: Scene, argument: dict[str, Any]) -> Any:
    wire = scene.as_outsider()
    body = json.dumps({"id": uuid7(), "asked_by": "nobody"} | argument).encode()
    answer = wire.ask(of(scene, f"{ROOT}.request.controller.code.{{self}}"), body)
    assert json.loads(answer.body)["accepted"] is False, answer
    wire.close()
    return answer
