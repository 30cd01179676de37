"""Golden traces: a script of inputs, and under each what was decided, in words.

    # comment
    > 1.5 process_exited node=a rank=0 signal=9 step=7 steps_done=7
    < incident_opened a: rank 0 on a was killed by signal 9
    = running, generation 1

Lines with `>` are inputs (seconds since the start, type, fields); the lines below them are what comes out. With
`pytest --rewrite` the outputs are rewritten: read the difference before committing it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from holdfast.code.manifest import short
from holdfast.events import EVENT_TYPES, Decision, Event
from holdfast.events.parts.job import CheckResult, Grant, NodeFacts
from holdfast.events.parts.ranks import RankException, RankProgress
from holdfast.ids import named_id
from holdfast.orders.node import NodeOrder

START = datetime(2026, 1, 1, tzinfo=UTC)


class Input(msgspec.Struct, frozen=True):
    """One input line."""

    at: datetime
    kind: str
    words: tuple[str, ...]
    fields: dict[str, str]
    id: str


def play(path: Path, step: Callable[[Input], list[str]], rewrite: bool) -> None:
    """Run a trace; `step` handles one input and returns the lines that come out of it."""
    written: list[str] = []
    number = 0
    for line in path.read_text().splitlines():
        if line.startswith(("<", "=")):
            continue
        written.append(line)
        if line.startswith(">"):
            number += 1
            written.extend(step(_parse(line, number)))
    text = "\n".join(written) + "\n"
    if rewrite:
        path.write_text(text)
    assert text == path.read_text(), "the decisions differ from the trace; --rewrite if that is meant"


def _parse(line: str, number: int) -> Input:
    seconds, kind, *rest = shlex.split(line[1:])
    fields = dict(word.split("=", 1) for word in rest if "=" in word)
    at = START + timedelta(seconds=float(seconds))
    return Input(at, kind, tuple(word for word in rest if "=" not in word), fields, named_id(at, number))


def grant(node: str, epoch: int = 1, instance: str | None = None) -> Grant:
    return Grant(
        node=node, epoch=epoch, instance=instance, address=f"10.0.0.{ord(node[-1])}", store_ports=(29500, 29501)
    )


FACTS = NodeFacts(
    address="10.0.0.1", hostname="host", boot_id="b", store_ports=(29500,), cpus=8, memory_bytes=1 << 34, version="test"
)


def event_of(given: Input, **defaults: Any) -> Any:
    """The event that an input line describes; what it leaves out comes from `defaults`."""
    kind = EVENT_TYPES[given.kind]
    fields: dict[str, Any] = {"id": given.id, "at": given.at, "source": "trace", **defaults, **given.fields}
    if "exception" in fields:
        name, _, message = fields["exception"].partition(": ")
        fields["exception"] = RankException(type=name, message=message, traceback=f"Traceback ...\n{name}: {message}")
    if "instance" in fields:
        fields["instance"] = _instance(fields["instance"])
    if kind.__name__ == "NodesGranted":
        fields["grants"] = [_granted(word) for word in given.words]
    if kind.__name__ == "HangFound":
        fields |= {"since": given.at, "nodes": list(given.words), "trace": given.id}
        fields["is_machine"] = "machine" in fields
        fields["is_by_signal"] = fields.get("machine") == "signal"
        fields = {"sign": "waiting", "still_s": 5.0, "limit_s": 3.0, "phase": "train", "confidence": 0.9} | fields
        fields["scope"] = {0: "nobody", 1: "machine"}.get(len(given.words), "group")
        idle = [node for node in str(fields.get("idle", "")).split(",") if node]
        fields["idle"] = [{"node": node, "measure": "busy", "text": f"GPU 1 on {node} runs no kernel"} for node in idle]
        if "ranks" in fields:
            fields["ranks"] = [int(rank) for rank in str(fields["ranks"]).split(",") if rank.isdigit()]
    if kind.__name__ == "FailSlowLocated":
        links = [link.split("-") for link in str(fields.pop("links", "")).split(",") if link]
        fields |= {"asked": given.id, "nodes": list(given.words), "links": links, "pace_s": 2.0, "healthy_s": 1.0}
        fields["one_of"] = [node for node in str(fields.get("one_of", "")).split(",") if node]
        fields = {"slowdown": 2.0, "is_validated": not fields["one_of"], "summary": "it is slow"} | fields
    if "at_fault" in fields:
        fields["at_fault"] = [{"node": fields["at_fault"], "symptom": "gpu", "reason": "gemm failed"}]
    if kind.__name__ == "TelemetryAnomaly":
        fields = {"by": "metrics", "nodes": list(given.words), "reason": "unlike healthy training"} | fields
    for name in ("only", "peers", "group", "keeps"):
        if name in fields:
            fields[name] = fields[name].split(",")
    if kind.__name__ == "NodesReleased":
        fields["nodes"] = list(given.words)
        fields["departed"] = [_instance(life) for life in str(fields.get("departed", "")).split(",") if life]
    if kind.__name__ == "NodeRegistered":
        fields["facts"] = FACTS
    if kind.__name__ == "NodeInspected":
        status = given.words[0] if given.words else "ok"
        fields["checks"] = [CheckResult(name="disk", status=status, detail="full" if status == "failed" else "")]
    if "finished_ranks" in fields:
        fields["finished_ranks"] = [int(rank) for rank in fields["finished_ranks"].split(",")]
    if "missing" in fields:
        fields["missing_ranks"] = [int(rank) for rank in fields.pop("missing").split(",")]
    if kind.__name__ == "Progress" and "step" in fields:
        fields["ranks"] = [RankProgress(rank=0, step=int(fields["step"]), phase="forward")]
    for name in ("exited_at", "completed_at", "last_heard_at"):
        if name in kind.__struct_fields__:
            fields.setdefault(name, given.at)
    if kind.__name__ == "ReplayResult":
        replay = {"first": fields.pop("first", 47), "last": fields.pop("last", 66), "digest": fields["digest"]}
        if "digests" in fields:
            replay["digests"] = fields.pop("digests").split(",")
        if "bad_step" in fields:
            replay["bad_step"] = fields.pop("bad_step")
        fields["replay"] = replay
    if issubclass(kind, Decision):
        fields.setdefault("reason", "trace")
    wanted = {name: value for name, value in fields.items() if name in kind.__struct_fields__}
    plain = msgspec.to_builtins(wanted)
    return msgspec.convert({**plain, "type": given.kind}, kind, strict=False)


def _instance(life: str) -> str:
    """The instance of a life of an agent; traces number them: i1, i2, ..."""
    return f"{int(life[1:]):08x}-0000-7000-8000-000000000000"


def _life(instance: str) -> str:
    return f"i{int(instance.partition('-')[0], 16)}"


def _granted(word: str) -> Grant:
    """`a`, `a@2` at the second epoch, `a@2:i3` while its agent lived for the third time."""
    place, _, life = word.partition(":")
    node, _, epoch = place.partition("@")
    return grant(node, int(epoch or 1), _instance(life) if life else None)


def told(event: Event) -> str:
    """An event as one line."""
    extra = {
        "nodes_requested": "count",
        "generation_started": "nodes",
        "incident_opened": "symptom",
        "incident_closed": "outcome",
        "job_finished": "outcome",
        "nodes_released": "nodes",
        "nodes_awaited": "available",
        "node_lost": "silent_s",
        "deadline_passed": "awaited",
        "backups_planned": "protects",
        "step_restorable": "step",
        "hot_update": "number",
        "rollback": "number",
        "code_judged": "verdict",
        "shared_fault_found": "thing",
        "shared_fault_over": "thing",
    }.get(event.type)
    parts = [f"< {event.type}"]
    if event.node:
        parts.append(event.node)
    if event.type == "node_state_changed":
        parts.append(f"{event.old_state or '-'} -> {event.new_state}")  # type: ignore[attr-defined]
    if event.type == "nodes_granted":
        grants = event.grants  # type: ignore[attr-defined]
        parts.append(f"to {event.job}: " + " ".join(f"{grant.node}@{grant.epoch}" for grant in grants))
    if event.type == "replay_started":
        groups = " | ".join(" ".join(group) for group in event.groups)  # type: ignore[attr-defined]
        parts.append(f"{event.phase}: {groups} as {event.mesh} until step {event.until_step}")  # type: ignore[attr-defined]
    if event.type == "incident_diagnosed":
        words = (event.symptom, event.proof)  # type: ignore[attr-defined]
        parts.append(f"[{' '.join(filter(None, words))}]" + (f" by {event.rule}" if event.rule else ""))  # type: ignore[attr-defined]
    if event.type == "replay_ended":
        parts.append(f"[{' '.join(event.suspects) or 'nobody'}]")  # type: ignore[attr-defined]
    if event.type == "eviction" and not event.blocked_for_s:  # type: ignore[attr-defined]
        parts.append("(not blocked)")
    if together := getattr(event, "together", ()):
        parts.append(f"(one of {' '.join(together)})")
    if extra:
        value = getattr(event, extra)
        parts.append("[" + (" ".join(value) if isinstance(value, tuple) else str(value)) + "]")
    if (at_least := getattr(event, "at_least", None)) is not None:
        enough = f"{event.enough} at once, " if event.type == "nodes_requested" else ""  # type: ignore[attr-defined]
        parts.append(f"({enough}{at_least} after {event.last_call_s:g} s)")  # type: ignore[attr-defined]
    if event.type == "nodes_requested" and event.only:  # type: ignore[attr-defined]
        parts.append("only " + " ".join(event.only))  # type: ignore[attr-defined]
    if witnesses := getattr(event, "witnesses", 0):
        parts.append(f"with {witnesses} witness{'es'[: 2 * (witnesses > 1)]}")
    if departed := getattr(event, "departed", ()):
        parts.append(f"(shut down: {' '.join(map(_life, departed))})")
    if kept := getattr(event, "keeps", ()):
        parts.append(f"keeping {' '.join(kept)}")
    if missing := getattr(event, "missing", ""):
        parts.append(f"because {missing}")
    if reason := getattr(event, "reason", ""):
        parts.append(f"because {reason}")
    return " ".join(parts)


def ordered(order: NodeOrder) -> str:
    """An order as one line."""
    fence = f"{order.node} @{order.epoch} generation {order.generation}"
    if order.placement is None:
        return f"< order {fence}: nothing"
    ranks = order.placement.ranks
    instead = f", in the place of {order.supersedes}" if order.supersedes else ""
    store = f"{order.placement.master_addr}:{order.placement.master_port}"
    limit = (
        f", restoring at most {order.placement.restore_at_most}" if order.placement.restore_at_most is not None else ""
    )
    limit += ", not from scratch" if order.placement.refuse_scratch else ""
    limit += ", if need be from scratch" if order.placement.job.allow_scratch else ""
    what = "ranks" if order.placement.purpose == "train" else f"{order.placement.purpose}, ranks"
    if order.placement.warm_up:
        limit += ", warm-up with devices" if order.placement.warm_up.tests_devices else ", warm-up"
    code = f", code {short(order.placement.code_version)}" if order.placement.code_version else ""
    return f"< order {fence}: {what} {ranks.start}-{ranks.stop - 1}, store {store}{limit}{code}{instead}"
