"""The scoreboard: what it counts, and the command that shows it."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

from holdfast.cli.commands.diagnosis.simulate import simulate
from holdfast.policy_scores import Scoreboard
from holdfast_proving.judging.scoring import estimate, score_policies, worst_hour
from holdfast_proving.policies.named import NAMED, policy_of
from holdfast_proving.policies.oracle import ORACLE
from holdfast_proving.policies.policy import TODAY
from holdfast_proving.scenario.load import read_scenario
from holdfast_proving.world.time_book import TimeBook
from tests.scenes.small_scenario import SMALL

LEMON = """
[[faults]]
name = "lemon"
effect = "crash"
prints = "ecc"
lasts = "repair"
again_h = 1.0
[[strikes]]
kind = "lemon"
at_h = 1
place = "gpu-1"
"""


def test_regret_is_measured_under_the_same_faults() -> None:
    scenario = msgspec.structs.replace(read_scenario(SMALL + LEMON), days=1.0)
    board = score_policies("lemon", scenario, [TODAY, ORACLE], range(1, 4))
    today, oracle = board.scores
    assert oracle.regret_s.mean == 0.0 and not oracle.complaints
    assert today.regret_s.mean == pytest.approx(today.lost_s.mean - oracle.lost_s.mean)
    assert today.regret_s.mean > 100.0
    assert today.missed_culprits == 3 and today.evictions == 0 and oracle.evictions == 3
    assert today.lost_s.mean == pytest.approx(sum(today.lost_by_cause_s.values()))
    assert today.ettr.mean == pytest.approx(1.0 - today.lost_s.mean / 86400.0)


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
    shown = CliRunner().invoke(simulate, ["--scenario", "known-lemon", "--seeds", "1", "--json"])
    assert shown.exit_code == 0, shown.output
    board = msgspec.json.decode(shown.stdout, type=Scoreboard)
    (score,) = board.scores
    assert [(complaint.wrong, complaint.is_known) for complaint in score.complaints] == [("culprit_stays", True)]
    refused = CliRunner().invoke(simulate, ["--policy", "tody"])
    assert refused.exit_code == 1
    assert "perhaps today is meant" in refused.output
