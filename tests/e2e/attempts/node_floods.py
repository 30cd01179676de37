"""What a node's own password can send too much of."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from attempts.nats_wire import Refused, Wire
from attempts.node import received_copies
from attempts.scene import Scene
from attempts.table import NODE, attempt
from holdfast.bus.accounts import node_user
from holdfast.fresh_ids import uuid7
from holdfast.requests import CODE_REQUESTS, code_requests_of
from holdfast.subjects import ROOT


@attempt(NODE, "send an event of 1.1 MB", "refused")
def sends_too_long_an_event(scene: Scene) -> Any:
    wire = scene.as_outsider()
    answer = wire.ask(f"{ROOT}.evidence.process_exited.victim.{scene.outsider}", b"x" * 1_100_000)
    assert b"message size exceeds" in answer.body, answer
    wire.close()
    return answer


@attempt(NODE, "subscribe a hundred times to its own heartbeats", "each 32 times")
def subscribes_often(scene: Scene) -> Any:
    return received_copies(scene, scene.as_outsider())


@attempt(NODE, "send a message of 9 MB", "a closed connection")
def sends_too_much(scene: Scene) -> Any:
    wire = scene.as_outsider()

    def send() -> None:
        wire.send(f"{ROOT}.evidence.process_exited.victim.{scene.outsider}", b"x" * 9_000_000)
        wire.flush()

    with pytest.raises(Refused, match=r"Maximum Payload|closed|reset"):
        send()


@attempt(NODE, "send 20,000 log lines and 200 events that cannot be read", "dead letters; training goes on")
def floods(scene: Scene) -> Any:
    wire = scene.as_outsider()
    line = b'{"rank":0,"stream":"out","lines":["forged"]}'
    for _ in range(20_000):
        wire.send(f"{ROOT}.log.victim.0.{scene.outsider}", line)
    for _ in range(200):
        wire.send(f"{ROOT}.evidence.log_signature.victim.{scene.outsider}", b"nonsense")
    wire.flush()
    wire.close()
    scene.until_it_trains_on()


@attempt(NODE, "ask for a stream 2000 times and never read the answers", "training goes on")
def never_reads(scene: Scene) -> Any:
    wire = scene.as_outsider()
    for _ in range(2_000):
        wire.send("$JS.API.DIRECT.GET.EVIDENCE", b'{"seq":1,"next_by_subj":">","batch":100}', f"{wire.inbox}.x")
    scene.until_it_trains_on()
    wire.close()


@attempt(NODE, "ask for whole streams over all connections, read no answer", "7 connections, 64 MB each at most")
def never_reads_on_all_connections(scene: Scene) -> Any:
    server = scene.info.children["nats"].pid
    wires: list[Wire] = []
    before = _resident_bytes(server)
    with contextlib.suppress(Refused):
        while len(wires) < 100:
            wires.append(scene.as_outsider())
    assert 0 < len(wires) <= 7, "the agent of the node has one"
    for wire in wires:
        with contextlib.suppress(Refused):
            for _ in range(2_000):
                wire.send("$JS.API.DIRECT.GET.METRICS", b'{"seq":1,"next_by_subj":">","batch":1000}', f"{wire.inbox}.x")
    scene.until_it_trains_on()
    # What it keeps, and as much again until its collector looks.
    assert _resident_bytes(server) - before < 2 * 8 * (64 << 20)
    for wire in wires:
        wire.close()
    scene.cluster.until("the server has noticed that these have ended", lambda: _is_admitted(scene))


def _is_admitted(scene: Scene) -> bool:
    try:
        scene.as_outsider().close()
    except Refused:
        return False
    return True


def _resident_bytes(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@attempt(NODE, "ask for code as the operator", "an answer in its own turn")
def asks_for_code_as_the_operator(scene: Scene) -> Any:
    wire, watch = scene.as_outsider(), scene.wire("operator")
    watch.subscribe(CODE_REQUESTS)
    watch.subscribe(f"{CODE_REQUESTS}.*")
    watch.flush()
    answer = wire.ask(CODE_REQUESTS, b"{}")
    assert b'"accepted":false' in answer.body, answer
    assert [message.subject for message in watch.flush()] == [code_requests_of(scene.outsider)]
    wire.close()
    watch.close()
    return answer


@attempt(NODE, "ask 5000 times for code that is nowhere", "another node is answered amid them")
def asks_for_code_without_end(scene: Scene) -> Any:
    wire, other = scene.as_outsider(), scene.wire(node_user(scene.members[0]))
    body = json.dumps({"request": "offercode", "id": uuid7(), "asked_by": "nobody", "version": "0" * 64}).encode()
    answers = f"{wire.inbox}.flood"
    for _ in range(5_000):
        wire.send(code_requests_of(scene.outsider), body, answers)
    # The last of them has reached the server, and so the controller.
    wire.ask(f"{ROOT}.streaminfo.EVIDENCE")
    answer = other.ask(code_requests_of(scene.members[0]), body)
    assert json.loads(answer.body)["accepted"] is False, answer
    wire.flush()
    # Its next one is behind those that still wait.
    wire.ask(code_requests_of(scene.outsider), body)
    assert wire.flush(), "the flood was over before the other node was answered"
    wire.close()
    other.close()
    scene.until_it_trains_on()
    return answer
