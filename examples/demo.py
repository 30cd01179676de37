"""The main job, end to end: a cluster here, a GPT in training, a rank killed, a node lost, and back each time.

    make demo

Two runs of the same GPT with the same seed: one undisturbed, one that loses a rank and then a whole node. What
they end with must be the same loss.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import asyncpg

from holdfast import events
from holdfast.bus.nats import connect
from holdfast.cli.output.tables import render
from holdfast.embedded.layout import ClusterInfo
from holdfast.events import IncidentClosed, Progress, RanksStarted
from holdfast.subjects import ROOT

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
SCRIPT = Path(__file__).parent / "gpt" / "train.py"
LOSS_TOLERANCE = 1e-6
PATIENCE_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=Path(".holdfast/demo"), help="where the cluster keeps its state")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--keep", action="store_true", help="leave the cluster running at the end")
    args = parser.parse_args()
    # Otherwise a terminated demo would leave its cluster running.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    return Demo(args.dir.absolute(), args.steps, args.keep).run()


class Demo:
    def __init__(self, directory: Path, steps: int, keep: bool) -> None:
        self.directory = directory
        self.marker = directory / "made-by-the-demo"
        self.steps = steps
        self.keep = keep
        self.began = time.monotonic()

    def run(self) -> int:
        self.make_room()
        self.tell("Starting a cluster on this machine: four nodes and a standby.")
        try:
            try:
                self.holdfast("up", "--detach", "--nodes", "5")
            finally:
                # Not before: `up` takes no directory that holds other things. There was nothing of anybody's until now.
                self.sign()
            self.tell(f"An undisturbed run: GPT, pp=2 x dp=2 on four nodes, {self.steps} steps.")
            undisturbed = self.train("undisturbed")
            self.tell("The same run again. Now things break: first a rank is killed, then a node goes dark.")
            disturbed = asyncio.run(self.train_and_break("disturbed"))
            return asyncio.run(self.summarise(undisturbed, disturbed))
        finally:
            if not self.keep and self.marker.exists():
                self.down()

    def make_room(self) -> None:
        """Remove the cluster of an earlier demo; anything else, a cluster of jobs too, is not ours to remove."""
        if self.marker.exists():
            self.down(capture_output=True)
            shutil.rmtree(self.directory, ignore_errors=True)
        elif self.directory.exists() and any(self.directory.iterdir()):
            raise SystemExit(f"{self.directory} holds something else than a demo: remove it, or name a new directory")

    def down(self, *, capture_output: bool = False) -> None:
        subprocess.run([HOLDFAST, "down", "--dir", self.directory], check=False, capture_output=capture_output)

    def sign(self) -> None:
        """Say that what is in the directory may go when the demo starts again."""
        if self.directory.exists():
            self.marker.touch()

    def tell(self, text: str) -> None:
        print(f"\n=== {time.monotonic() - self.began:5.1f} s  {text}", flush=True)

    def holdfast(self, command: str, *args: str) -> None:
        environment = os.environ | {"HOLDFAST_DIR": str(self.directory)}
        subprocess.run([HOLDFAST, command, *args], check=True, env=environment)

    def command(self, name: str) -> list[str]:
        where = ["--dir", str(self.directory), "--name", name, "--nnodes", "4", "--mesh", "pp=2,dp=2"]
        training = [str(SCRIPT), "--steps", str(self.steps), "--ckpt-every", "10", "--log-every", "50"]
        return [HOLDFAST, "run", *where, *training]

    def train(self, name: str) -> float:
        """Run to the end; the final loss."""
        done = subprocess.run(self.command(name), stdout=subprocess.PIPE, text=True, check=True)
        print(done.stdout, end="", flush=True)
        return final_loss(done.stdout)

    async def train_and_break(self, name: str) -> float:
        """The same, with faults; the final loss."""
        faults = asyncio.create_task(self.break_things(name))
        process = await asyncio.create_subprocess_exec(*self.command(name), stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        output = ""
        async for line in process.stdout:
            output += line.decode()
            print(line.decode(), end="", flush=True)
        if await process.wait():
            raise SystemExit(f"the disturbed run failed with exit code {process.returncode}")
        await faults
        return final_loss(output)

    async def break_things(self, name: str) -> None:
        """Watch the job's events, as any tool could, and strike when it trains."""
        bus = await connect(ClusterInfo.load(self.directory).nats_url, "demo")
        pids: dict[int, int] = {}
        homes: dict[int, str] = {}
        struck = closed = 0
        async with asyncio.timeout(PATIENCE_S):
            async for _, body in bus.listen(f"{ROOT}.*.*.{name}.>"):
                event = events.decode(body)
                if isinstance(event, RanksStarted):
                    pids.update({process.rank: process.pid for process in event.ranks})
                    homes.update({process.rank: event.node or "" for process in event.ranks})
                elif isinstance(event, IncidentClosed):
                    closed += 1
                    if closed == 2:
                        break
                elif isinstance(event, Progress) and closed == struck and event.step >= (struck + 1) * self.steps // 4:
                    if struck == 0:
                        self.tell(f"kill -9 of rank 2 (pid {pids[2]} on {homes[2]}) after step {event.step}")
                        os.kill(pids[2], signal.SIGKILL)
                    else:
                        self.tell(f"kill -9 of everything on {homes[3]}, agent and ranks, after step {event.step}")
                        await asyncio.to_thread(self.holdfast, "nodes", "poweroff", homes[3])
                    struck += 1
        await bus.close()

    async def summarise(self, undisturbed: float, disturbed: float) -> int:
        database = await asyncpg.connect(ClusterInfo.load(self.directory).database_urls["reader"])
        await recorded(database)
        self.tell("What happened, from the recorded history:")
        incidents = await database.fetch("select * from historian.incidents order by opened_at")
        for incident in incidents:
            print(f"\nIncident {incident['incident']}: {incident['summary']}")
            print(f"  {incident['outcome']} in {incident['seconds_to_recover']:.2f} s from the fault to training again")
            timeline = await database.fetch(
                "select seconds, type, node, what from historian.incident_timeline"
                " where incident = $1 and class <> 'metric' and type not in ('progress') order by at, seconds",
                incident["incident"],
            )
            rows = [[f"{row['seconds']:.3f}", row["type"], row["node"], (row["what"] or "")[:90]] for row in timeline]
            print("  " + render(["seconds", "event", "node", "what"], rows).replace("\n", "\n  "))
        generations = await database.fetch(
            "select generation, cause, detect_s, decide_s, wait_s, stop_s, start_s, first_step_s, total_s,"
            " array_to_string(nodes, ' ') as nodes, outcome"
            " from historian.generations where job = 'disturbed' order by generation"
        )
        print("\nGenerations of the disturbed run, seconds in each phase:")
        print(render(list(generations[0].keys()), [[_short(value) for value in row.values()] for row in generations]))

        counts = await database.fetchrow(
            "select count(*) as steps, max(step) as last, count(*) filter (where copies > 1) as redone"
            " from (select step, count(*) as copies from historian.steps"
            "       where job = 'disturbed' and rank = 0 group by step) s"
        )
        differing = await database.fetchval(
            "select count(*) from historian.steps a join historian.steps b on a.step = b.step and a.rank = b.rank"
            " where a.job = 'disturbed' and b.job = 'undisturbed' and abs(a.loss - b.loss) > $1",
            LOSS_TOLERANCE,
        )
        await database.close()
        difference = abs(undisturbed - disturbed)
        print(f"\nsteps done                 {counts['steps']} of {self.steps}, {counts['redone']} of them twice")
        print(f"final loss                 {disturbed:.10f} disturbed, {undisturbed:.10f} undisturbed")
        print(f"loss curve                 {differing} recorded steps differ by more than {LOSS_TOLERANCE:g}")
        print(f"logs                       {self.directory}/logs, and {self.directory}/nodes/NODE/logs for ranks")
        again = f"holdfast up --detach --dir {self.directory}"
        print(f"look further               {'' if self.keep else again + ' && '}holdfast sql --dir {self.directory} \\")
        print('                             "select * from historian.incident_timeline"')
        checks = {
            "the final losses are the same": difference <= LOSS_TOLERANCE,
            "every step was done": counts["steps"] == self.steps and counts["last"] == self.steps,
            "no recorded loss differs": differing == 0,
            "two incidents, both recovered": [row["outcome"] for row in incidents] == ["recovered", "recovered"],
        }
        for text, holds in checks.items():
            print(f"  {'ok    ' if holds else 'FAILED'}  {text}")
        self.tell("Done." if all(checks.values()) else "Something is not as it should be.")
        return 0 if all(checks.values()) else 1


async def recorded(database: asyncpg.Connection) -> None:
    """Wait until the historian has the end of both jobs: it writes in batches, a moment behind."""
    ended = "select count(*) from historian.jobs where outcome = 'completed'"
    async with asyncio.timeout(PATIENCE_S):
        while await database.fetchval(ended) < 2:  # noqa: ASYNC110 - the database has no event to wait on
            await asyncio.sleep(0.1)


def final_loss(output: str) -> float:
    found = re.search(r"final_loss=(\S+)", output)
    if not found:
        raise SystemExit("the run printed no final loss")
    return float(found.group(1))


def _short(value: object) -> object:
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    raise SystemExit(main())
