"""Subjects of NATS that a node may not use; `{member}` is another node, `{self}` its own."""

from __future__ import annotations

import json

from holdfast.fresh_ids import uuid7
from holdfast.subjects import ROOT

ORDERS = {
    "give another node an order that runs a script": "$KV.desired.node.{member}",
    "give itself an order that runs a script": "$KV.desired.node.{self}",
    "announce an order as stored": f"{ROOT}.desired.node.{{member}}",
    "give all nodes of the job new code": "$KV.jobs.code.victim",
    "announce new code as stored": f"{ROOT}.jobs.code.victim",
    "order other copies of checkpoints": "$KV.desired.backup.{member}",
    "put a manifest of code into the object store": "$O.code.M.evil",
    "put contents of code into the object store": "$O.code.C.evil",
}
FORGED = {
    "publish an eviction": f"{ROOT}.decision.eviction.victim.{{self}}",
    "publish a finding": f"{ROOT}.finding.hang.victim.{{self}}",
    "publish an action of a service": f"{ROOT}.action.node_state_changed._.{{member}}",
    "publish a loss of another node": f"{ROOT}.finding.node_lost.victim.{{member}}",
    "publish the end of another node's rank": f"{ROOT}.evidence.process_exited.victim.{{member}}",
    "publish evidence of no node": f"{ROOT}.evidence.process_exited.victim._",
    "publish steps of another node": f"{ROOT}.metric.steps_measured.victim.{{member}}",
    "publish another node's departure": f"{ROOT}.evidence.node_departed._.{{member}}",
    "send another node's heartbeat": f"{ROOT}.heartbeat.{{member}}",
    "print as a rank of another node": f"{ROOT}.log.victim.0.{{member}}",
    "write a dead letter of a service": f"{ROOT}.deadletter.controller",
    "write a dead letter of another node": f"{ROOT}.deadletter.agent.{{member}}",
    "use a job's name with dots": f"{ROOT}.evidence.process_exited.a.b.{{self}}",
    "use a node's name with a dot": f"{ROOT}.evidence.process_exited.victim.{{self}}.x",
    "publish as all nodes, by a wildcard": f"{ROOT}.evidence.process_exited.victim.*",
    "publish as everything, by a wildcard": f"{ROOT}.evidence.process_exited.victim.>",
}
ASKED = {
    "stop the job": f"{ROOT}.request.controller.ask",
    "ask for code as another node": f"{ROOT}.request.controller.code.{{member}}",
    "release a node": f"{ROOT}.request.standby.ask",
    "ask the analyzer for stacks": f"{ROOT}.request.analyzer.ask",
    "ping a service": f"{ROOT}.ping.controller",
    "ping another node": f"{ROOT}.ping.agent.{{member}}",
    "ask who holds another node": f"{ROOT}.holder.{{member}}",
    "answer a request of the operator": "_INBOX.operator.x",
    "answer by a way that the server made": "_R_.x.y",
    "read another node's order": "$JS.API.DIRECT.GET.KV_desired.$KV.desired.node.{member}",
    "read another node's order by position": "$JS.API.DIRECT.GET.KV_desired",
    "read all orders by a wildcard": "$JS.API.DIRECT.GET.KV_desired.$KV.desired.node.*",
    "read a message of any stream": "$JS.API.STREAM.MSG.GET.KV_desired",
    "read dead letters": "$JS.API.DIRECT.GET.DEADLETTERS",
    "make a stream over all subjects": "$JS.API.STREAM.CREATE.MINE",
    "change a stream": "$JS.API.STREAM.UPDATE.KV_desired",
    "delete a stream": "$JS.API.STREAM.DELETE.DECISIONS",
    "purge a stream": "$JS.API.STREAM.PURGE.EVIDENCE",
    "delete a message": "$JS.API.STREAM.MSG.DELETE.EVIDENCE",
    "take a snapshot of a stream": "$JS.API.STREAM.SNAPSHOT.KV_desired",
    "restore a stream": "$JS.API.STREAM.RESTORE.KV_desired",
    "make a consumer of orders": "$JS.API.CONSUMER.CREATE.KV_desired.mine",
    "make a consumer whose messages arrive as orders": "$JS.API.CONSUMER.DURABLE.CREATE.EVIDENCE.mine",
    "delete the controller's consumer": "$JS.API.CONSUMER.DELETE.EVIDENCE.controller",
    "pause the controller's consumer": "$JS.API.CONSUMER.PAUSE.EVIDENCE.controller",
    "take the controller's next message": "$JS.API.CONSUMER.MSG.NEXT.EVIDENCE.controller",
    "acknowledge for the controller": "$JS.ACK.EVIDENCE.controller.1.1.1.1.1",
    "ask the system account": "$SYS.REQ.SERVER.PING",
    "ask for its account's connections": "$SYS.REQ.ACCOUNT.PING.CONNZ",
    "ask for services": "$SRV.PING",
}
BODIES = {
    "$JS.API.STREAM.CREATE.MINE": b'{"name":"MINE","subjects":[">"]}',
    "$JS.API.STREAM.UPDATE.KV_desired": b'{"name":"KV_desired","subjects":["x"]}',
    "$JS.API.STREAM.MSG.DELETE.EVIDENCE": b'{"seq":1}',
    "$JS.API.STREAM.MSG.GET.KV_desired": b'{"seq":1}',
    "$JS.API.DIRECT.GET.KV_desired": b'{"seq":1}',
    "$JS.API.CONSUMER.DURABLE.CREATE.EVIDENCE.mine": json.dumps(
        {"stream_name": "EVIDENCE", "config": {"durable_name": "mine", "deliver_subject": "$KV.desired.node.node-0"}}
    ).encode(),
    f"{ROOT}.request.controller.ask": json.dumps(
        {"request": "stopjob", "id": uuid7(), "asked_by": "nobody", "job": "victim"}
    ).encode(),
}
HIDDEN = {
    "everything": ">",
    "orders of all nodes": f"{ROOT}.desired.node.*",
    "everything of Holdfast": f"{ROOT}.>",
    "the output of ranks": f"{ROOT}.log.>",
    "heartbeats": f"{ROOT}.heartbeat.*",
    "requests": f"{ROOT}.request.>",
    "answers to the operator": "_INBOX.operator.>",
    "answers to anyone": "_INBOX.>",
    "what is put into buckets": "$KV.>",
    "the API of JetStream": "$JS.>",
    "the system account": "$SYS.>",
}
REPLIES = (
    "$KV.desired.node.{member}",
    "$KV.jobs.code.victim",
    f"{ROOT}.desired.node.{{member}}",
    f"{ROOT}.decision.eviction.victim.{{member}}",
    f"{ROOT}.request.controller.ask",
    "$JS.API.STREAM.DELETE.DECISIONS",
    "$JS.API.STREAM.PURGE.EVIDENCE",
    "$O.code.M.evil",
    "_INBOX.operator.x",
)
"""Subjects for a reply: what answers an allowed request must not land there."""
