"""The process behind `holdfast simulate`: it prints a scoreboard as JSON, and its progress to a terminal."""

from __future__ import annotations

import argparse
import logging
import sys

import msgspec
import structlog

from holdfast.settings.load import ConfigRefused
from holdfast_proving.judging.scoring import score_policies
from holdfast_proving.policies.named import policy_of
from holdfast_proving.scenario.load import ScenarioRefused, load_scenario

WIDTH = 30


def main() -> None:
    parser = argparse.ArgumentParser(prog="holdfast_proving")
    parser.add_argument("--scenario", required=True)
    parser.add_argument("--policy", action="append", default=[])
    parser.add_argument("--days", type=float)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    asked = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        scenario = load_scenario(asked.scenario)
        policies = [policy_of(name) for name in dict.fromkeys(asked.policy or ["today"])]
    except (ScenarioRefused, ConfigRefused) as error:
        sys.exit(str(error))
    if asked.days is not None:
        scenario = msgspec.structs.replace(scenario, days=asked.days)
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    total = len(seeds) * (1 + sum(policy.name != "oracle" for policy in policies))
    board = score_policies(asked.scenario, scenario, policies, seeds, _Bar(total) if sys.stderr.isatty() else _silent)
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    sys.stdout.buffer.write(msgspec.json.encode(board))


def _silent(policy: str, seed: int, share: float) -> None:
    """Show nothing: nobody is watching."""


class _Bar:
    """A progress bar over all simulations."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._over = 0

    def __call__(self, policy: str, seed: int, share: float) -> None:
        done = (self._over + share) / self._total
        filled = int(done * WIDTH)
        sys.stderr.write(f"\r\x1b[K[{'#' * filled}{'.' * (WIDTH - filled)}] {done:4.0%}  {policy}, seed {seed}")
        sys.stderr.flush()
        if share >= 1.0:
            self._over += 1


if __name__ == "__main__":
    main()
