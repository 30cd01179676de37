"""The bus password of a service. It publishes events; requests are the operator's to make."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from attempts.nats_wire import Refused, Wire
from attempts.scene import Scene
from attempts.table import SERVICE_BUS, attempt, attempts
from holdfast.fresh_ids import uuid7
from holdfast.requests import CODE_REQUESTS, CONTROLLER_REQUESTS, STANDBY_REQUESTS, StopJob
from holdfast.subjects import ROOT

USER = "analyzer"
PLACE = f"{ROOT}.deadletter.attempt"
"""Where a service may have any body stored."""


def stop(job: str) -> bytes:
    return msgspec.json.encode(StopJob(id=uuid7(), asked_by="attacker", job=job))


def unheard(scene: Scene, wire: Wire) -> None:
    """Wait until the controller has handled whatever reached it: it answers requests in order."""
    wire.flush()
    answer = scene.operator.ask(CONTROLLER_REQUESTS, stop("no-such-job"))
    assert b"no-such-job" in answer.body
    phases = scene.sql_as_operator("select phase from controller.jobs where key = $1", scene.job.name)
    assert [row["phase"] for row in phases] == ["running"]


@attempt(SERVICE_BUS, "store a message and read it", "may: it is stored, and read by its position")
def stores(scene: Scene) -> Any:
    wire = scene.wire(USER)
    stored = json.loads(wire.ask(PLACE, b"mine").body)
    read = wire.ask("$JS.API.DIRECT.GET.DEADLETTERS", json.dumps({"seq": stored["seq"]}).encode())
    assert read.body == b"mine"
    wire.close()
    return read


@attempts(
    SERVICE_BUS,
    "refused",
    {
        "stop the job": CONTROLLER_REQUESTS,
        "have the controller keep code": CODE_REQUESTS,
        "release a node": STANDBY_REQUESTS,
    },
)
def asks(scene: Scene, argument: str) -> Any:
    wire = scene.wire(USER)
    with pytest.raises(Refused, match="Permissions Violation for Publish"):
        pytest.fail(str(wire.ask(argument, stop(scene.job.name))))
    unheard(scene, wire)
    wire.close()


@attempts(
    SERVICE_BUS,
    "not taken for a request",
    {
        "stop the job by the answer to a question about a message": "answer",
        "stop the job by what a consumer delivers": "consumer",
        "stop the job by what a consumer is asked for": "pulled",
    },
)
def has_it_asked(scene: Scene, argument: str) -> Any:
    wire, api = scene.wire(USER), "$JS.API"
    stored = json.loads(wire.ask(PLACE, stop(scene.job.name)).body)["seq"]
    deliver = {"deliver_subject": CONTROLLER_REQUESTS} if argument == "consumer" else {}
    config = {"name": "attempt", "deliver_policy": "last", "ack_policy": "explicit", "filter_subject": PLACE, **deliver}
    create = json.dumps({"stream_name": "DEADLETTERS", "config": config}).encode()
    if argument == "answer":
        wire.send(f"{api}.DIRECT.GET.DEADLETTERS", json.dumps({"seq": stored}).encode(), CONTROLLER_REQUESTS)
    else:
        made = wire.ask(f"{api}.CONSUMER.CREATE.DEADLETTERS.attempt.{PLACE}", create)
        assert b'"error"' not in made.body, made
        if argument == "pulled":
            wire.send(f"{api}.CONSUMER.MSG.NEXT.DEADLETTERS.attempt", b"1", CONTROLLER_REQUESTS)
    wire.flush()
    unheard(scene, wire)
    if argument != "answer":
        wire.ask(f"{api}.CONSUMER.DELETE.DEADLETTERS.attempt")
    wire.close()
