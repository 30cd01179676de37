"""A soak: random faults, one or two at a time, in a cluster that trains; then everything is compared and counted.

    python bench/chaos.py                        60 minutes of everything
    python bench/chaos.py --quick                two minutes
    python bench/chaos.py --seed 7 --minutes 10 --faults kill,"stop vault"
    python bench/chaos.py --namespaces           each node has a network of its own: links are cut and pulled, too

A job keeps every step in memory. In each round one or two processes are killed or stopped, a node is lost, a link
cut, a disk filled, a clock put forward or back; two faults are up to five seconds apart. A round is over when the job
trains, every process is ready and every incident closed. After each round and at the end `chaos_checks.py` compares
the record with what its own subscriber received, and the steps lost with what may be lost; at the end it compares
every loss with an undisturbed training, and looks for what `holdfast down` left behind. A violation is printed with
its evidence, and the exit code is 1.

The machine's clock is not touched: where there is a C compiler, wall clocks of single processes jump (chaos_clocks.py).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import asyncpg
import machine
from chaos_checks import (
    Database,
    Restore,
    Subscriber,
    Training,
    judge_events,
    judge_losses,
    leftovers,
    shared_memory,
)
from chaos_clocks import Clocks
from chaos_faults import Faults, Injected, NotNow, matching
from chaos_figures import Round, figures, show
from chaos_scene import CLOCKS, JOB, MEMBERS, NODES, SHAPE, STOP_S, fresh_cluster, judge_decisions, undisturbed
from launchers import FOREVER, WORKLOAD, Cluster, LauncherFailed, Place
from report import final_line, tell

from holdfast.embedded.control import Status, ask
from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import ClusterLayout
from holdfast.faults.fault import FaultRefused

DECISIONS_SHOWN = 20
PAUSE_S = 0.05
"""Idle time of a step: the undisturbed training, which has none, takes a fraction of the soak."""
PERSIST_EVERY = 100
SETTLED_STEPS = 10
SETTLE_S = 120.0
RECORDED_S = 60.0
POLL_S = 0.1
APART_S = 5.0
"""Longest time between the two faults of a pair."""
PAIRS = 0.4
RARE = {"kill supervisor": 0.2, "lose node": 0.5, "jump": 0.3}
"""Share of these kinds, by name or first word, for 1 of each other."""
IN_STEP = 2
"""Steps that a death may lose in any case: the one that was trained, and the one whose copy was not complete.

Where keeping one costs too much, ranks keep one step in k and say so (`keeping_spaced`): then k times as many.
"""
LATE_S = 0.5
"""Time that copies to another node may be late."""
COPIES_S = 2.0
"""Time after which a node that lost its memory has copies again, and others have copies on it."""
METRICS = "holdfast.v1.metric."
AWAY = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, EmbeddedError)


class Soak:
    """One soak: a cluster, its job, the checkers."""

    def __init__(self, running: Cluster, place: Place, args: argparse.Namespace, up: tuple[str, ...]) -> None:
        self.running = running
        self._layout = ClusterLayout(running.directory)
        self._seed = args.seed
        self._chance = random.Random(args.seed)
        self.training = Training(place.record, MEMBERS)
        self.subscriber = Subscriber(lambda: running.info.nats_url)
        self.database = Database(lambda: running.info.database_urls["reader"])
        self._faults = Faults(running, self.training, self._chance, up, Clocks(place.record.parents[1] / CLOCKS))
        self.kinds = matching(self._faults.kinds, args.faults)
        self._checked: set[str] = set()
        self._generation = 0
        self.shared: set[str] = set()
        self.rounds: list[Round] = []
        self.violations: list[str] = []
        self.skipped: Counter[str] = Counter()
        self._active: list[Injected] = []
        self._undoing: dict[Injected, Future[None]] = {}
        self._threads = ThreadPoolExecutor()
        self.metrics_lost: set[str] = set()
        self.events = 0

    def violated(self, texts: list[str], evidence: str = "") -> None:
        """Note violations, and print them with their time."""
        for text in texts:
            line = f"seed {self._seed}, {datetime.now(UTC):%H:%M:%S.%f}: {text}"
            self.violations.append(line)
            tell(f"VIOLATION {line}" + (f"\n{evidence}" if evidence else ""))

    def round(self) -> bool:
        """Inject, wait, check. Returns False if the cluster does not recover."""
        began = time.time()
        restores = len(self.training.restores)
        self._generation = self.database.generation(JOB)
        injected = self._inject()
        if not injected:
            return True
        problem = self.settle()
        now = time.time()
        lost = self.training.restores[restores:]
        one = Round(
            faults=injected,
            recovered_s=None if problem else now - max(it.until for it in injected),
            pause_s=self.training.pause_s(began, now),
            lost_steps=max((it.lost_steps for it in lost), default=0),
        )
        self.rounds.append(one)
        named = " and ".join(map(str, injected))
        if problem:
            self.violated([f"no recovery within {SETTLE_S:g} s from {named}: {problem}"], self._scene())
            return False
        self.violated(self._judge_lost(injected, lost), self._scene() if lost else "")
        self.check_received(injected)
        self.shared |= shared_memory(self._layout.root)
        tell(
            f"{named}: paused {one.pause_s:.2f} s, everything runs after {one.recovered_s:.2f} s, "
            f"{one.lost_steps} steps lost (step {self.training.step})"
        )
        return True

    def _inject(self) -> list[Injected]:
        weights = [RARE.get(kind, RARE.get(kind.split()[0], 1.0)) for kind in self.kinds]
        kinds = self._chance.choices(self.kinds, weights, k=2 if self._chance.random() < PAIRS else 1)
        second_at = time.time() + self._chance.uniform(0, APART_S)
        injected: list[Injected] = []
        for number, kind in enumerate(kinds):
            while number and time.time() < second_at:
                self._undo(time.time())
                time.sleep(POLL_S)
            try:
                injected.append(self._faults.inject(kind))
                self._active.append(injected[-1])
            except (NotNow, FaultRefused, *AWAY) as error:
                self.skipped[kind] += 1
                tell(f"{kind} skipped: {error}")
        while self._active or self._undoing:
            self._undo(time.time())
            time.sleep(POLL_S)
        return injected

    def _undo(self, now: float) -> None:
        # Each in a thread: a node comes back only once NATS, which the other fault has stopped, goes on.
        for fault in [it for it in self._active if it.until <= now]:
            self._active.remove(fault)
            self._undoing[fault] = self._threads.submit(fault.undo)
        for fault, undone in [it for it in self._undoing.items() if it[1].done()]:
            del self._undoing[fault]
            try:
                undone.result()
            except (LauncherFailed, FaultRefused, *AWAY) as error:
                self.violated([f"{fault} cannot be undone: {error}"])

    def settle(self) -> str:
        """Wait until everything runs; returns what does not, "" if all does."""
        until = time.monotonic() + SETTLE_S
        step, problem = -1, ""
        while time.monotonic() < until:
            time.sleep(POLL_S)
            self.training.read()
            try:
                problem = self._unsettled()
            except (LauncherFailed, *AWAY) as error:
                problem = f"{type(error).__name__}: {error}"
            if problem:
                step = -1
            elif step < 0:
                step = self.training.step
            elif self.training.step >= step + SETTLED_STEPS:
                return ""
        return problem or f"the job stands at step {self.training.step}"

    def _unsettled(self) -> str:
        waiting = [f"{it.name} is {it.state}" for it in ask(self._layout, Status()).children if it.state != "ready"]
        waiting += [f"incident {it} is open" for it in self.database.open_incidents()]
        for row in self.database.rows("select key, state, blocked_until from standby.nodes"):
            if row["blocked_until"] is not None:
                # A lost node stays on the blocklist for a day.
                self.running.holdfast("nodes", "release", row["key"], limit_s=STOP_S)
                waiting.append(f"{row['key']} was blocked")
            elif row["state"] not in ("active", "standby"):
                waiting.append(f"{row['key']} is {row['state']}")
        return "; ".join(waiting)

    def _judge_lost(self, injected: list[Injected], lost: list[Restore]) -> list[str]:
        """Return the losses beyond those that the faults of this round excuse."""
        allowed_s = sum(it.lasted_s for it in injected) + LATE_S * any(it.memory_of or it.lasted_s for it in injected)
        without = [(node, it.at, it.until) for it in injected for node in it.memory_of]
        only_copies = any(
            one != other and abs(at - then) < COPIES_S + (until - at)
            for one, at, until in without
            for other, then, _ in without
        )
        # The newest step that is on the disk, and one more that was being written.
        found = []
        for it in lost:
            apart = self.database.kept_apart(JOB, self._generation, it.step, it.step + it.lost_steps)
            allowed_steps = 3 * PERSIST_EVERY if only_copies else IN_STEP * apart
            if it.lost_steps > allowed_steps and it.lost_s > allowed_s:
                found.append(
                    f"{it.lost_steps} steps lost by {' and '.join(map(str, injected))} (rank {it.rank} restored step "
                    f"{it.step}, {it.lost_s:.2f} s of training; allowed are {allowed_steps} steps or {allowed_s:.2f} s)"
                )
        return found

    def check_received(self, injected: list[Injected]) -> None:
        """Wait until all that the subscriber has received is recorded."""
        received = self.subscriber.received()
        new = sorted(received.keys() - self._checked)
        if missing := self._await_recorded(new):
            # METRICS is a stream in memory: what was not recorded yet ends with its server.
            if any("nats" in str(it) or "supervisor" in str(it) for it in injected):
                self.metrics_lost |= {it for it in missing if received[it].startswith(METRICS)}
            lost = [f"{it} ({received[it]})" for it in missing if it not in self.metrics_lost]
            self.violated([f"received and not recorded within {RECORDED_S:g} s: {', '.join(lost)}"] if lost else [])
        self._checked |= set(new)

    def _await_recorded(self, ids: list[str]) -> list[str]:
        until = time.monotonic() + RECORDED_S
        missing = ids
        while missing and time.monotonic() < until:
            with contextlib.suppress(*AWAY):
                missing = self.database.missing(missing)
            time.sleep(POLL_S)
        return missing

    def await_disk(self) -> None:
        """Wait until a disk has a step: without one, a job that loses all its memory ends for good."""
        if not self._await_sql("select 1 from historian.events where job = $1 and type = 'checkpoint_saved'", JOB):
            self.violated([f"no step has come to a disk within {STOP_S:g} s"], self._scene())

    def finish(self) -> None:
        """Stop the job, and compare the whole record."""
        for fault in self._active:
            fault.undo()
        self._threads.shutdown()
        self.running.holdfast("stop", JOB, limit_s=STOP_S)
        if not self._await_sql("select 1 from controller.jobs where key = $1 and exit_code is not null", JOB):
            self.violated([f"the job has not stopped within {STOP_S:g} s"], self._scene())
        sent, waiting = self.database.outboxes()
        until = time.monotonic() + RECORDED_S
        while waiting and time.monotonic() < until:
            time.sleep(POLL_S)
            sent, waiting = self.database.outboxes()
        if waiting:
            self.violated([f"{waiting} messages of outboxes are not published"])
        if not (received := self.subscriber.received()):
            self.violated(["the subscriber received nothing, so nothing was compared with it"])
        sent = sorted({*sent, *received} - self.metrics_lost)
        self._await_recorded(sent)
        self.violated(judge_events(sent, self.subscriber.requests(), self.database.record()))
        self.events = len(sent)

    def _await_sql(self, text: str, *values: object) -> bool:
        until = time.monotonic() + STOP_S
        while time.monotonic() < until:
            if self.database.rows(text, *values):
                return True
            time.sleep(POLL_S)
        return False

    def _scene(self) -> str:
        parts = []
        for command in (("status",), ("incidents",), ("nodes",)):
            with contextlib.suppress(LauncherFailed):
                parts.append(self.running.holdfast(*command, limit_s=STOP_S))
        with contextlib.suppress(*AWAY):
            text = "select at, type, body->>'reason' as reason from historian.events where class = 'decision'"
            rows = self.database.rows(f"{text} order by at desc limit {DECISIONS_SHOWN}")
            parts += [f"{row['at']:%H:%M:%S.%f} {row['type']}: {row['reason']}" for row in reversed(rows)]
        return "\n".join(parts)

    def close(self) -> None:
        """Let go of the bus and the database."""
        self.subscriber.close()
        self.database.close()


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Do one soak and return its figures."""
    up = ("--nodes", str(NODES), *(("--namespaces",) if args.namespaces else ()))
    began = time.monotonic()
    with fresh_cluster(up) as (running, root):
        place = Place.fresh(root, "job")
        soak = Soak(running, place, args, up)
        shape = ("--nnodes", str(MEMBERS), "--persist-every", str(PERSIST_EVERY))
        script = (str(WORKLOAD), *place.arguments(FOREVER, *SHAPE, "--keep", "--pause-s", str(PAUSE_S)))
        running.holdfast("run", "-d", "--name", JOB, *shape, *script)
        interrupted = False
        try:
            soak.await_disk()
            interrupted = rounds(soak, began + 60 * args.minutes)
            soak.finish()
            if not soak.metrics_lost:
                # Otherwise the record lacks what some decisions followed from.
                soak.violated(judge_decisions(running))
        finally:
            soak.close()
        bridge = running.info.fabric.bridge if running.info.fabric else None
        running.holdfast("down", limit_s=STOP_S)
        soak.violated(leftovers(running.directory.resolve(), soak.shared, bridge))
        compared = 0
        if not interrupted:
            tell(f"trains {soak.training.step} steps undisturbed, to compare")
            soak.violated(judge_losses(soak.training.losses, undisturbed(root, soak.training.step).losses))
            compared = sum(map(len, soak.training.losses))
    if soak.violations:
        tell(f"logs are kept in {root}")
    else:
        shutil.rmtree(root)
    return figures(soak.kinds, soak.rounds) | {
        "steps": soak.training.step,
        "events_compared": soak.events,
        "losses_compared": compared,
        "metrics_lost": len(soak.metrics_lost),
        "skipped": dict(soak.skipped),
        "interrupted": interrupted,
        "violations": soak.violations,
    }


def rounds(soak: Soak, until: float) -> bool:
    """Do rounds until the time is over, or the cluster does not recover. Returns True if interrupted."""
    try:
        if problem := soak.settle():
            soak.violated([f"the job did not start: {problem}"])
            return False
        while time.monotonic() < until and soak.round():
            pass
    except KeyboardInterrupt:
        tell("interrupted; prints what it has, without the comparison of losses")
        return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="duration, without the start and the comparison")
    parser.add_argument("--quick", action="store_true", help="two minutes")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of faults, victims and moments")
    parser.add_argument("--faults", default="", help="kinds, or their first words, separated by commas")
    parser.add_argument("--namespaces", action="store_true", help="a network for each node, and its faults; needs root")
    parser.add_argument("--json", action="store_true", help="print nothing but the line of JSON")
    args = parser.parse_args()
    args.minutes = 2.0 if args.quick else args.minutes
    # The kernel's log is the machine's: faults of others would be found in it.
    os.environ.setdefault("HOLDFAST_INSPECTIONS_DISABLED", "kernel")
    # In the background of a shell SIGINT is ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    here = machine.describe()
    tell(machine.in_words(here))
    came = run(args)
    if not args.json:
        show(came)
    final_line({"bench": "chaos", "machine": here, "load": machine.load(), "seed": args.seed} | came)
    sys.exit(1 if came["violations"] else 0)


if __name__ == "__main__":
    main()
