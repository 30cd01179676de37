"""The faults there are, what can be set of them, where they are aimed; written down before they are done."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from holdfast.embedded.layout import ClusterInfo, ClusterLayout, Fabric, Ports
from holdfast.faults.fault import FaultOptions, FaultRefused, FaultScope, FaultStep
from holdfast.faults.injections import Injection, InjectionLog
from holdfast.faults.kinds.network import LinkDown
from holdfast.faults.registry import FAULTS, find_fault
from holdfast.faults.target import FaultTarget, RunningRank, TargetNotFound, TargetProcess, find_target, running_ranks
from holdfast.fresh_ids import uuid7
from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.symptoms import TABLE_ONE, Symptom

AT = datetime(2026, 11, 21, tzinfo=UTC)
INFO = ClusterInfo(
    version="1",
    pid=None,
    ports=Ports(postgres=1, nats=2, nats_monitor=3),
    nats_url="nats://x",
    nats_monitor_url="http://x",
    database_urls={},
    nodes=["node-0", "node-1"],
    allows_faults=True,
    fabric=Fabric(bridge="hf000000", subnet="198.18.0"),
)


@pytest.fixture
def layout(tmp_path: Path) -> ClusterLayout:
    layout = ClusterLayout(tmp_path / "cluster")
    layout.create()
    for node in INFO.nodes:
        (layout.node(node) / "ledgers").mkdir(parents=True)
    return layout


def write_ledger(layout: ClusterLayout, node: str, job: str, rank: int, pid: int) -> None:
    place = layout.node(node) / "ledgers" / job / "1-1" / f"rank-{rank}.ledger"
    place.parent.mkdir(parents=True, exist_ok=True)
    LedgerWriter(place, rank=rank, generation=1, pid=pid).close()


# --- what there is ---------------------------------------------------------------------------------


def test_every_row_of_table_1_but_a_change_of_code_can_be_made() -> None:
    ways = {fault.symptom for fault in FAULTS.values()}
    ways |= {find_fault("xid").symptom_with(find_fault("xid").configured({"xid": "48"}))}
    ways |= {find_fault("service-down").symptom_with(find_fault("service-down").configured({"speaks": "webhdfs"}))}
    assert set(TABLE_ONE) - ways == {Symptom.CODE_DATA_ADJUSTMENT}


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if name not in ("kill-worker", "kernel-line")])
def test_what_a_fault_will_do_can_be_written_down_and_read_again(layout: ClusterLayout, name: str) -> None:
    fault = FAULTS[name]
    me = TargetProcess.of(os.getpid())
    assert me is not None
    rank = RunningRank("job", 0, "node-0", me) if fault.at is FaultScope.RANK else None
    if reasons := [need for need in fault.needs if need.endswith("cgroup")]:
        from holdfast.faults.requirements import lacking

        if lacking(reasons[0]):
            pytest.skip(lacking(reasons[0]))
    steps = fault.plan(FaultTarget(uuid7(), layout, INFO, "node-0", rank), fault.configured({}))
    injected = Injection(id=uuid7(), fault=name, at=AT, by="me", steps=steps)  # type: ignore[arg-type]
    assert msgspec.json.decode(msgspec.json.encode(injected), type=Injection) == injected
    assert injected.lasts is bool(fault.undo)


def test_what_cannot_be_set_is_refused_with_what_can() -> None:
    with pytest.raises(FaultRefused, match=r"unknown field `cards`.*has the options xid=79, pci=0000:3b:00"):
        find_fault("xid").configured({"cards": "3"})
    with pytest.raises(FaultRefused, match=r"Expected `int`.*xid"):
        find_fault("xid").configured({"xid": "seventy-nine"})
    with pytest.raises(FaultRefused, match="has no options"):
        find_fault("kill-rank").configured({"signal": "9"})
    with pytest.raises(FaultRefused, match="there is no fault 'fire'; the faults are kill-rank, "):
        find_fault("fire")


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("xid", {"xid": "0"}, "is not the number of an Xid"),
        ("xid", {"pci": "3b:00\nNVRM: Xid"}, "is not a PCI address"),
        ("io-error", {"device": "../sda"}, "is not the name of a device"),
        ("kernel-line", {"text": "one\ntwo"}, "printable"),
        ("kernel-line", {"text": "x" * 1000}, "the kernel accepts 900"),
        ("slow-node", {"cores": "nan"}, "give 0.01 or more"),
        ("bit-flip", {"bit": "32"}, "give 0 to 31"),
        ("link-flap", {"times": "0"}, "times=1 to 1000"),
        ("slow-link", {"rate": "fast"}, "such as 500kbit"),
        ("cut", {"off": "node-0"}, "another node: node-1"),
        ("overload", {"burners": "0"}, "give 1 or more"),
        ("overload-node", {"burners": "0"}, "give 1 to 4096"),
        ("service-down", {"status": "200"}, "from 400 to 599"),
        ("disk-full", {"path": "/"}, "more than a drill should break"),
        ("disk-full", {"path": "/nowhere"}, "is not a directory"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(
    layout: ClusterLayout, name: str, options: dict[str, str], why: str
) -> None:
    fault = find_fault(name)
    me = TargetProcess.of(os.getpid())
    assert me is not None
    with pytest.raises(FaultRefused, match=why):
        fault.plan(
            FaultTarget(uuid7(), layout, INFO, "node-0", RunningRank("job", 0, "node-0", me)), fault.configured(options)
        )


def test_links_can_be_broken_only_where_nodes_have_some(layout: ClusterLayout) -> None:
    loopback = msgspec.structs.replace(INFO, fabric=None)
    with pytest.raises(FaultRefused, match="--allow-faults --namespaces"):
        find_fault("link-down").plan(FaultTarget(uuid7(), layout, loopback, "node-0"), FaultOptions())
    (step,) = find_fault("link-down").plan(FaultTarget(uuid7(), layout, INFO, "node-1"), FaultOptions())
    assert step == LinkDown(link="hf000000n1")


# --- where it is aimed -----------------------------------------------------------------------------


def test_a_rank_is_found_by_its_ledger(layout: ClusterLayout) -> None:
    write_ledger(layout, "node-0", "job", 0, os.getppid())
    write_ledger(layout, "node-1", "job", 1, os.getpid())
    found = find_target(uuid7(), layout, INFO, node=None, rank=1)
    assert (found.node, found.job, found.rank and found.rank.process.pid) == ("node-1", "job", os.getpid())
    assert [one.rank for one in running_ranks(layout, INFO)] == [0, 1]


def test_a_rank_that_is_gone_is_not_there(layout: ClusterLayout) -> None:
    write_ledger(layout, "node-0", "job", 0, 2**22 + 1)
    (layout.node("node-0") / "ledgers" / "job" / "1-1" / "rank-7.ledger").write_bytes(b"torn")
    with pytest.raises(TargetNotFound, match="no rank 0 runs on this machine; there are: no ranks at all"):
        find_target(uuid7(), layout, INFO, node=None, rank=0)


def test_a_rank_of_several_jobs_needs_the_job(layout: ClusterLayout) -> None:
    write_ledger(layout, "node-0", "one", 0, os.getpid())
    write_ledger(layout, "node-1", "two", 0, os.getpid())
    with pytest.raises(TargetNotFound, match="several jobs have a rank 0: name one of one, two with --job"):
        find_target(uuid7(), layout, INFO, node=None, rank=0)
    assert find_target(uuid7(), layout, INFO, node=None, rank=0, job="two").node == "node-1"
    with pytest.raises(TargetNotFound, match="no rank 0 of three runs"):
        find_target(uuid7(), layout, INFO, node=None, rank=0, job="three")
    with pytest.raises(TargetNotFound, match="there is no node node-7; the nodes are node-0, node-1"):
        find_target(uuid7(), layout, INFO, node="node-7", rank=None)


# --- what is on record -----------------------------------------------------------------------------

told: list[str] = []


class Told(FaultStep, frozen=True, kw_only=True, tag="told"):
    """Says what it does, and what is on record by then."""

    name: str
    directory: str
    fails: bool = False
    stays: bool = False

    def do(self) -> None:
        files = len(list(Path(self.directory).glob("*.json")))
        told.append(f"do {self.name} with {files} on record")
        if self.fails:
            raise OSError("no such luck")

    def undo(self) -> None:
        told.append(f"undo {self.name}")
        if self.stays:
            raise FaultRefused("`ip` failed")


def injection(layout: ClusterLayout, *fails: bool) -> Injection:
    told.clear()
    steps = tuple(
        Told(name=str(number), directory=str(layout.faults), fails=failing) for number, failing in enumerate(fails)
    )
    return Injection(id=uuid7(), fault="told", at=AT, by="me", steps=steps)  # type: ignore[arg-type]


def test_it_is_on_record_before_it_is_done_and_undone_backwards(layout: ClusterLayout) -> None:
    record, wanted = InjectionLog(layout), injection(layout, False, False)
    record.inject(wanted)
    record.undo(wanted)
    assert told == ["do 0 with 1 on record", "do 1 with 1 on record", "undo 1", "undo 0"]
    assert record.all() == []


def test_what_fails_half_way_is_taken_back(layout: ClusterLayout) -> None:
    with pytest.raises(FaultRefused, match="told: no such luck"):
        InjectionLog(layout).inject(injection(layout, False, True, False))
    assert told == ["do 0 with 1 on record", "do 1 with 1 on record", "undo 2", "undo 1", "undo 0"]
    assert not list(layout.faults.glob("*.json"))


def test_a_step_that_stays_keeps_no_other_from_being_undone(layout: ClusterLayout) -> None:
    record, wanted = InjectionLog(layout), injection(layout, False, False)
    steps = (wanted.steps[0], msgspec.structs.replace(wanted.steps[1], stays=True))  # type: ignore[type-var]
    wanted = msgspec.structs.replace(wanted, steps=steps)
    record.inject(wanted)
    with pytest.raises(FaultRefused, match=r"cannot be undone: `ip` failed"):
        record.undo(wanted)
    assert told[2:] == ["undo 1", "undo 0"]
    assert list(layout.faults.glob("*.json"))


def test_a_record_that_cannot_be_read_says_what_to_do(layout: ClusterLayout) -> None:
    layout.faults.mkdir()
    (layout.faults / "x.json").write_text("{")
    with pytest.raises(FaultRefused, match=r"x\.json cannot be read .* undo that by hand, then remove the file"):
        InjectionLog(layout).all()
