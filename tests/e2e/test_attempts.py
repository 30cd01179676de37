"""What each position tries against a running cluster, and what it gets: the table of docs/security.md."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attempts import in_job, in_kernel, local_user, no_password, node, node_floods, readers, service_bus, with_token
from attempts.scene import Scene, scene
from attempts.table import ATTEMPTS, Attempt

from holdfast.node.kernel import started_ticks

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can run ranks, and attackers, as other users"),
]
POSITIONS = (local_user, no_password, node, node_floods, readers, service_bus, in_job, in_kernel, with_token)
PAGE = Path(__file__).parents[2] / "docs" / "attempts.md"
SECURITY = PAGE.with_name("security.md")
HEAD = """# Attempts: what was tried against a running cluster

A cluster as `holdfast up` makes it, as root, with the default `run_as`; a job trains on two nodes, the attacker has the
password of a third. `tests/e2e/test_attempts.py` makes each of these {count} attempts with real sockets, processes of
other users and SQL. After each, the operator looks: orders, streams, database, files and ranks are as before, and no
password and no secret of the job was received. In the end the job has trained on, without an incident. "May" is what
the position is trusted with. What is not prevented is in [security.md](security.md), under "Open"."""


@pytest.fixture(scope="module")
def attacked() -> Iterator[Scene]:
    with scene() as made:
        yield made


def _name(attempt: Attempt) -> str:
    return re.sub(r"\W+", "-", f"{attempt.position} {attempt.tried}")


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=map(_name, ATTEMPTS))
def test_an_attempt_gets_what_the_table_says(attacked: Scene, attempt: Attempt) -> None:
    before = attacked.seen
    received = _flat(attempt.act(attacked))
    leaked = [secret[:6] for secret in attacked.guarded if secret in received]
    assert not leaked, f"received secrets that begin with {leaked}"
    assert attacked.look() == before


def test_the_page_has_the_table(request: pytest.FixtureRequest) -> None:
    page = as_page()
    if request.config.getoption("--rewrite"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page, "pytest --rewrite writes it again"
    missing = [line for line in summary() if line not in SECURITY.read_text().splitlines()]
    assert missing == [], "docs/security.md has other numbers"


def summary() -> list[str]:
    """The rows of the table in docs/security.md: the attempts of each position."""
    positions = [attempt.position for attempt in ATTEMPTS]
    allowed = [attempt.position for attempt in ATTEMPTS if attempt.is_allowed]
    return [
        f"| {position} | {positions.count(position) - allowed.count(position)} | {allowed.count(position)} |"
        for position in dict.fromkeys(positions)
    ]


def as_page() -> str:
    """The table as docs/attempts.md has it: a heading for each position, a line for each attempt."""
    lines = [HEAD.format(count=len(ATTEMPTS))]
    for position in dict.fromkeys(attempt.position for attempt in ATTEMPTS):
        mine = [attempt for attempt in ATTEMPTS if attempt.position == position]
        lines += ["", f"## {position[0].upper()}{position[1:]}", "", "| tries to | gets |", "|---|---|"]
        lines += [f"| {attempt.tried} | {attempt.gets} |" for attempt in mine]
    return "\n".join(lines) + "\n"


def test_training_went_on_and_nothing_was_evicted(attacked: Scene) -> None:
    attacked.until_it_trains_on()
    assert attacked.cluster.incidents(attacked.job) == []
    nodes = attacked.cluster.nodes()
    assert {name: node["state"] for name, node in nodes.items()} == {
        **dict.fromkeys(attacked.members, "active"),
        attacked.outsider: "standby",
    }
    assert not [name for name, node in nodes.items() if node["blocked_until"]]
    senders = {letter["subject"].rsplit(".", 1)[1] for letter in attacked.dead_letters()}
    assert senders == {attacked.outsider}, "only what a node published under its own name arrived at all"
    (attacked.drop / "finish").touch()
    assert attacked.job.exit_code() == 0
    assert attacked.left
    attacked.cluster.until("nothing is left of it", lambda: not [pid for pid in attacked.left if is_there(pid)])


def is_there(pid: int) -> bool:
    return started_ticks(pid) is not None


def _flat(received: Any) -> str:
    """Everything that was received, as text."""
    if isinstance(received, bytes):
        return received.decode(errors="replace")
    if isinstance(received, dict):
        return _flat([*received.keys(), *received.values()])
    if isinstance(received, list | tuple):
        return "\n".join(map(_flat, received))
    return str(received)
