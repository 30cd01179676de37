"""The scoreboard: what it counts, and the command that shows it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import CliRunner

from holdfast.cli.commands.diagnosis.simulate import simulate
from holdfast.cli.output.scoreboard_picture import BAR_W, picture
from holdfast.events import GenerationStarted, JobFinished
from holdfast.ids import named_id
from holdfast.policy_scores import Scoreboard
from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.judging.history import History
from holdfast_proving.judging.scoring import Interrupted, ended_jobs, estimate, score_policies, worst_hour
from holdfast_proving.policies.named import NAMED, policy_of
from holdfast_proving.policies.oracle import INFORMED, OBSERVANT, ORACLE
from holdfast_proving.policies.papers import BYTEROBUST
from holdfast_proving.policies.policy import TODAY
from holdfast_proving.scenario.load import read_scenario
from holdfast_proving.scenario.scenario import JobPlan
from holdfast_proving.world.time_book import TimeBook
from tests.scenes.small_scenario import SMALL

FORGETFUL = NAMED["forgets_records"]
LEMON = """
[[faults]]
name = "lemon"
effect = "crash"
prints = "segfault"
lasts = "repair"
again_h = 1.0
[[strikes]]
kind = "lemon"
at_h = 1
place = "gpu-1"
"""


def test_regret_is_measured_under_the_same_faults() -> None:
    scenario = msgspec.structs.replace(read_scenario(SMALL + LEMON), days=1.0)
    board = score_policies("lemon", scenario, [FORGETFUL, ORACLE], range(1, 4))
    today, oracle = board.scores
    assert oracle.regret_s.mean == 0.0 and not oracle.complaints
    assert today.regret_s.mean == pytest.approx(today.lost_s.mean - oracle.lost_s.mean)
    assert today.regret_s.mean > 100.0
    assert today.missed_culprits == 3 and today.evictions == 0 and oracle.evictions == 3
    assert set(oracle.culprits_by_incidents) == {1} and min(today.culprits_by_incidents) > 3
    assert today.lost_s.mean == pytest.approx(sum(today.lost_by_cause_s.values()))
    assert today.ettr.mean == pytest.approx(1.0 - today.lost_s.mean / 86400.0)


def test_what_is_known_of_a_machine_that_has_shown_nothing_yet_is_foresight() -> None:
    """Two machines break at once: the oracle evicts both when the first one shows it."""
    both = LEMON + '[[strikes]]\nkind = "lemon"\nat_h = 1\nplace = "gpu-2"\n'
    scenario = msgspec.structs.replace(read_scenario(SMALL + both), days=1.0)
    restarts = [
        sum(isinstance(event, GenerationStarted) for _, event in Cluster(scenario, 1, policy).run().log)
        for policy in (ORACLE, INFORMED)
    ]
    assert restarts == [2, 3]


@pytest.mark.parametrize(("prints", "starts"), [("segfault", 3), ("ecc", 2)])
def test_that_a_machine_has_failed_once_without_a_reason_is_no_evidence(prints: str, starts: int) -> None:
    scenario = msgspec.structs.replace(read_scenario(SMALL + LEMON.replace("segfault", prints)), days=1.0)
    log = Cluster(scenario, 1, OBSERVANT).run().log
    assert sum(isinstance(event, GenerationStarted) for _, event in log) == starts


def test_a_test_of_machines_that_cannot_be_held_is_no_job_that_ended() -> None:
    cluster = Cluster(read_scenario(SMALL + LEMON), 1, TODAY)
    common = {"at": cluster.agenda.now(), "source": "controller", "outcome": "failed", "reason": "no free node"}
    for number, job in enumerate(("train-1", "retest-1")):
        finished = JobFinished(id=named_id(cluster.agenda.now(), "end", number), job=job, exit_code=1, **common)
        cluster.log.append((0.0, finished))
    assert ended_jobs(History(cluster)) == 1


def test_policies_are_compared_by_pairs() -> None:
    scenario = msgspec.structs.replace(read_scenario(SMALL + LEMON), days=1.0)
    board = score_policies("lemon", scenario, [FORGETFUL, BYTEROBUST], range(1, 4))
    today, byterobust = board.scores
    assert board.scenario == "lemon" and today.than_first_s is None and byterobust.than_first_s is not None
    assert byterobust.than_first_s.mean == pytest.approx(byterobust.lost_s.mean - today.lost_s.mean)
    assert byterobust.than_first_s.high is not None and byterobust.than_first_s.high < -50.0


def test_the_pool_is_counted_in_machine_hours() -> None:
    scenario = msgspec.structs.replace(read_scenario(SMALL + LEMON), days=0.5)
    (today,) = score_policies("lemon", scenario, [FORGETFUL], [1]).scores
    # Four of eight machines are spare for 12 hours.
    assert today.pool_h == pytest.approx(48.0, abs=0.2)


def test_a_job_loses_no_time_before_it_is_submitted_and_after_it_is_complete() -> None:
    """The second one runs from the third hour on for an hour; nothing fails."""
    plan = read_scenario(SMALL + LEMON)
    short = JobPlan(name="short", nodes=2, steps=720, submitted_at_h=3.0)
    scenario = msgspec.structs.replace(plan, days=0.25, jobs=(*plan.jobs, short), strikes=())
    (today,) = score_policies("short", scenario, [TODAY], [1]).scores
    assert today.bad_hour > 0.95 and all(point.cumulative > 0.95 for point in today.curve)


def test_the_curve_ends_at_the_ettr() -> None:
    scenario = msgspec.structs.replace(read_scenario(SMALL + LEMON), days=1.0)
    (today,) = score_policies("lemon", scenario, [TODAY], [1]).scores
    last = today.curve[-1]
    assert last.at_h == pytest.approx(24.0, abs=0.2) and last.cumulative == pytest.approx(today.ettr.mean, abs=1e-3)
    worst = min(point.last_hour for point in today.curve)
    assert worst - 1e-4 < today.bad_hour < 1.0 and worst == pytest.approx(today.worst_hour, abs=0.02)


def test_simulations_that_are_interrupted_show_the_seeds_that_are_done() -> None:
    scenario = msgspec.structs.replace(read_scenario(SMALL + LEMON), days=0.1)

    def until_third(policy: str, seed: int, share: float) -> None:
        if seed == 3 and policy == "today":
            raise Interrupted

    board = score_policies("lemon", scenario, [TODAY], range(1, 10), until_third)
    assert board.seeds == (1, 2) and board.seeds_wanted == 9 and len(board.scores) == 1


def test_ctrl_c_ends_the_process_with_what_is_done(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(SMALL + LEMON)
    command = [sys.executable, "-P", "-m", "holdfast_proving", f"--scenario={file}", "--seeds=10000", "--days=0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"seed 2" in line:
                break
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    board = msgspec.json.decode(output, type=Scoreboard)
    assert process.returncode == 0 and 1 <= len(board.seeds) < board.seeds_wanted == 10_000
    assert board.scores[0].policy == "today"


def test_the_picture_has_a_row_for_each_policy(tmp_path: Path) -> None:
    scenario = msgspec.structs.replace(read_scenario(SMALL + LEMON), days=0.5)
    board = score_policies("a < b", scenario, [TODAY, BYTEROBUST], [1])
    root = ElementTree.fromstring(picture(board))
    texts = ["".join(it.itertext()) for it in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a < b: small" in texts and {"today", "byterobust"} <= set(texts)
    bars = [float(it.attrib["width"]) for it in root.iter("{http://www.w3.org/2000/svg}rect") if "y" in it.attrib]
    assert sum(width for width in bars if width != 12.0) == pytest.approx(2 * BAR_W, abs=1.0)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 2


def test_the_worst_hour_is_the_least_of_the_sliding_ettr() -> None:
    book = TimeBook()
    for since_s, cause in ((0.0, "starting"), (360.0, None), (7200.0, "checks"), (8100.0, None), (9900.0, "starting")):
        book.enter(cause, since_s)  # type: ignore[arg-type]
    book.enter(None, 10260.0)
    # From 7,200 s on: 900 s of checks and 360 s of starting within 3,600 s.
    assert worst_hour(book) == pytest.approx(1.0 - 1260.0 / 3600.0)


def test_a_mean_has_its_interval() -> None:
    assert estimate([3.0]).low is None
    of_three = estimate([1.0, 2.0, 3.0])
    # 4.30 is Student's t for two degrees of freedom.
    assert of_three.mean == 2.0 and of_three.high == pytest.approx(2.0 + 4.30 / 3**0.5)


def test_policies_have_different_names() -> None:
    assert len(NAMED) == len({policy.name for policy in NAMED.values()})
    assert policy_of("oracle") is ORACLE


def test_the_command_shows_a_scoreboard() -> None:
    shown = CliRunner().invoke(simulate, ["--scenario", "known-creeping", "--seeds", "1", "--json"])
    assert shown.exit_code == 0, shown.output
    board = msgspec.json.decode(shown.stdout, type=Scoreboard)
    (score,) = board.scores
    assert [(complaint.wrong, complaint.is_known) for complaint in score.complaints] == [("innocent_evicted", True)]
    refused = CliRunner().invoke(simulate, ["--policy", "tody"])
    assert refused.exit_code == 1
    assert "perhaps today is meant" in refused.output
