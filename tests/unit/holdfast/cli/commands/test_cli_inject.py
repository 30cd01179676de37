"""`holdfast inject`: what it refuses, and how it says so."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

import holdfast.cli.commands.cluster.inject as command
from holdfast.cli.connect import bus
from holdfast.cli.main import main
from holdfast.clock import system_now
from holdfast.embedded.layout import ClusterInfo, ClusterLayout, Ports
from holdfast.exit_codes import NOT_PERMITTED
from holdfast.faults.fault import FaultRefused
from holdfast.faults.helpers import Helper
from holdfast.faults.injections import Injection, InjectionLog
from holdfast.faults.requirements import Requirement
from holdfast.fresh_ids import uuid7

INFO = ClusterInfo(
    version="1",
    pid=1,
    ports=Ports(postgres=1, nats=2, nats_monitor=3),
    nats_url="nats://127.0.0.1:1",
    nats_monitor_url="http://x",
    database_urls={},
    nodes=["node-0", "node-1"],
)


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterLayout:
    """A cluster that runs and allows faults, as its directory tells it."""
    layout = ClusterLayout(tmp_path / "cluster")
    layout.create()
    layout.write_info(msgspec.structs.replace(INFO, allows_faults=True))
    monkeypatch.setattr(command, "is_running", lambda _: True)
    return layout


def inject(layout: ClusterLayout, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["inject", "--dir", str(layout.root), *arguments])


def test_a_cluster_that_was_not_started_for_it_is_not_touched(layout: ClusterLayout) -> None:
    layout.write_info(INFO)
    told = inject(layout, "kill-rank", "--rank", "0")
    assert told.exit_code == NOT_PERMITTED
    assert "does not allow faults" in told.output and "--allow-faults" in told.output


def test_a_cluster_that_does_not_run_is_not_touched(layout: ClusterLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "is_running", lambda _: False)
    told = inject(layout, "kill-rank", "--rank", "0")
    assert told.exit_code == 1 and "is not running: start it with" in told.output


def test_a_cluster_elsewhere_is_not_touched() -> None:
    urls = {"HOLDFAST_NATS_URL": "nats://127.0.0.1", "HOLDFAST_DATABASE_URL": "postgresql://127.0.0.1"}
    told = CliRunner().invoke(main, ["inject", "kill-rank", "--rank", "0"], env=urls)
    assert told.exit_code == 1 and "a cluster of this machine only" in told.output


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        ((), 2, "give a FAULT"),
        (("fire",), 1, "there is no fault 'fire'"),
        (("kill-rank",), 2, "targets a rank: name it with --rank (running: none)"),
        (("kill-rank", "--rank", "3"), 1, "no rank 3 runs on this machine; there are: no ranks at all"),
        (("lose-node",), 2, "targets a node: name it with --node (node-0, node-1)"),
        (("lose-node", "--node", "node-9"), 1, "the nodes are node-0, node-1"),
        (("lose-node", "--node", "../x"), 1, "is not a valid name"),
        (("lose-node", "--node", "node-1", "--rank", "0"), 2, "omit --rank and --job"),
        (("xid", "-o", "79"), 2, "give NAME=VALUE"),
        (("lose-node", "--node", "node-1", "--for", "soon"), 2, "is not a duration"),
        (("--undo", "lose-node"), 1, "no fault lose-node is active; active are: none"),
        (("--undo",), 0, "no fault is active"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(
    layout: ClusterLayout, arguments: tuple[str, ...], code: int, why: str
) -> None:
    told = inject(layout, *arguments)
    assert told.exit_code == code and why in told.output, told.output


def test_what_the_machine_lacks_is_said(layout: ClusterLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "lacking", lambda need: f"no {need.value} for the likes of you")
    told = inject(layout, "xid")
    assert told.exit_code == 1 and "no kernel log for the likes of you" in told.output
    listed = json.loads(inject(layout, "--list", "--json").output)
    (xid,) = (fault for fault in listed["faults"] if fault["fault"] == "xid")
    assert xid["lacking"] == [f"no {Requirement.KERNEL_LOG} for the likes of you"]
    assert xid["options"] == {"xid": 79, "pci": "0000:3b:00"}


def test_without_a_bus_to_record_it_nothing_is_done(layout: ClusterLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "CONNECT_S", 0.1)
    told = inject(layout, "service-down", "-o", "port=1")
    assert told.exit_code == 1 and "no usable NATS server" in told.output, told.output
    assert not layout.faults.exists()


async def not_said(*_: object) -> None:
    """The history has it."""


def test_a_fault_for_a_time_is_undone_though_nobody_reads_what_it_says(
    layout: ClusterLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(Helper, "do", lambda _: None)
    monkeypatch.setattr(command, "_publish", not_said)
    monkeypatch.setattr(command, "_print", closed)
    inject(layout, "service-down", "-o", "port=1", "--for", "1s")
    assert not InjectionLog(layout).all()


def test_a_fault_that_cannot_be_undone_keeps_no_other_in_force(
    layout: ClusterLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout.faults.mkdir()
    record = InjectionLog(layout)
    ids = [uuid7(unix_ms=number) for number in (1, 2)]
    for id in ids:
        one = Injection(id=id, fault="service-down", at=system_now(), by="me", steps=(Helper(mark=id, module="x"),))
        (layout.faults / f"{id}.json").write_bytes(msgspec.json.encode(one))
    undo = InjectionLog.undo

    def failing(self: InjectionLog, injected: Injection) -> None:
        if injected.id == ids[1]:
            raise FaultRefused("it stays")
        undo(self, injected)

    monkeypatch.setattr(InjectionLog, "undo", failing)
    monkeypatch.setattr(command, "_publish", not_said)
    told = inject(layout, "--undo")
    assert told.exit_code == 1 and "it stays" in told.output
    assert [one.id for one in record.all()] == [ids[1]]
