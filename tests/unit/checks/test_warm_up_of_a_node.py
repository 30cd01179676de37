"""The warm-up of one node: real paths, a real product, real sockets to a neighbour in another process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch._C._distributed_c10d import TCPStore

from holdfast.engines.checks.suites import Stage
from holdfast.engines.checks.warm_up import JobPath, WarmUpPlan
from holdfast_checks import warm_up
from holdfast_checks.node_tests import sockets
from holdfast_checks.result import StageTask, WorkerContext

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def plan(store: TCPStore | None, rank: int = 0, **fields: Any) -> WarmUpPlan:
    default: dict[str, Any] = {"nodes": 1, "devices": 0, "paths": (), "limit_s": 5.0}
    return WarmUpPlan(
        run="j/1",
        node=f"node-{rank}",
        node_rank=rank,
        address="127.0.0.1",
        store_host="127.0.0.1",
        store_port=store.port if store else 1,
        **(default | fields),
    )


def results_of(one: WarmUpPlan) -> list[dict[str, Any]]:
    """All results; what passed is folded into the end."""
    found: list[dict[str, Any]] = []
    warm_up.run(one, found.append)
    assert found[-1]["test"] == "end" and found[-1]["results"] == len(found) - 1
    return [*found[:-1], *found[-1]["folded"]]


def outcome(results: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(one["test"], one.get("status", "passed"), one.get("device", "")) for one in results]


def test_paths_are_there_or_not(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    paths = (
        JobPath(path=str(tmp_path), use="works"),
        JobPath(path=str(tmp_path / "jobs" / "j"), use="writes"),
        JobPath(path=str(tmp_path / "data"), use="data"),
        JobPath(path=str(tmp_path / "missing"), use="data"),
    )
    found = results_of(plan(None, paths=paths))
    assert sorted(outcome(found)) == sorted(
        [
            ("paths", "failed", str(tmp_path / "missing")),
            ("paths", "passed", str(tmp_path)),
            ("paths", "passed", str(tmp_path / "jobs" / "j")),
            ("paths", "passed", str(tmp_path / "data")),
        ]
    )
    failure, *_ = found
    assert failure["detail"] == f"{tmp_path / 'missing'}: No such file or directory"
    digests = {one["device"]: one["digest"] for one in found[1:]}
    assert digests[str(tmp_path / "data")] == f"an empty directory {digests[str(tmp_path)]}"


def test_a_path_that_hangs_is_late_and_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "hangs")
    monkeypatch.setattr(warm_up, "PATH_S", 0.3)

    def hang(path: Path) -> str:
        return (tmp_path / "hangs").read_text() if path.name == "mount" else "on a disk"

    monkeypatch.setattr("holdfast_checks.node_tests.paths._place", hang)
    (tmp_path / "mount").mkdir()
    paths = tuple(JobPath(path=str(path), use="works") for path in (tmp_path / "mount", tmp_path))
    found = results_of(plan(None, paths=paths))
    assert outcome(found) == [("paths", "failed", str(tmp_path / "mount")), ("paths", "passed", str(tmp_path))]
    assert "has not answered for 0.3 s" in found[0]["detail"]


def test_devices_are_tested_if_the_plan_says_so() -> None:
    # In a process like the zygote: the library of products must have no threads where it is forked.
    one = ONE_THREAD | {"PLAN": msgspec.json.encode(plan(None, devices=1, limit_s=60.0)).decode()}
    code = "import json, os, sys, msgspec, torch; from holdfast_checks import devices, warm_up as w; found = []; "
    code += "w.run(msgspec.json.decode(os.environ['PLAN'], type=w.WarmUpPlan), found.append); devices.be_exact(); "
    code += "print(torch.are_deterministic_algorithms_enabled(), 'torch._inductor.config' in sys.modules); "
    code += "print(json.dumps(found))"
    ran = subprocess.run([sys.executable, "-c", code], env=os.environ | one, capture_output=True, text=True, check=True)
    *_, exact, results = ran.stdout.splitlines()
    assert exact == "True False", "settings of the compiler, which take a second to import, are not needed"
    (end,) = json.loads(results)
    (found,) = end["folded"]
    assert found["test"] == "devices" and found["unit"] == "GFLOP/s" and found["digest"], ran.stdout


def test_neighbours_meet_over_ports_of_their_own() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found: dict[int, list[dict[str, Any]]] = {}
    threads = [
        threading.Thread(target=lambda rank=rank: found.update({rank: results_of(plan(store, rank, nodes=3))}))
        for rank in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    met = {(rank, one["peers"][0]) for rank, own in found.items() for one in own if one["test"] == "sockets"}
    assert met == {(rank, f"node-{other}") for rank in range(3) for other in range(3) if rank != other}


def test_a_neighbour_that_does_not_come_shows_nothing_and_one_that_refuses_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(sockets, "ANSWER_S", 1.5)
    store.set("warm-up/j/1/at/1", "node-1 127.0.0.1 1")
    found = results_of(plan(store, 0, nodes=3, limit_s=2.0))
    told = {tuple(one.get("peers", ())): one.get("status", "passed") for one in found}
    assert told == {("node-1",): "failed", (): "skipped"}
    assert "Connection refused" in found[0]["detail"]


def test_a_store_that_comes_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    refused, stores = threading.Event(), list[TCPStore]()

    def come_late() -> None:
        assert refused.wait(30)
        stores.append(TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False))
        stores[0].set("warm-up/j/1/at/1", "node-1 127.0.0.1 1")
        stores[0].set("warm-up/j/1/done/1", "1")

    class Connecting:
        """The module as it is, and what notices that a connection was refused."""

        def __getattr__(self, name: str) -> Any:
            return getattr(socket, name)

        def create_connection(self, *args: Any, **named: Any) -> socket.socket:
            try:
                return socket.create_connection(*args, **named)
            except ConnectionRefusedError:
                refused.set()
                raise

    thread = threading.Thread(target=come_late)
    thread.start()
    context = WorkerContext(
        run="j/1",
        node="node-0",
        node_rank=0,
        nodes=2,
        workers=1,
        store_host="127.0.0.1",
        store_port=port,
        burn_s=0.02,
        options={"address": "127.0.0.1"},
    )
    monkeypatch.setattr(sockets, "socket", Connecting())
    (found,) = sockets.run(StageTask(context=context, stage=Stage(test="sockets", limit_s=30.0)), lambda: None)
    thread.join()
    assert found.peers == ("node-1",)


def test_a_store_that_is_not_reached_is_the_meeting() -> None:
    (found,) = results_of(plan(None, nodes=2, limit_s=2.0))
    assert (found["test"], found["status"]) == ("meeting", "failed")
    assert "Connection refused" in found["detail"]
