"""The process behind `holdfast simulate`: its output is JSON, or with status 2 what is wrong."""

from __future__ import annotations

import argparse
import logging
import sys

import msgspec
import structlog
from rich.console import Console

from holdfast.settings.load import ConfigRefused
from holdfast_proving.judging.scoring import score_policies
from holdfast_proving.policies.named import policy_of
from holdfast_proving.progress import Watch
from holdfast_proving.scenario.load import ScenarioRefused, load_scenario, shipped

REFUSED = 2


def main() -> None:
    parser = argparse.ArgumentParser(prog="holdfast_proving")
    parser.add_argument("--scenario", default="")
    parser.add_argument("--list", action="store_true", help="name the scenarios instead, as JSON")
    parser.add_argument("--policy", action="append", default=[])
    parser.add_argument("--days", type=float)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    asked = parser.parse_args()
    if asked.list:
        sys.stdout.buffer.write(msgspec.json.encode({name: load_scenario(name).title for name in shipped()}))
        return
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        scenario = load_scenario(asked.scenario)
        policies = [policy_of(name) for name in dict.fromkeys(asked.policy or ["today"])]
    except (ScenarioRefused, ConfigRefused) as error:
        print(error)
        sys.exit(REFUSED)
    if asked.days is not None:
        scenario = msgspec.structs.replace(scenario, days=asked.days)
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    total = len(seeds) * (1 + sum(policy.name != "oracle" for policy in policies))
    with Watch(total, Console(stderr=True)).shown() as watch:
        board = score_policies(asked.scenario, scenario, policies, seeds, watch)
    sys.stdout.buffer.write(msgspec.json.encode(board))


if __name__ == "__main__":
    main()
