"""Node after node is lost whole, and nothing is on a disk: the state comes back out of the memory of the others.

    python bench/node_loss.py            20 losses; some ten minutes
    python bench/node_loss.py --quick    4 losses

A job of three ranks on three nodes keeps each step in memory; two more nodes stand by. Once every node has a copy
elsewhere, a random one is killed at a random moment (agent, vault, rank: SIGKILL), wherever a save, its seal or its
transfer happens to be. In every second round the node that takes its place is killed as well, at a random moment after
it was told to start: before, in or after its fetch. Afterwards the same steps are trained undisturbed, under torchrun,
and every loss of every generation is compared.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any, NamedTuple

import machine
from launchers import Cluster, LauncherFailed, Place, cluster
from losses import compare, undisturbed
from records import Records, Timeout
from report import final_line, median, rounded, table, tell

from holdfast.embedded.control import PowerOff, PowerOn, ask
from holdfast.embedded.layout import ClusterLayout

MEMBERS, STANDBYS = 3, 2
JOB = "node-loss"
SHAPE = ("--ckpt-every", "0", "--width", "1024", "--layers", "4")
"""34 MB of state for each rank: long enough under way to be hit there."""
START_S = 120.0
LIMIT_S = 60.0
MOMENTS_S = 1.0
"""The kill falls anywhere within: several steps, each with its save and its transfer."""
START_MOMENTS_S = 0.8
POLL_S = 0.02


class Loss(NamedTuple):
    """A round. `lost_steps`: trained before, trained again; `began_anew`: nothing could be restored."""

    nodes: tuple[str, ...]
    recovery_s: float
    restored_step: int
    lost_steps: int
    began_anew: bool


class Drill:
    """The rounds."""

    def __init__(self, running: Cluster, records: Records, seed: int) -> None:
        self._running = running
        self._records = records
        self._chance = random.Random(seed)
        self._layout = ClusterLayout(running.directory)

    def round(self, *, twice: bool) -> Loss:
        """Lose a node, and perhaps the one in its place.

        Raises:
            Timeout, LauncherFailed: the job does not come back, or has no copies.
        """
        order = self._await_copies()
        before = self._records.await_generation(LIMIT_S)
        time.sleep(self._chance.uniform(0, MOMENTS_S))
        lost = [self._chance.choice(order["nodes"])]
        killed_at = time.time()
        self._power_off(lost[0])
        decided = self._await_order_without(lost[0])
        if twice:
            (instead,) = set(decided["nodes"]) - set(order["nodes"])
            time.sleep(self._chance.uniform(0, START_MOMENTS_S))
            lost.append(instead)
            self._power_off(instead)
            decided = self._await_order_without(instead)
        after = self._records.await_generation(LIMIT_S, but=before.pids)
        # Before a loss is noticed, ranks that miss their partner end, and are started once more with the same nodes.
        while self._records.lives[0][-1].began < decided["at"].timestamp():
            after = self._records.await_generation(LIMIT_S, but=after.pids)
        for node in lost:
            ask(self._layout, PowerOn(node=node), within_s=LIMIT_S)
            # Who was lost is on the blocklist for a day.
            self._running.holdfast("nodes", "release", node)
        lives = [lives[-1] for lives in self._records.lives]
        furthest = max(
            step.number for ranks in self._records.lives for life in ranks[:-1] for step in life.steps if step.at > 0
        )
        restored = min(life.restored_step for life in lives)
        return Loss(tuple(lost), after.first_step - killed_at, restored, furthest - restored, restored == 0)

    def _power_off(self, node: str) -> None:
        ask(self._layout, PowerOff(node=node))

    def _newest(self) -> dict[str, Any]:
        return self._running.events(JOB, "generation_started")[-1]

    def _await_order_without(self, node: str) -> dict[str, Any]:
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            order = self._newest()
            if node not in order["nodes"]:
                return order
            time.sleep(POLL_S)
        raise LauncherFailed(f"no generation is started without {node} within {LIMIT_S:g} s")

    def _await_copies(self) -> dict[str, Any]:
        """The order that holds, once each of its nodes has said that it has a copy elsewhere, and enough stand by."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            order = self._newest()
            said = self._running.events(JOB, "shards_backed_up")
            whole = {event["node"] for event in said if event["generation"] == order["generation"]}
            standing_by = self._running.query("select 1 from standby.nodes where state = 'standby'")
            if whole >= set(order["nodes"]) and len(standing_by) >= STANDBYS:
                return order
            time.sleep(POLL_S)
        raise LauncherFailed(f"generation {order['generation']} has no copies or standbys within {LIMIT_S:g} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4 losses instead of 20")
    parser.add_argument("--losses", type=int)
    parser.add_argument("--seed", type=int, default=1, help="of the nodes and the moments")
    args = parser.parse_args()
    wanted = args.losses or (4 if args.quick else 20)
    here = machine.describe()
    tell(machine.in_words(here))

    rounds: list[Loss] = []
    failure = ""
    with cluster(MEMBERS + STANDBYS) as (running, root):
        place = Place.fresh(root, "node-loss")
        records = Records(place.record, MEMBERS)
        running.submit(JOB, place, MEMBERS, 1, *SHAPE, "--keep")
        records.await_generation(START_S)
        drill = Drill(running, records, args.seed)
        for number in range(wanted):
            try:
                rounds.append(one := drill.round(twice=number % 2 == 1))
            except (Timeout, LauncherFailed) as error:
                failure = f"loss {number + 1}: {error}"
                tell(f"ended early: {failure}")
                break
            tell(
                f"[{number + 1}/{wanted}] lost {' and then '.join(one.nodes)}, trains again after "
                f"{one.recovery_s:.2f} s, from step {one.restored_step}, {one.lost_steps} lost (load {machine.load()})"
            )
        load = machine.load()
        running.stop(JOB)
        records.read()
        steps = max((step.number for life in records.lives[0] for step in life.steps), default=0)
        tell(f"trains {steps} steps undisturbed, to compare")
        losses = compare(records, undisturbed(root, MEMBERS, steps, *SHAPE), saved_every=1)

    print(f"\n{machine.in_words(here)}, load {load}\n")
    shown = []
    figures: dict[str, dict[str, object]] = {}
    for name, chosen in (("one node", rounds[::2]), ("and the one in its place", rounds[1::2])):
        lost_steps = [one.lost_steps for one in chosen]
        figures[name] = {
            "rounds": len(chosen),
            "began_anew": sum(one.began_anew for one in chosen),
            "recovery_s": rounded(median([one.recovery_s for one in chosen])),
            "lost_steps": median(lost_steps),
            "lost_steps_max": max(lost_steps, default=None),
        }
        shown.append((name, *figures[name].values()))
    table(("lost", "rounds", "from scratch", "recovery s", "lost steps", "at most"), shown)
    print(
        f"\nsteps {steps}; losses compared {losses.compared}, different {losses.different}; steps never trained "
        f"{losses.missing}; notes cut off by a kill {losses.notes_cut_off}\n"
    )
    final_line(
        {
            "bench": "node_loss",
            "machine": here,
            "load": load,
            "losses_wanted": wanted,
            "rounds": figures,
            "failure": failure,
            "steps": steps,
            "losses": losses._asdict(),
        }
    )


if __name__ == "__main__":
    main()
