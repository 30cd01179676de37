"""The analysis of a hang, at scale: stacks of 9,600 and 100,000 ranks, flight-recorder graphs of 32,768 ranks.

    python bench/analyzer.py            some ten minutes, most of it to make the job of 32,768 ranks
    python bench/analyzer.py --quick    1,000 ranks each
    HOLDFAST_FIELD_DATA=... python bench/analyzer.py    and the answers on dumps from the field

Input is taken as it arrives: bytes for each rank. Reading them and judging are timed apart; memory is the growth of a
process of its own. Flight-recorder dumps are the library's own format, where every rank's dump lists all members of all
its groups (at 32,768 ranks some 220 kB, nearly all of it the list of the whole job).

PyTorch's analyser (`torch.distributed.flight_recorder`, the command `torchfrtrace`) gets the same dumps as pickles from
a directory; both take turns. What it says is: ranks that miss an operation that does not match; what Holdfast says is:
the ranks that hold up the job.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import pickle
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import machine
import msgspec
from flight_dumps import dump_of
from report import final_line, median, rounded, table, tell

from holdfast.engines.hang.dumps.flight_recorder import read_flight_recorder
from holdfast.engines.hang.graph.wait_for import judge_collectives
from holdfast.engines.hang.stacks.stack_groups import judge_stacks
from holdfast.events.parts.traces import ProcessStacks, RankTrace
from holdfast.topology import Mesh
from holdfast_proving.emulated_hangs.places import STUCK, WAITS, thread
from holdfast_proving.emulated_hangs.programs import megatron
from holdfast_proving.emulated_hangs.running import Faults, Run
from holdfast_proving.emulated_hangs.scenes import HungJob, Scene, observe

STACKS = ((9_600, 1.0), (100_000, 5.0))
GRAPH = (32_768, 5.0)
TURNS = 5
WHOLE = b"@@whole@@"


def mesh_of(ranks: int) -> Mesh:
    pp, tp = 8, 8 if ranks % 64 == 0 else 4
    return Mesh(("pp", "dp", "tp"), (pp, ranks // pp // tp, tp))


def write_stacks(file: Path, ranks: int) -> None:
    """A line of JSON for each rank: one stands in user code, its pipeline waits elsewhere than the others."""
    mesh = mesh_of(ranks)
    faulty = ranks * 2 // 3
    where = mesh.coordinates(faulty)
    encode = msgspec.json.Encoder().encode
    with file.open("wb") as out:
        for rank in range(ranks):
            stage = mesh.coordinates(rank)["pp"]
            place = "recv_forward" if stage > where["pp"] else "send_forward_recv_backward"
            calls = STUCK["user_code"] if rank == faulty else WAITS["experts" if stage == where["pp"] else place]
            main = thread(calls, "megatron")
            process = ProcessStacks(rank=rank, node=f"node-{rank // 8}", pid=rank, threads=(main,), state="S")
            out.write(encode(process) + b"\n")


def write_dumps(file: Path, ranks: int) -> bytes:
    """A flight-recorder dump on a line for each rank; the list of all ranks, which each has, is returned."""
    layout = megatron(8, ranks // 64, 8, 8, microbatches=2, steps=1, ranks_per_node=8)
    faulty = ranks // 2 + 3
    run = Run(layout, Faults(host_stops={faulty: len(layout.programs[faulty]) // 2}))
    run.until_it_hangs()
    chance = random.Random(1)
    seen = observe(HungJob("deadlock in user code", 1, Scene(chance, layout, run.faults, {faulty}), run), "strangers")
    members = {str(number): str(ranks) for number, ranks in enumerate(layout.members)}
    whole = members["0"].encode()
    members["0"] = WHOLE.decode()
    encode = msgspec.json.Encoder().encode
    with file.open("wb") as out:
        for trace in seen.traces:
            out.write(encode(dump_of(trace, members)) + b"\n")
    return whole


def stacks_judged(file: Path, ranks: int) -> dict[str, object]:
    lines = file.read_bytes().splitlines()
    decode = msgspec.json.Decoder(ProcessStacks).decode
    before = forget_peak()
    watch = Watch()
    processes = [decode(line) for line in lines]
    watch.lap()
    verdict = judge_stacks(processes, mesh_of(ranks), 8)
    watch.lap()
    return _figures(f"stacks of {ranks:,} ranks", sum(map(len, lines)), watch, before) | {
        "named": [rank for each in verdict.blamed for rank in each.ranks][:4]
    }


def dumps_judged(file: Path, whole: bytes, ranks: int) -> dict[str, object]:
    size = 0
    traces: list[RankTrace] = []
    before = forget_peak()
    watch = Watch()
    with file.open("rb") as lines:
        for rank, line in enumerate(lines):
            dump = line.replace(WHOLE, whole)
            size += len(dump)
            watch.skip()
            traces += read_flight_recorder(dump, f"rank_{rank}")
            watch.add()
    watch.lap()
    verdict = judge_collectives(traces, None, 8)
    watch.lap()
    return _figures(f"dumps of {ranks:,} ranks", size, watch, before) | {
        "named": [rank for each in verdict.blamed for rank in each.ranks][:4]
    }


class Watch:
    """Laps in wall and in CPU seconds: a busy machine stretches the first, not the second."""

    def __init__(self) -> None:
        self.laps: list[tuple[float, float]] = []
        self._lap = (0.0, 0.0)
        self.skip()

    def skip(self) -> None:
        self._since = (time.perf_counter(), time.process_time())

    def add(self) -> None:
        now = (time.perf_counter(), time.process_time())
        self._lap = (self._lap[0] + now[0] - self._since[0], self._lap[1] + now[1] - self._since[1])
        self._since = now

    def lap(self) -> None:
        self.add()
        self.laps.append(self._lap)
        self._lap = (0.0, 0.0)


def _figures(what: str, size: int, watch: Watch, before: int) -> dict[str, object]:
    (read_s, read_cpu_s), (judge_s, judge_cpu_s) = watch.laps
    return {
        "what": what,
        "input MB": rounded(size / 1e6, 1),
        "read s": rounded(read_s, 3),
        "judge s": rounded(judge_s, 3),
        "both s": rounded(read_s + judge_s, 3),
        "read CPU s": rounded(read_cpu_s, 3),
        "judge CPU s": rounded(judge_cpu_s, 3),
        "memory MiB": (_of_status("VmHWM") - before) // 1024,
    }


def forget_peak() -> int:
    """Have the kernel count this process's peak of resident memory again; what it has now, in KiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _of_status("VmRSS")


def _of_status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


def in_own_process(work: Callable[..., dict[str, object]], *args: object) -> dict[str, object]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, args)


def compared(dumps: dict[int, dict[str, Any]], turns: int) -> dict[str, object]:
    """Both analysers on one directory of pickles, in turns, each from the files to its answer."""
    with tempfile.TemporaryDirectory() as directory:
        for rank, dump in dumps.items():
            (Path(directory) / f"trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
        ours: list[float] = []
        theirs: list[float] = []
        for turn in range(turns):
            for one in (_ours, _theirs) if turn % 2 == 0 else (_theirs, _ours):
                began = time.perf_counter()
                said = one(directory)
                (ours if one is _ours else theirs).append(time.perf_counter() - began)
                if one is _ours:
                    our_answer = said
                else:
                    their_answer = said
    return {
        "ranks": len(dumps),
        "Holdfast s": rounded(median(ours), 4),
        "torchfrtrace s": rounded(median(theirs), 4),
        "Holdfast says": our_answer,
        "torchfrtrace says": their_answer,
    }


def _ours(directory: str) -> str:
    traces = [
        each
        for file in sorted(Path(directory).iterdir())
        for each in read_flight_recorder(file.read_bytes(), file.name)
    ]
    blamed = judge_collectives(traces, None, 8).blamed
    return _shown({rank for each in blamed for rank in each.ranks})


def _theirs(directory: str) -> str:
    import logging

    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig
    from torch.distributed.flight_recorder.components.loader import read_dir

    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            args = JobConfig().parse_args([directory, "--allow-incomplete-ranks", "-p", "trace_rank_"])
            details, version = read_dir(args)
            database = build_db(details, args, version)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it fails with is its answer
        return f"fails: {type(error).__name__}: {error}"[:60]
    finally:
        logging.disable(logging.NOTSET)
    return _shown({rank for each in database.collectives for rank in each.missing_ranks or ()})


def _shown(ranks: set[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:12]))
    return f"{shown}, ... ({len(ranks)})" if len(ranks) > 12 else shown or "nobody"


def from_the_field() -> Iterator[tuple[str, dict[int, dict[str, Any]]]]:
    folder = os.environ.get("HOLDFAST_FIELD_DATA")
    for file in sorted(Path(folder, "flight_recorder").glob("*.json")) if folder else ():
        dumps = json.loads(file.read_bytes())["dumps"]
        yield file.stem, {int(rank): dump for rank, dump in dumps.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1,000 ranks each")
    args = parser.parse_args()
    here = machine.describe()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "input"
        for ranks, aim_s in ((960, 0.1),) if args.quick else STACKS:
            tell(f"stacks of {ranks:,} ranks")
            write_stacks(file, ranks)
            rows.append(in_own_process(stacks_judged, file, ranks) | {"aim s": aim_s})
        ranks, aim_s = (1_024, 0.2) if args.quick else GRAPH
        tell(f"a job of {ranks:,} ranks")
        whole = write_dumps(file, ranks)
        tell(f"flight-recorder dumps of {ranks:,} ranks")
        rows.append(in_own_process(dumps_judged, file, whole, ranks) | {"aim s": aim_s})

        sides: list[dict[str, object]] = []
        for ranks in (64,) if args.quick else (64, 256, 1024):
            tell(f"beside torchfrtrace: {ranks} ranks")
            whole = write_dumps(file, ranks)
            lines = file.read_bytes().replace(WHOLE, whole).splitlines()
            sides.append({"dumps": "emulated"} | compared({n: json.loads(line) for n, line in enumerate(lines)}, TURNS))
        for name, dumps in from_the_field():
            sides.append({"dumps": name} | compared(dumps, TURNS))

    print(f"\n{machine.in_words(here)}, load {machine.load()}\n")
    table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    print()
    table(tuple(sides[0]), [tuple(row.values()) for row in sides])
    print()
    final_line(
        {"bench": "analyzer", "machine": here, "load": machine.load(), "scale": rows, "beside_torchfrtrace": sides}
    )


if __name__ == "__main__":
    main()
